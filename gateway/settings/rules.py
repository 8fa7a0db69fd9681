"""Rules between settings, and warnings about doubtful values."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from adapters.registry import Platform, account_types, by_name
from adapters.web.platform import is_private_way
from agent.processes.confinement import SYSTEM
from agent.safety.redaction import LEAST_CHARS, is_telling
from agent.settings import MCP_PREFIX, ModelSettings
from gateway.settings.tree import Settings, StorageSettings, is_server, name_of

# A host name, an address (IPv6 in brackets) or nothing, and an optional port.
_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(?::[0-9]{1,5})?")
Contradiction = tuple[str, str]

# Masking shorter values would make logs unreadable.
MIN_SECRET_CHARS = 4
MIN_TOKEN_CHARS = 16
MIN_TOKEN_KINDS = 8


def contradictions(settings: Settings, values: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Yield (key, mistake) for every broken rule; `values` is keyed by dotted key."""
    for name, secret in _secrets(values):
        if len(secret) < MIN_SECRET_CHARS:
            yield name, f"is shorter than {MIN_SECRET_CHARS} characters; write null for none"
    yield from _wrong_urls(values)
    yield from _side_models(settings)
    yield from _weak_tokens(settings)
    yield from _identity_provider(settings)
    yield from _accounts(settings)
    yield from _people(settings)
    yield from _storage(settings.storage)
    roles = [each.role for each in settings.agent.prefill]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        yield "agent.prefill", "must be pairs: one message of the user, then one of the assistant"
    yield from _places(settings)
    yield from _alerts(settings)
    # Other libraries install parts of that package.
    there = find_spec("opentelemetry") and find_spec("opentelemetry.sdk")
    if settings.telemetry.otlp_endpoint is not None and there is None:
        yield "telemetry.otlp_endpoint", "needs the extra: pip install 'parley[otel]'"


def _alerts(settings: Settings) -> Iterator[Contradiction]:
    alerts = settings.alerts
    for chat in alerts.to:
        known, rest = _platform(chat)
        if known is None or not all(rest.split(":")) or rest.count(":") > 1:
            text = "must be PLATFORM:CHAT or PLATFORM:ACCOUNT:CHAT, such as telegram:123456"
            yield "alerts.to", f"{chat!r} {text}"
        elif not any(each.is_on for each in settings.platforms.accounts(known.name)):
            yield "alerts.to", f"{chat!r}: {known.name} is off; set its token"
    if alerts.webhook_secret is not None and alerts.webhook is None:
        yield "alerts.webhook_secret", "signs nothing without alerts.webhook"


