"""Hermes' config.yaml and .env as settings of Parley, for the operator to read and put in place.

What has a counterpart is converted; the report names all else. The result lies beside parley.yaml
and no gateway reads it there, so nobody is let in, and nothing runs, before somebody has seen it.
No secret is copied: the settings refer to variables of the environment by Hermes' names.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from agent.safety.redaction import Redactor
from gateway.settings.foreign import Counterpart, counterpart, leaves
from gateway.settings.references import unresolved
from gateway.settings.tree import Settings, all_keys, dotted
from gateway.setup.hermes_home import HermesHome, Line

PROVIDERS = frozenset({"auto", "anthropic", "openai", "openrouter", "nous"})
"""Providers that have the same name in both."""
OWN_ADDRESSES = ("openrouter.ai", "api.anthropic.com", "inference-api.nousresearch.com")
"""Hosts that a provider brings itself: Parley knows them too."""
SECRETS = {
    "TELEGRAM_BOT_TOKEN": "platforms.telegram.token",
    "DISCORD_BOT_TOKEN": "platforms.discord.token",
    "SLACK_BOT_TOKEN": "platforms.slack.bot_token",
    "SLACK_APP_TOKEN": "platforms.slack.app_token",
    "SLACK_SIGNING_SECRET": "platforms.slack.signing_secret",
}
MODEL_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "nous": "NOUS_API_KEY",
}
ALLOWED = {
    "TELEGRAM_ALLOWED_USERS": "access.telegram",
    "DISCORD_ALLOWED_USERS": "access.discord",
    "SLACK_ALLOWED_USERS": "access.slack",
}
_SERVER_NAME = re.compile(r"[a-zA-Z0-9_-]{1,32}")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_OPENING = """\
# Made by `parley import hermes`. Read it, then make it parley.yaml, or copy what you want; until
# then no gateway uses it. docs/import.md says what became of what.
"""


@dataclass(slots=True)
class SettingsFound:
    """What a home's settings are here.

    Attributes:
        tree: For parley.yaml.
        secrets: The variable to which each key with a secret refers, by the path of that key.
        lines: The report.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    secrets: dict[tuple[str, ...], str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def put(self, key: str, value: Any, *, of: str) -> None:
        """Set a key of Parley's to what one of Hermes' says; instructions add up."""
        if key == "agent.instructions" and "instructions" in self.tree.get("agent", {}):
            value = f"{self.tree['agent']['instructions']}\n\n{value}"
        _set(self.tree, tuple(key.split(".")), value)
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        text = Redactor().text(text) if isinstance(text, str) else ""
        # People, addresses and programs in ASCII: other letters may look like Latin ones.
        self.lines.append(
            Line("settings", of, "taken", key, text if key.startswith("agent.") else _ascii(text))
        )

    def leave(self, what: str, note: str) -> None:
        """Note that a setting is not taken over."""
        self.lines.append(Line("settings", what, "left out", note))


def found_in(home: HermesHome) -> SettingsFound:
    """Translate the settings and variables of a Hermes home."""
    found = SettingsFound()
    _model(home, found)
    _fallbacks(home, found)
    _summaries(home, found)
    _servers(home.settings.get("mcp_servers"), found)
    _groups(home.settings, found)
    _rest(home.settings, found)
    _variables(home.variables, found)
    _without_secrets(found)
    _checked(found)
    for path, variable in found.secrets.items():
        _set(found.tree, path, f"env:{variable}")
        note = f"set it in the environment: {'.'.join(path)} refers to it"
        found.lines.append(Line("secrets", variable, "left out", note))
    return found


def as_yaml(tree: Mapping[str, Any]) -> str:
    """Return settings as a file."""
    body = yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True) if tree else ""
    return _OPENING + body


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        inner = tree.setdefault(step, {})
        tree = inner if isinstance(inner, dict) else {}
    tree[path[-1]] = value


def _ascii(text: str) -> str:
    return text.encode("unicode_escape").decode()


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _model(home: HermesHome, found: SettingsFound) -> None:
    told = home.settings.get("model")
    block = _section(told) if not isinstance(told, str) else {"default": told}
    name = block.get("default") or block.get("model") or block.get("name")
    if name:
        found.put("model.name", str(name), of="model")
    _provider(home, block, "model", found)
    for key, mine in (("context_length", "context_length"), ("max_tokens", "max_output_tokens")):
        if block.get(key):
            found.put(f"model.{mine}", block[key], of=f"model.{key}")
    if ttl := block.get("cache_ttl"):
        found.put("prompt_caching.cache_ttl", ttl, of="model.cache_ttl")
    provider = found.tree.get("model", {}).get("provider", "auto")
    for each, variable in MODEL_KEYS.items():
        fits = provider in {each, "auto"} and ("model", "api_key") not in found.secrets
        if fits and variable in home.variables:
            found.secrets["model", "api_key"] = variable


