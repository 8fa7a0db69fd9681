"""Loads the settings: merges parley.yaml, environment and command line into a validated tree.

A model block without a provider is completed from providers' environment variables.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
import platformdirs
import structlog
from pydantic import SecretStr, ValidationError

from agent.models.catalog import KEY_VARIABLES, provider_of
from agent.safety.redaction import MASK, Redactor, is_telling
from gateway.errors import SettingsError
from gateway.settings.references import Known, References, references_in
from gateway.settings.rules import contradictions, doubts
from gateway.settings.sources import Hint, Sources
from gateway.settings.tree import (
    Settings,
    at_step,
    in_map,
    name_of,
    named,
    placed,
    plain,
    secrets_in,
)

log = structlog.get_logger()

CONFIG_NAME = "parley.yaml"
LAST_USED = "settings.last.json"
"""File in PARLEY_HOME with the gateway's last used settings, without secrets."""
MIN_MAPPED_CHARS = 8
"""Shorter values in an MCP server's environment or headers are words like `true`, not secrets."""

OTLP_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""The variable with headers for OpenTelemetry's exporter: `NAME=VALUE,…`."""
PASSWORDS = ("password", "sslpassword")
"""Secret parameters of a database URL. Source: libpq, Parameter Key Words."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of `load_settings`.

    Attributes:
        values: The effective settings by dotted key, in tree order.
        origins: Source of each dotted key: "default", a file, a variable or an option.
        warnings: Warnings about old spellings and values without effect.
        config_file: The file that was read, if any.
    """

    settings: Settings
    values: dict[str, Any]
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()
    config_file: Path | None = None

    @property
    def file(self) -> Path:
        """The settings file, which need not exist."""
        return self.config_file or self.settings.home / CONFIG_NAME


def load_settings(
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    known: Known | None = None,
    hint: Hint | None = None,
) -> Loaded:
    """Read all sources once.

    Args:
        config: The file of `--config`, which must exist. None for PARLEY_CONFIG or else parley.yaml
            in PARLEY_HOME, if it exists.
        overrides: Command-line options by dotted key, including "home"; None means not given.
        known: Known secrets by path, not read again while their references stay the same.

    Raises:
        SettingsError: Lists all problems, one per line.
    """
    environ = os.environ if environ is None else environ
    options = dict(overrides or {})
    home, home_origin = _home(environ, options.pop("home", None))
    sources = Sources(hint)
    file = file_of(config, home, environ)
    is_named = bool(config or environ.get("PARLEY_CONFIG"))
    try:
        is_there = is_named or file.exists()
    except OSError as exc:
        raise SettingsError(f"{file}: cannot be read: {exc.strerror}") from exc
    if is_there:
        sources.add_file(file, str(file) if is_named else CONFIG_NAME)
    sources.add_environment(environ)
    sources.add_options(options)
    references = References(environ, known)
    settings = _resolved(_validated(sources, home), references, sources)
    settings, added = _with_providers(settings, environ)
    # Again, since a key from a provider's variable may be a reference, too.
    settings = _resolved(settings, references, sources)
    values = {name: value for name, (_, value) in named(settings).items()}
    origins = {name: sources.origin(path) for name, (path, _) in named(settings).items()}
    origins |= {"home": home_origin, **added}
    # After the providers, so that keys from their variables are checked as well.
    problems = []
    for key, text in contradictions(settings, values):
        # For a list of blocks use the first block's origin.
        inside = (of for name, of in origins.items() if f"{name}.".startswith(f"{key}."))
        problems.append(f"{key}: {text} ({next(inside, 'default')})")
    _refuse(problems)
    warnings = (
        *sources.warnings,
        *(f"{name_of(path, settings)}: {text}" for path, text in references.warnings),
        *doubts(settings, values),
    )
    return Loaded(settings, values, origins, warnings, file if is_there else None)


def read_foreign(file: Path, home: Path) -> Settings:
    """Read the settings file of a backup or another home.

    Does not resolve references or apply environment variables.
    """
    sources = Sources()
    sources.add_file(file, file.name)
    return _validated(sources, home)


def keep_last_used(settings: Settings) -> None:
    """Store the settings without secrets, for read-only commands."""
    tree = settings.model_dump(exclude={"home"}, exclude_defaults=True)
    redactor = redactor_of(settings)
    kept = plain(tree, lambda secret: getattr(secret, "reference", MASK), redactor.text)
    text = orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str)
    try:
        replace_closed(settings.home / LAST_USED, text)
    except OSError as exc:
        log.warning("settings_not_noted", error=str(exc))


