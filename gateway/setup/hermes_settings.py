"""Hermes' config.yaml and .env as settings of Parley, for the operator to read and put in place.

What has a counterpart is converted; the report names all else. The result lies beside parley.yaml
and no gateway reads it there, so nobody is let in, and nothing runs, before somebody has seen it.
No secret is copied: the settings refer to variables of the environment by Hermes' names.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from agent.safety.redaction import Redactor
from gateway.settings.foreign import counterpart, leaves
from gateway.settings.references import is_reference
from gateway.settings.tree import Settings, all_keys
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
PLATFORMS = ("telegram", "discord", "slack")
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
        secrets: Variables to which keys refer, with the places of these.
        lines: The report.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def put(self, key: str, value: Any, *, of: str, note: str = "", shown: Any = None) -> bool:
        """Set a key of Parley's to what one of Hermes' says, if that is allowed and no secret.

        Instructions add up.

        Args:
            note: Goes on behind the key in the report.
            shown: For the report; None for the value.
        """
        told = orjson.dumps(value, default=str).decode()
        if Redactor().text(told) != told or (isinstance(value, str) and is_reference(value)):
            self.leave(key, "it holds a secret; write it as a reference yourself")
            return False
        if key == "agent.instructions" and "instructions" in self.tree.get("agent", {}):
            value = f"{self.tree['agent']['instructions']}\n\n{value}"
        tree = deepcopy(self.tree)
        _set(tree, key.split("."), value)
        # The one block of each platform is a list with one element.
        platforms = {name: [block] for name, block in tree.get("platforms", {}).items()}
        try:
            Settings.model_validate({**tree, "platforms": platforms, "home": Path("/")})
        except ValidationError as exc:
            wrong = exc.errors(include_url=False, include_input=False)[0]
            self.leave(of, f"not allowed here: {wrong['msg']}")
            return False
        self.tree = tree
        text = value if shown is None else shown
        text = ", ".join(map(str, text)) if isinstance(text, list) else text
        text = Redactor().text(text) if isinstance(text, str) else ""
        if not key.startswith("agent."):
            # People, addresses and programs in ASCII: other letters may look like Latin ones.
            text = text.encode("unicode_escape").decode()
        self.lines.append(Line("settings", of, "taken", key + note, text))
        return True

    def refer(self, path: tuple[str, ...], variable: str) -> None:
        """Have a key refer to a variable of the environment."""
        self.secrets[variable] = path
        _set(self.tree, path, f"env:{variable}")

    def leave(self, what: str, note: str) -> None:
        """Note that a setting is not taken over."""
        self.lines.append(Line("settings", what, "left out", note))


def found_in(home: HermesHome) -> SettingsFound:
    """Translate the settings and variables of a Hermes home."""
    found = SettingsFound()
    _model(home, found)
    _fallbacks(home.settings, found)
    _summaries(home.settings, found)
    _servers(home.settings.get("mcp_servers"), found)
    _groups(home.settings, found)
    _rest(home.settings, found)
    _variables(home.variables, found)
    for variable, path in found.secrets.items():
        note = f"set it in the environment: {'.'.join(path)} refers to it"
        found.lines.append(Line("secrets", variable, "left out", note))
    return found


def as_yaml(tree: Mapping[str, Any]) -> str:
    """Return settings as a file."""
    body = yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True) if tree else ""
    return _OPENING + body


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _model(home: HermesHome, found: SettingsFound) -> None:
    told = home.settings.get("model")
    block = {"default": told} if isinstance(told, str) else _section(told)
    if name := block.get("default") or block.get("model") or block.get("name"):
        found.put("model.name", str(name), of="model")
    for key, value in _provider(home.settings, block, "model", found).items():
        found.put(f"model.{key}", value, of=f"model.{key}")
    for key, mine in _MODEL.items():
        if block.get(key):
            found.put(mine, block[key], of=f"model.{key}")
    if block.get("api_key") or _server(home.settings, block).get("api_key"):
        found.refer(("model", "api_key"), "HERMES_MODEL_KEY")
        return
    provider = found.tree.get("model", {}).get("provider", "auto")
    for each, variable in MODEL_KEYS.items():
        if provider in {each, "auto"} and variable in home.variables:
            found.refer(("model", "api_key"), variable)
            return


_MODEL = {
    "context_length": "model.context_length",
    "max_tokens": "model.max_output_tokens",
    "cache_ttl": "prompt_caching.cache_ttl",
}


def _provider(
    settings: Mapping[str, Any], block: Mapping[str, Any], place: str, found: SettingsFound
) -> dict[str, str]:
    """Return provider and address of a model; nothing, with a line, if Parley knows neither."""
    named = str(block.get("provider") or "auto")
    address = block.get("base_url") or _server(settings, block).get("base_url")
    if address and not any(host in str(address) for host in OWN_ADDRESSES):
        return {"provider": "openai", "base_url": str(address)}
    if named in PROVIDERS:
        return {"provider": named}
    if named != "custom":
        found.leave(f"{place}.provider: {named}", "there is no such provider; name a `base_url`")
    return {}


def _server(settings: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Hermes' settings say of the server that a model's block names."""
    name = str(block.get("provider")).removeprefix("custom:")
    server = _section(_section(settings.get("providers")).get(name))
    listed = settings.get("custom_providers")
    for each in listed if isinstance(listed, list) else ():
        server = server or (each if _section(each).get("name") == name else {})
    return {**server, "base_url": server.get("base_url") or server.get("api")}