def doubts(settings: Settings, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for every doubtful value."""
    if workspace := settings.agent.workspace:
        try:
            os.scandir(workspace).close()
        except OSError as exc:
            yield f"agent.workspace: {workspace} cannot be read: {exc.strerror}"
    if named := [each for each in settings.tools.enabled if each.startswith(MCP_PREFIX)]:
        yield f"tools.enabled: {', '.join(named)}: MCP tools need no entry here; remove it"
    if settings.web.auth == "oidc" and settings.web.public_url is None:
        yield f"web.public_url: is not set, so sign-ins come back to {settings.web.callback_url}"
    for number, block in enumerate(settings.fallbacks):
        for name in ("max_output_tokens", "retry_for_s"):
            if getattr(block, name) != ModelSettings.model_fields[name].default:
                told = "is set, but has no effect: that of `model` holds for all"
                yield f"fallbacks.{number}.{name} {told}"
    for name, secret in _secrets(values):
        if not is_telling(secret):
            yield (
                f"{name} is too short or too plain to be masked in answers and in results of"
                f" tools; a secret has {LEAST_CHARS} characters or more, not letters alone"
            )


def _secrets(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield key and value of every secret outside maps."""
    for name, value in values.items():
        for secret in value if isinstance(value, tuple) else (value,):
            if isinstance(secret, SecretStr):
                yield name, secret.get_secret_value()


def _wrong_urls(values: Mapping[str, Any]) -> Iterator[Contradiction]:
    for name, value in values.items():
        is_url = name.endswith(("_url", "_endpoint", ".webhook")) and value is not None
        schemes = ("ws://", "wss://") if name.endswith("gateway_url") else ("http://", "https://")
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        # `_server` checks database URLs.
        if is_url and not name.startswith("storage.") and not text.startswith(schemes):
            # Do not quote the value: it may contain a token.
            yield name, f"must begin with {' or '.join(schemes)}"


def _side_models(settings: Settings) -> Iterator[Contradiction]:
    for name, block in settings.auxiliary:
        if block.provider == "main" and (block.base_url or block.has_key):
            text = f"must be the provider of auxiliary.{name}.base_url and api_key, not main"
            yield f"auxiliary.{name}.provider", text
    embeddings = settings.auxiliary.embeddings
    if embeddings.is_set and embeddings.model is None:
        yield "auxiliary.embeddings.model", "is required: no model is the default"
    elif embeddings.model is not None and find_spec("numpy") is None:
        yield "auxiliary.embeddings.model", "needs the extra: pip install 'parley[embeddings]'"


def _weak_tokens(settings: Settings) -> Iterator[Contradiction]:
    """Yield guessable tokens."""
    token, metrics = settings.web.token, settings.metrics.token
    # A shorter one is refused anyway.
    if token and len(token) >= MIN_SECRET_CHARS and is_weak_token(token.get_secret_value()):
        text = (
            f"must have at least {MIN_TOKEN_CHARS} characters, {MIN_TOKEN_KINDS} of them different:"
            " it lets whoever knows it in as the owner. Leave it out, and Parley makes one"
        )
        yield "web.token", text
    if metrics is not None and len(metrics) < MIN_TOKEN_CHARS:
        yield "metrics.token", f"must have at least {MIN_TOKEN_CHARS} characters"


def _identity_provider(settings: Settings) -> Iterator[Contradiction]:
    """Yield mistakes that lock everyone out or expose the sign-in."""
    oidc = settings.web.oidc
    for entry in oidc.allowed:
        kind, _, who = entry.partition(":")
        if kind not in {"email", "subject", "group"} or not who:
            yield "web.oidc.allowed", f"{entry!r} must be email:…, subject:… or group:…"
    if settings.web.auth != "oidc":
        return
    for key in ("issuer", "client_id", "allowed"):
        if not getattr(oidc, key):
            yield f"web.oidc.{key}", "is required by web.auth: oidc"
    if oidc.issuer and not is_private_way(oidc.issuer):
        yield "web.oidc.issuer", "must begin with https://"
    if "openid" not in oidc.scopes:
        yield "web.oidc.scopes", "must have openid among them"


def is_weak_token(token: str) -> bool:
    """Whether ten attempts per minute could guess a token within years."""
    return len(token) < MIN_TOKEN_CHARS or len(set(token)) < MIN_TOKEN_KINDS


def _accounts(settings: Settings) -> Iterator[Contradiction]:
    for platform in account_types():
        accounts, section = settings.platforms.accounts(platform), f"platforms.{platform}"
        for index, account in enumerate(accounts):
            block = name_of(("platforms", platform, index), settings)
            for key, cause in account.missing():
                yield f"{block}.{key}", f"is required by {block}.{cause}"
        for name, count in Counter(account.name for account in accounts).items():
            if count > 1:
                yield section, f"{count} blocks have the name {name!r}"
            if not name or ":" in name:
                text = f"the name {name!r} is not allowed; must not be empty nor hold a colon"
                yield section, text


def _people(settings: Settings) -> Iterator[Contradiction]:
    for owner in settings.access.owners:
        known, sender = _platform(owner)
        if known is None or not sender:
            yield "access.owners", f"{owner!r} must be PLATFORM:ID, such as telegram:123456"
        elif wrong := _no_id(known, sender):
            yield "access.owners", f"{owner!r}: {wrong}"
    for name in account_types():
        for entry in settings.access.listed(name):
            if wrong := _no_id(by_name()[name], entry):
                yield f"access.{name}", wrong
    for key in settings.access.groups:
        known, chat = _platform(key)
        if key != "*" and (known is None or ":" not in key):
            text = f"{key!r} must be PLATFORM:CHAT, PLATFORM:* or *; such as telegram:-1001234567"
            yield "access.groups", text
        elif known is not None and chat != "*" and not re.fullmatch(known.chat_pattern, chat):
            yield "access.groups", f"{key!r}: {chat!r} is not an id of a chat on {known.name}"


def _platform(entry: str) -> tuple[Platform | None, str]:
    """Split `telegram:123` into the platform (None if unknown) and the rest."""
    name, _, rest = entry.partition(":")
    return by_name()[name] if name in account_types() else None, rest


def _no_id(platform: Platform, text: str) -> str:
    if re.fullmatch(platform.id_pattern, text):
        return ""
    return f"{text!r} is not a {platform.id_name}; the bot tells it to whoever writes to it"


def _storage(storage: StorageSettings) -> Iterator[Contradiction]:
    url = "sqlite:///x" if storage.url is None else storage.url.get_secret_value()
    if is_server(url):
        yield from _server(storage)
        return
    scheme, separator, rest = url.partition("://")
    if not separator or scheme != "sqlite":
        yield "storage.url", "must be null, sqlite:///PATH or postgresql://…"
    elif rest.removeprefix("/") in {"", ":memory:"} or not rest.startswith("/"):
        yield "storage.url", "must name a file, as in sqlite:////var/lib/parley/parley.db"
    for key, is_set in (("direct_url", storage.direct_url), ("migrate", storage.migrate == "wait")):
        if is_set:
            yield f"storage.{key}", "is of PostgreSQL alone: storage.url names a file"


def _server(storage: StorageSettings) -> Iterator[Contradiction]:
    """Yield invalid database URLs, without quoting any part of them."""
    if find_spec("psycopg") is None:
        yield "storage.url", "PostgreSQL needs the package psycopg: pip install 'parley[postgres]'"
    shape = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=…"
    for key, url in (("url", storage.url), ("direct_url", storage.direct_url)):
        if url is not None and not _is_readable(url.get_secret_value()):
            text = f"must be {shape}, with special characters of the password as %XX (`@` is %40)"
            yield f"storage.{key}", text


def _is_readable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Several hosts may each have a port, which `urlsplit` rejects.
        hosts = parts.netloc.rpartition("@")[2].split(",")
        ports = [_PORT.fullmatch(host) for host in hosts]
    except ValueError:
        return False
    name = parts.path.removeprefix("/")
    return is_server(url) and all(ports) and bool(name) and "/" not in name and not parts.fragment


def _places(settings: Settings) -> Iterator[Contradiction]:
    """Yield tool hosts and paths that match nothing, and forbidden paths."""
    tools, terminal = settings.tools, "tools.terminal.readable"
    for host in tools.fetch.allow_hosts:
        if "/" in host:
            text = "must be a host or host:port without scheme and path, such as wiki.local"
            yield "tools.fetch.allow_hosts", f"{host!r} {text}"
    usable: dict[str, list[Path]] = {terminal: [*tools.terminal.readable]}
    for name, server in tools.mcp.items():
        if server.command is not None and server.confined is not False:
            cwd = [server.cwd] if server.cwd else []
            usable[f"tools.mcp.{name}"] = [*server.readable, *server.writable, *cwd]
    for key, paths in usable.items():
        for path in paths:
            if not path.is_absolute():
                yield key, f"'{path}' must be an absolute path, such as /srv/notes"
    if "terminal" in tools.enabled and tools.terminal.confine:
        usable[terminal] += map(Path, SYSTEM)
    else:
        del usable[terminal]
    yield from _overlaps(settings, usable)


def _overlaps(settings: Settings, usable: Mapping[str, list[Path]]) -> Iterator[Contradiction]:
    """Yield paths that overlap Parley's own files or other chats' files."""
    tools = settings.tools
    own = [settings.home, *([tools.workspace.root] if tools.workspace.root else [])]
    for key, paths in usable.items():
        use = "commands may read" if key == "tools.terminal.readable" else "it may use"
        for mine, path in product(own, paths):
            here, there = mine.resolve(), path.resolve()
            if here.is_relative_to(there) or there.is_relative_to(here):
                yield key, f"{use} {path}, which overlaps with {mine}; choose other places"