def replace_closed(
    file: Path, content: bytes, ready: Callable[[Path], object] = lambda _: None
) -> None:
    """Write a file atomically, readable only by its owner.

    Args:
        ready: Called with the draft before it replaces the file; may refuse or change it.
    """
    draft = file.with_name(f".{file.name}.new")
    # Left over from a killed process.
    draft.unlink(missing_ok=True)
    try:
        # Restrict the mode before writing: the file may contain tokens.
        draft.touch(mode=0o600, exist_ok=False)
        draft.write_bytes(content)
        ready(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def last_used(home: Path, file: Path) -> Loaded | None:
    """Return the settings last used by this home's gateway, or None.

    Reads only the secrets of `storage`: from their references, else from the settings file and the
    environment, ignoring other mistakes there.
    """
    sources = Sources()
    with suppress(SettingsError):
        sources.add_file(file, file.name)
    sources.add_environment(os.environ)
    try:
        settings = read_foreign(home / LAST_USED, home)
    except SettingsError:
        return None
    masked = [name for name, value in settings.storage if value == SecretStr(MASK)]
    given = {name: reduce(at_step, ("storage", name), sources.tree) for name in masked}
    found = {name: SecretStr(str(value or MASK)) for name, value in given.items()}
    references = References(os.environ)
    storage = references.resolved(settings.storage.model_copy(update=found))
    if references.problems or any(value == SecretStr(MASK) for _, value in storage):
        return None
    settings = settings.model_copy(update={"storage": storage})
    return Loaded(settings, {}, {}, config_file=file if file.exists() else None)


def _resolved(settings: Settings, references: References, sources: Sources) -> Settings:
    resolved: Settings = references.resolved(settings)
    wrong = references.problems
    _refuse([f"{name_of(at, settings)}: {text} ({sources.origin(at)})" for at, text in wrong])
    return resolved


def secret_values(settings: Settings) -> tuple[str, ...]:
    """Return all configured secrets and all providers' keys in the environment."""
    values = (
        secret.get_secret_value()
        for path, secret in secrets_in(settings)
        # A map's value may also be an ordinary word.
        if len(secret) >= MIN_MAPPED_CHARS or not in_map(path)
    )
    urls = (settings.storage.url, settings.storage.direct_url)
    told = (url.get_secret_value() for url in urls if url is not None)
    passwords = (password for url in told for password in _passwords_in(url))
    headers = (each.partition("=")[2] for each in os.environ.get(OTLP_HEADERS, "").split(","))
    return (
        *values,
        *provider_keys().values(),
        *passwords,
        *(it for it in headers if len(it) >= MIN_MAPPED_CHARS),
    )


def _passwords_in(url: str) -> list[str]:
    """Return the passwords in a URL, as written and decoded.

    Ordinary words are skipped: logs need them, and the whole URL is masked anyway.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    named = (pair.partition("=") for pair in parts.query.split("&"))
    found = [parts.password or "", *(value for name, _, value in named if name in PASSWORDS)]
    forms = (form for each in found for form in dict.fromkeys((each, unquote(each))))
    return [form for form in forms if is_telling(form)]


def redactor_of(settings: Settings) -> Redactor:
    """Return a redactor of all secrets in the settings."""
    redactor = Redactor(secret_values(settings))
    for _, secret in references_in(settings):
        secret.tell(redactor.learn)
    return redactor


def home_of(option: str | Path | None) -> Path:
    """Return PARLEY_HOME for commands that need no other setting."""
    return _home(os.environ, option)[0]


def file_of(
    config: Path | None, home: str | Path | None, environ: Mapping[str, str] = os.environ
) -> Path:
    """Return the settings file selected by these options; it may not exist."""
    if named := config or environ.get("PARLEY_CONFIG"):
        return _expanded(named, "--config" if config else "PARLEY_CONFIG")
    return _home(environ, home)[0] / CONFIG_NAME


def _home(environ: Mapping[str, str], option: str | Path | None) -> tuple[Path, str]:
    if option:
        return _expanded(option, "--home").absolute(), "--home"
    if named := environ.get("PARLEY_HOME"):
        return _expanded(named, "PARLEY_HOME").absolute(), "PARLEY_HOME"
    return Path(platformdirs.user_data_dir("parley")), "default"


def _expanded(path: str | Path, origin: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise SettingsError(f"{origin}: {str(path)!r} names a user that does not exist") from exc


def _validated(sources: Sources, home: Path) -> Settings:
    problems = list(sources.problems)
    try:
        settings = Settings.model_validate({**sources.tree, "home": home})
    except ValidationError as exc:
        problems += map(sources.refused, exc.errors(include_url=False))
        raise SettingsError("\n".join(problems)) from exc
    _refuse(problems)
    return settings


def _refuse(problems: list[str]) -> None:
    if problems:
        raise SettingsError("\n".join(problems))


def _with_providers(
    settings: Settings, environ: Mapping[str, str]
) -> tuple[Settings, dict[str, str]]:
    """Complete every model block; return the settings and the origins of added values.

    Provider `auto` becomes a concrete provider. A key in the block overrides variables.
    """
    # Without its own provider, server or key, a side task uses those of `model`.
    own = [
        ("auxiliary", task)
        for task, block in settings.auxiliary
        if block.provider != "main"
        and (block.provider != "auto" or block.base_url or block.has_key)
    ]
    origins, keys = dict[str, str](), provider_keys(environ)
    for path in (("model",), *(("fallbacks", n) for n in range(len(settings.fallbacks))), *own):
        name = ".".join(map(str, path))
        block: Any = reduce(at_step, path, settings)
        provider = block.provider
        if provider == "auto":
            provider, origins[f"{name}.provider"] = _decide(block, keys, name)
            settings = placed(settings, (*path, "provider"), provider)
        key, origin = SecretStr(keys.get(provider, "")), KEY_VARIABLES.get(provider, "")
        if block.api_keys:
            key, origin = block.api_keys[0], f"{name}.api_keys"
        if key and not block.api_key:
            settings = placed(settings, (*path, "api_key"), key)
            origins[f"{name}.api_key"] = origin
    return settings, origins


def _decide(block: Any, keys: Mapping[str, str], name: str) -> tuple[str, str]:
    if block.base_url:
        return "openai", f"{name}.base_url"
    if key := block.api_key or next(iter(block.api_keys), None):
        return provider_of(key.get_secret_value()) or "openai", f"{name}.api_key"
    provider = next(iter(keys), "offline")
    return provider, KEY_VARIABLES.get(provider, "default")


def provider_keys(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the providers' keys in the environment."""
    found = {name: environ.get(variable, "").strip() for name, variable in KEY_VARIABLES.items()}
    return {name: key for name, key in found.items() if key}