def _provider(
    home: HermesHome, block: Mapping[str, Any], place: str, found: SettingsFound
) -> dict[str, Any]:
    """Put provider and address of a model into the tree under `place`; returns what was put."""
    named = str(block.get("provider") or "auto")
    own = _own_servers(home.settings).get(named.removeprefix("custom:"), {})
    address = block.get("base_url") or own.get("base_url")
    told: dict[str, Any] = {}
    if address and not any(host in str(address) for host in OWN_ADDRESSES):
        told = {"provider": "openai", "base_url": str(address)}
    elif named in PROVIDERS:
        told = {"provider": named}
    elif named != "custom":
        found.leave(f"{place}.provider: {named}", "there is no such provider; name a `base_url`")
    if place == "model":
        for key, value in told.items():
            found.put(f"model.{key}", value, of=f"model.{key}")
        if block.get("api_key") or own.get("api_key"):
            found.secrets["model", "api_key"] = "HERMES_MODEL_KEY"
    return told


def _own_servers(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the servers that Hermes' settings name, by name."""
    listed = settings.get("custom_providers")
    each_of = listed if isinstance(listed, list) else ()
    named = {str(each.get("name")): each for each in each_of if isinstance(each, dict)}
    blocks = _section(settings.get("providers"))
    return named | {
        name: {"base_url": each.get("base_url") or each.get("api"), **each}
        for name, each in blocks.items()
        if isinstance(each, dict)
    }


def _fallbacks(home: HermesHome, found: SettingsFound) -> None:
    told = home.settings.get("fallback_providers") or home.settings.get("fallback_model")
    blocks = told if isinstance(told, list) else [told]
    made = [
        {"name": str(name)} | _provider(home, block, "fallbacks", found)
        for block in blocks
        if isinstance(block, dict) and (name := block.get("model") or block.get("default"))
    ]
    if made:
        found.put("fallbacks", made, of="fallback_providers")


def _summaries(home: HermesHome, found: SettingsFound) -> None:
    """Take over who writes summaries."""
    told = _section(_section(home.settings.get("auxiliary")).get("compression"))
    block = {key: told[key] for key in ("model", "base_url") if told.get(key) not in _UNSET}
    if told.get("provider") == "main":
        block["provider"] = "main"
    else:
        server = _provider(home, told, "auxiliary.compression", found)
        if not server and "model" in block:
            found.leave("auxiliary.compression.model", "Parley does not know its provider")
            return
        block |= server
    for key, value in block.items():
        if value != "auto":
            found.put(f"auxiliary.compression.{key}", value, of=f"auxiliary.compression.{key}")


_UNSET = ("", None, "auto")


def _servers(told: Any, found: SettingsFound) -> None:
    """Take MCP servers over: variables and headers of theirs count as secrets."""
    for name, server in _section(told).items():
        if not isinstance(server, dict) or not _SERVER_NAME.fullmatch(str(name)):
            found.leave(f"mcp_servers.{name}", "no name of a server, or no server")
            continue
        block = {key: server[key] for key in ("command", "args", "url") if server.get(key)}
        block |= {"enabled": server["enabled"]} if "enabled" in server else {}
        block |= {"timeout_s": server["timeout"]} if server.get("timeout") else {}
        if server.get("connect_timeout"):
            block["start_timeout_s"] = server["connect_timeout"]
        chosen = _section(server.get("tools"))
        block |= {"tools": chosen["include"]} if chosen.get("include") else {}
        _set(found.tree, ("tools", "mcp", name), block)
        note = f"tools.mcp.{name}: runs unconfined, as it did; `confined: true` changes that"
        called = [block.get("url") or block.get("command", ""), *_listed(block.get("args"))]
        text = _ascii(Redactor().text(shlex.join(map(str, called))))
        found.lines.append(Line("settings", f"mcp_servers.{name}", "taken", note, text))
        for kind in ("env", "headers"):
            for key in _section(server.get(kind)):
                variable = re.sub("[^A-Z0-9_]", "_", f"MCP_{name}_{key}".upper())
                found.secrets["tools", "mcp", name, kind, key] = variable


def _groups(settings: Mapping[str, Any], found: SettingsFound) -> None:
    rules: dict[str, dict[str, str]] = {}
    for platform in ("telegram", "discord", "slack"):
        block = _section(settings.get(platform))
        if block.get("require_mention") is False:
            rules[f"{platform}:*"] = {"respond": "always"}
            found.put("access.groups", rules, of=f"{platform}.require_mention")
        if chats := _listed(block.get("free_response_channels")):
            rules |= {f"{platform}:{chat}": {"respond": "always"} for chat in chats}
            found.put("access.groups", rules, of=f"{platform}.free_response_channels")


def _listed(value: Any) -> list[str]:
    parts = value if isinstance(value, list) else str(value or "").split(",")
    return [text for part in parts if (text := str(part).strip())]


ENGINES = frozenset({"compressor", "rounds", "lcm"})
_DONE = frozenset({
    *("model", "fallback_providers", "fallback_model", "custom_providers", "providers"),
    *("mcp_servers", "_config_version"),
    *(f"auxiliary.compression.{key}" for key in ("model", "provider", "base_url")),
    *("telegram.require_mention", "discord.require_mention", "slack.require_mention"),
    *("telegram.free_response_channels", "discord.free_response_channels"),
    "slack.free_response_channels",
})
_WORDS: dict[str, Mapping[Any, Any]] = {
    "group_sessions_per_user": {True: "per_user", False: "shared"},
    "unauthorized_dm_behavior": {"pair": "pairing", "ignore": "allowlist"},
    "display.tool_progress": {"off": "off", False: "off", "new": "status", "all": "status"},
    "streaming.transport": {"draft": "draft", "edit": "edit"},
    "logging.level": {each.upper(): each for each in ("debug", "info", "warning", "error")},
}
"""Values that are called otherwise here; any other value is not taken over."""
_CHANGED: dict[str, Callable[[Any], Any]] = {
    "agent.restart_drain_timeout": lambda seconds: seconds or None,
    "delegation.child_timeout_seconds": lambda seconds: seconds or None,
    "terminal.cwd": lambda path: None if path in {"", ".", "auto"} else path,
}
_BY_HAND = {
    "approvals.mode": "who is asked stays as it is by default; set `tools.approval` yourself",
    "terminal.backend": "`tools.sandbox.backend` is auto: the first of Parley's own that works",
    "approvals.timeout": "nothing is blocked meanwhile; see `tools.approval_timeout_s`",
    "terminal.container_memory": "see `tools.terminal.max_memory_bytes`",
    "terminal.container_disk": "see `tools.workspace.max_bytes`",
    "terminal.docker_network": "commands have no network; see `tools.terminal.network`",
    "terminal.docker_volumes": "name paths in `tools.terminal.readable`",
    "sessions.retention_days": "nothing is erased by itself; set `retention.transcript_days`",
    "sessions.auto_prune": "nothing is erased by itself; set `retention.transcript_days`",
    "security.allow_private_urls": "name hosts in `tools.fetch.allow_hosts`",
}
"""Settings that would let more happen than the default does, or that fit to Hermes alone."""


_HARMLESS = (
    *("agent.", "compression.", "auxiliary.", "prompt_caching.", "sessions."),
    "logging.level",
)
"""Keys with the same meaning in both, which neither let people in, nor let tools do more, nor run
anything; each address among them is a question."""


def _rest(settings: Mapping[str, Any], found: SettingsFound) -> None:
    keys = all_keys()
    lacking: dict[tuple[str, str], list[str]] = {}
    for name, value in leaves(settings):
        if name in _DONE or name.split(".")[0] in _DONE or value in ("", None, [], {}):
            continue
        own = keys.find(tuple(name.split(".")))
        here = counterpart(name)
        if name in _BY_HAND:
            found.leave(name, _BY_HAND[name])
        elif name == "context.engine" and str(value) not in ENGINES:
            found.leave(name, "a plugin of Hermes' runs in an adapter: docs/engines.md")
        elif own is not None and own.kind == "value" and name.startswith(_HARMLESS):
            _take(name, name, value, found)
        elif here is not None and here.key is not None and _is_taken(name, here):
            _take(name, here.key, value, found)
        elif here is not None and here.key is not None:
            found.leave(name, f"see `{here.key}`: {here.note}")
        else:
            why = here.note if here else "Parley has no such setting"
            why = why if own is None else "a key of Parley that Hermes does not have"
            lacking.setdefault((name.partition(".")[0], why), []).append(name)
    for (section, why), names in lacking.items():
        found.leave(f"{section}: {len(names)} settings" if len(names) > 1 else names[0], why)


def _is_taken(name: str, here: Counterpart) -> bool:
    """Whether a value means the same in both; of others the report tells where to look."""
    return not here.note or name in _WORDS or name in _CHANGED


def _take(name: str, mine: str, value: Any, found: SettingsFound) -> None:
    if isinstance(value, list | dict) and (name in _WORDS or name in _CHANGED):
        found.leave(name, f"`{mine}` has other values")
        return
    if name in _WORDS:
        value = _WORDS[name].get(value)
        if value is None:
            found.leave(name, f"`{mine}` has other values")
            return
    elif name in _CHANGED:
        value = _CHANGED[name](value)
        if value is None:
            return
    found.put(mine, value, of=name)


def _variables(variables: Mapping[str, str], found: SettingsFound) -> None:
    for name, key in SECRETS.items():
        if name in variables:
            found.secrets[tuple(key.split("."))] = name
    for name, key in ALLOWED.items():
        if people := _listed(variables.get(name)):
            found.put(key, people, of=name)
    taken = {*found.secrets.values(), *ALLOWED}
    for name in sorted(set(variables) - taken):
        if name.endswith("ALLOW_ALL_USERS"):
            found.leave(name, "strangers stay out; set `access.mode: open` yourself")
        elif any(word in name for word in _SECRET_WORDS):
            note = "no setting of Parley's needs it"
            found.lines.append(Line("secrets", name, "left out", note))
        else:
            found.leave(name, "a variable that Parley does not know")


def _without_secrets(found: SettingsFound) -> None:
    """Take out what holds something that looks like a secret where no secret belongs."""
    redactor = Redactor()
    for name, value in list(leaves(found.tree)):
        told = orjson.dumps(value, default=str).decode()
        if redactor.text(told) != told:
            path = name.split(".")
            # Of a server nothing is left: it would be called without what it needs.
            _drop(found.tree, path[:3] if path[:2] == ["tools", "mcp"] else path)
            found.leave(".".join(path[:3]), "it holds a secret; write it as a reference yourself")


def _checked(found: SettingsFound) -> None:
    """Take out what Parley's settings do not allow."""
    for _ in range(len(found.lines) + 1):
        try:
            Settings.model_validate({**_with_blocks(found.tree), "home": Path("/")})
        except ValidationError as exc:
            wrong = exc.errors(include_url=False, include_input=False)[0]
            path = [step for step in wrong["loc"] if isinstance(step, str)]
            _drop(found.tree, path)
            key = ".".join(path)
            taken = [e for e in found.lines if (e.outcome, e.note) == ("taken", key)]
            found.lines = [each for each in found.lines if each not in taken]
            found.leave(taken[0].what if taken else key, f"not allowed here: {wrong['msg']}")
        else:
            break
    whole = Settings.model_validate({**_with_blocks(found.tree), "home": Path("/")})
    for place, _ in unresolved(whole):
        _drop(found.tree, [step for step in place if isinstance(step, str)])
        found.leave(dotted(place), "it refers to a secret of this machine; write it yourself")
    # What was taken out needs no variables.
    servers = _section(_section(found.tree.get("tools")).get("mcp"))
    found.secrets = {
        path: named
        for path, named in found.secrets.items()
        if path[:2] != ("tools", "mcp") or path[2] in servers
    }


def _with_blocks(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with a list around the one block of each platform."""
    platforms = {name: [block] for name, block in tree.get("platforms", {}).items()}
    return {**tree, "platforms": platforms} if platforms else dict(tree)


def _drop(tree: dict[str, Any], path: list[str]) -> None:
    """Take a value out, or the innermost map around it that is there."""
    for end in range(len(path), 0, -1):
        above: Any = tree
        for step in path[: end - 1]:
            above = above.get(step) if isinstance(above, dict) else None
        if isinstance(above, dict) and path[end - 1] in above:
            del above[path[end - 1]]
            # A section that is left without a key says nothing.
            if not above and end > 1:
                _drop(tree, path[: end - 1])
            return