def _fallbacks(settings: Mapping[str, Any], found: SettingsFound) -> None:
    told = settings.get("fallback_providers") or settings.get("fallback_model")
    made = [
        {"name": str(name)} | _provider(settings, block, "fallbacks", found)
        for block in (told if isinstance(told, list) else [told])
        if isinstance(block, dict) and (name := block.get("model") or block.get("default"))
    ]
    if made:
        found.put("fallbacks", made, of="fallback_providers")


def _summaries(settings: Mapping[str, Any], found: SettingsFound) -> None:
    """Take over who writes summaries."""
    place = "auxiliary.compression"
    told = _section(_section(settings.get("auxiliary")).get("compression"))
    is_main = told.get("provider") == "main"
    block = {"provider": "main"} if is_main else _provider(settings, told, place, found)
    if not block:
        found.leave(f"{place}.model", "Parley does not know its provider")
        return
    for key, value in {**block, "model": told.get("model")}.items():
        if value not in ("", None, "auto"):
            found.put(f"{place}.{key}", value, of=f"{place}.{key}")


def _servers(told: Any, found: SettingsFound) -> None:
    """Take MCP servers over: variables and headers of theirs count as secrets."""
    for name, server in _section(told).items():
        if not isinstance(server, dict) or not _SERVER_NAME.fullmatch(name):
            found.leave(f"mcp_servers.{name}", "no name of a server, or no server")
            continue
        block = {mine: server[key] for key, mine in _SERVER.items() if server.get(key)}
        block |= {"enabled": server["enabled"]} if "enabled" in server else {}
        if chosen := _section(server.get("tools")).get("include"):
            block["tools"] = chosen
        note = ": runs unconfined, as it did; `confined: true` changes that"
        called = [block.get("url") or block.get("command", ""), *_listed(block.get("args"))]
        shown, key = shlex.join(map(str, called)), f"tools.mcp.{name}"
        if found.put(key, block, of=f"mcp_servers.{name}", note=note, shown=shown):
            secrets = [
                (kind, each) for kind in ("env", "headers") for each in _section(server.get(kind))
            ]
            for kind, each in secrets:
                variable = re.sub("[^A-Z0-9_]", "_", f"MCP_{name}_{each}".upper())
                found.refer(("tools", "mcp", name, kind, each), variable)


_SERVER = {
    "command": "command",
    "args": "args",
    "url": "url",
    "timeout": "timeout_s",
    "connect_timeout": "start_timeout_s",
}


def _groups(settings: Mapping[str, Any], found: SettingsFound) -> None:
    rules: dict[str, dict[str, str]] = {}
    for platform in PLATFORMS:
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


_DONE = frozenset({
    *("model", "fallback_providers", "fallback_model", "custom_providers", "providers"),
    *("mcp_servers", "_config_version"),
    *(f"auxiliary.compression.{key}" for key in ("model", "provider", "base_url")),
    *(f"{each}.require_mention" for each in PLATFORMS),
    *(f"{each}.free_response_channels" for each in PLATFORMS),
})
_VALUES: dict[str, Callable[[Any], Any]] = {
    "group_sessions_per_user": {True: "per_user", False: "shared"}.get,
    "unauthorized_dm_behavior": {"pair": "pairing", "ignore": "allowlist"}.get,
    "display.tool_progress": {"off": "off", False: "off", "new": "status", "all": "status"}.get,
    "streaming.transport": {"draft": "draft", "edit": "edit"}.get,
    "logging.level": {each.upper(): each for each in ("debug", "info", "warning", "error")}.get,
    "terminal.cwd": lambda path: None if path in {".", "auto"} else path,
}
"""What has other values here; those that give None are not taken over."""
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
        own, here = keys.find(tuple(name.split("."))), counterpart(name)
        if own is not None and own.kind == "value" and name.startswith(_HARMLESS):
            _take(name, name, value, found)
        elif here is None or here.key is None:
            why = here.note if here else "Parley has no such setting"
            why = why if own is None else "Parley has this key; set it yourself"
            lacking.setdefault((name.partition(".")[0], why), []).append(name)
        elif name in _VALUES or not here.note:
            _take(name, here.key, value, found)
        else:
            found.leave(name, f"see `{here.key}`: {here.note}")
    for (section, why), names in lacking.items():
        found.leave(f"{section}: {len(names)} settings" if len(names) > 1 else names[0], why)


def _take(name: str, mine: str, value: Any, found: SettingsFound) -> None:
    if name in _VALUES:
        value = None if isinstance(value, list | dict) else _VALUES[name](value)
    if value is None:
        found.leave(name, f"`{mine}` has other values")
    else:
        found.put(mine, value, of=name)


def _variables(variables: Mapping[str, str], found: SettingsFound) -> None:
    for name, key in SECRETS.items():
        if name in variables:
            found.refer(tuple(key.split(".")), name)
    for platform in PLATFORMS:
        name = f"{platform.upper()}_ALLOWED_USERS"
        if people := _listed(variables.get(name)):
            found.put(f"access.{platform}", people, of=name)
    for name in sorted(set(variables) - found.secrets.keys()):
        if name.endswith("ALLOW_ALL_USERS"):
            found.leave(name, "strangers stay out; set `access.mode: open` yourself")
        elif any(word in name for word in _SECRET_WORDS):
            note = "no setting of Parley's needs it"
            found.lines.append(Line("secrets", name, "left out", note))
        elif not name.endswith("_ALLOWED_USERS"):
            found.leave(name, "a variable that Parley does not know")
