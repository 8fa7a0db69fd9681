"""Maps Hermes settings to Parley settings, for hints and imports.

An import writes the settings of config.yaml and .env to a file that no gateway reads, so access
changes only when the operator puts it in place. Keys with the same meaning are imported; the report
names all others. Secrets are not copied: the settings refer to environment variables by their
Hermes names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agent.models.catalog import KEY_VARIABLES
from agent.safety.redaction import Redactor
from gateway.settings.references import is_reference
from gateway.settings.tree import Settings
from gateway.setup.hermes_home import HermesHome, Line

_NO_VOICE = "Parley neither speaks nor listens"
_GROUPS = 'a rule of `access.groups`, such as {"telegram:*": {respond: always}}'

HERMES: Mapping[str, tuple[str | None, str]] = {
    "model": ("model.name", ""),
    "model.default": ("model.name", ""),
    "model.model": ("model.name", ""),
    "model.max_tokens": ("model.max_output_tokens", ""),
    "model.api_mode": (None, "the provider says which API is spoken"),
    "fallback_*": ("fallbacks", "blocks like `model`"),
    "providers": ("model.base_url", "an own server is one block of `model` or `fallbacks`"),
    "custom_providers": ("model.base_url", "an own server is one block of `model` or `fallbacks`"),
    "credential_pool_strategies": ("model.api_keys", "several keys of one model take turns"),
    "toolsets": ("tools.enabled", "names of tools, no sets"),
    "max_concurrent_sessions": ("queue.max_concurrent_turns", "counts running turns"),
    "max_live_sessions": (None, "no session is held in memory"),
    "mcp_servers": ("tools.mcp", "its secrets as references"),
    "mcp_discovery_timeout": ("tools.mcp", "`start_timeout_s` of a server"),
    "timezone": ("sessions.timezone", ""),
    "command_allowlist": ("tools.policy.rules", "rows of the table"),
    "quick_commands": (None, "there are no commands of one's own"),
    "personalities": ("agent.instructions", "or SOUL.md in PARLEY_HOME"),
    "prefill_messages_file": ("agent.prefill", "the messages themselves"),
    "context_file_max_chars": (None, "20,000 characters, a constant"),
    "file_read_max_chars": (None, "long results are cut by `tools.output`"),
    "unauthorized_dm_behavior": ("access.mode", "pair: pairing, ignore: allowlist"),
    "group_sessions_per_user": ("sessions.groups", "true: per_user, false: shared"),
    "thread_sessions_per_user": (None, "a thread is shared by who writes in it"),
    "reset_triggers": (None, "/new starts a new conversation"),
    "agent.max_turns": ("agent.max_iterations", ""),
    "agent.gateway_timeout*": (None, "`agent.max_turn_s` and `model.idle_timeout_s` are near"),
    "agent.gateway_[an]*": (None, "the preview shows that it works, and a turn always goes on"),
    "agent.restart_drain_timeout": ("queue.grace_s", ""),
    "agent.api_max_retries": ("model.retry_for_s", "seconds, not tries"),
    "agent.clarify_timeout": (None, "a day, a constant"),
    "agent.disabled_toolsets": ("tools.enabled", "what is not named is off"),
    "agent.system_prompt": ("agent.instructions", ""),
    "agent.environment_hint": ("agent.instructions", "behind what is there"),
    "agent.coding_instructions": ("agent.instructions", "behind what is there"),
    "agent.reasoning_*": ("model.extra_body", "of each block, in the words of the provider"),
    "agent.service_tier": ("model.extra_body", "in the words of the provider"),
    "terminal.backend": ("tools.sandbox.backend", "auto, bwrap, landlock or none"),
    "terminal.timeout": ("tools.terminal.timeout_s", ""),
    "terminal.cwd": ("agent.workspace", "commands run below `tools.workspace.root`"),
    "terminal.*_image": (None, "commands run behind bubblewrap or Landlock, not in containers"),
    "terminal.container_*": (None, "2 GB of memory and 200 MB of files, constants"),
    "terminal.docker_network": ("tools.terminal.network", "commands have no network"),
    "terminal.docker_volumes": ("tools.terminal.readable", "paths that commands may read"),
    "web.extract_char_limit": (None, "2 MB of a page, a constant"),
    "tool_output.max_bytes": ("tools.output.max_bytes", ""),
    "tool_output.max_lines": ("tools.output.max_lines", ""),
    "compression.summary_model": ("auxiliary.compression.model", "with its `provider`"),
    "compression.summary_provider": ("auxiliary.compression.provider", "with its `model`"),
    "compression.summary_base_url": ("auxiliary.compression.base_url", "with its `model`"),
    "compression.protect_first_n": (None, "the system prompt and the first exchange always stay"),
    "compression.hygiene_hard_message_limit": (None, "no number of messages is too many"),
    "compression.abort_on_summary_failure": (None, "the extractor writes it then"),
    "compression.in_place": (None, "nothing is ever replaced: a compaction is a new view"),
    "auxiliary.compression.timeout": (None, "60 seconds, a constant"),
    "auxiliary.compression.extra_body": (None, "only `model` and `fallbacks` have it"),
    "display.tool_progress": (None, "the preview shows which tools run"),
    "display.busy_input_mode": ("queue.mode", "collect, followup or interrupt"),
    "privacy.redact_pii": (None, "logs hold no message text above debug"),
    "memory.*_enabled": ("tools.enabled", "with or without `memory`"),
    "memory.*_char_limit": (None, "2,200 characters of notes, 4,000 of a profile, constants"),
    "memory.provider": ("plugins.enabled", "memory providers are plugins"),
    "delegation": (None, "30 calls and 600 seconds, constants"),
    "*.require_mention": ("access.groups", _GROUPS),
    "*.allowed_ch*": ("access.groups", _GROUPS),
    "*.free_response_channels": ("access.groups", _GROUPS),
    "discord.auto_thread": ("platforms.discord.threads", ""),
    "discord.reactions": ("platforms.discord.reactions", ""),
    "discord.max_attachment_bytes": ("attachments.max_bytes", ""),
    "discord.history_backfill": (None, "what was missed while it was down is always read"),
    "telegram.reactions": ("platforms.telegram.reactions", ""),
    "slack.reactions": ("platforms.slack.reactions", ""),
    "gateway.max_inbound_media_bytes": ("attachments.max_bytes", ""),
    "approvals.mode": ("tools.approval", "side_effects, always or never"),
    "approvals.timeout": (None, "an hour, a constant; nothing is blocked meanwhile"),
    "approvals.deny": ("tools.policy.rules", "rows of the table"),
    "security.redact_secrets": (None, "there is nothing to set: it holds always"),
    "security.allow_private_urls": ("tools.fetch.allow_hosts", "each host by name"),
    "security.website_blocklist": ("tools.policy.rules", "rows with a destination"),
    "sessions.retention_days": ("retention.transcript_days", "null keeps everything"),
    "sessions.auto_prune": ("retention.transcript_days", "null keeps everything"),
    "session_reset.mode": ("sessions.reset", ""),
    "session_reset.at_hour": ("sessions.at_hour", ""),
    "session_reset.idle_minutes": ("sessions.idle_minutes", ""),
    "streaming.enabled": (None, "the growing answer is always shown"),
    "streaming.transport": ("platforms.telegram.preview", "edit or draft"),
    "browser": (None, "Parley has no browser; MCP servers (`tools.mcp`) can bring one"),
    "tts": (None, _NO_VOICE),
    "stt": (None, _NO_VOICE),
    "voice": (None, _NO_VOICE),
    "cron": (
        None,
        "Parley has no schedule of its own; have cron or a timer write to the web chat's API",
    ),
    "kanban": (None, "Parley has no board"),
    "checkpoints": (None, "files of tools lie in directories of their own (`tools.workspace`)"),
    "display": (None, "of the terminal's own look, which `parley chat` does not have"),
    "dashboard": (None, "the web chat is set under `web`"),
    "auxiliary": (None, "no side task but the summary has a model of its own"),
    "moa": (None, "one model answers; others only step in (`fallbacks`)"),
    "hooks": ("plugins.enabled", "hooks are plugins"),
    "secrets": (None, "secrets are referred to: file:, env:, keyring:, command:"),
}
"""Key pattern → the Parley key with the same meaning, if any, and the difference or the reason why
none exists. The most similar name is often the wrong key. The first match applies.

Source: DEFAULT_CONFIG and GatewayConfig of hermes-agent 0.19.0.
"""
MOST_TOLD = 4
"""Most keys of a section that a hint names; more suggest another program's file."""
SAME = (
    *("model.provider", "model.base_url", "model.context_length", "prompt_caching.cache_ttl"),
    *("compression.enabled", "compression.threshold"),
    *("compression.target_ratio", "compression.protect_last_n"),
    *(f"auxiliary.compression.{key}" for key in ("model", "provider", "base_url")),
)
"""Identical keys. None of them grants access, extends tools or runs programs."""
SECRETS = {
    "TELEGRAM_BOT_TOKEN": "platforms.telegram.token",
    "DISCORD_BOT_TOKEN": "platforms.discord.token",
    "SLACK_BOT_TOKEN": "platforms.slack.bot_token",
    "SLACK_APP_TOKEN": "platforms.slack.app_token",
    "SLACK_SIGNING_SECRET": "platforms.slack.signing_secret",
}
PEOPLE = {
    f"{platform.upper()}_ALLOWED_USERS": f"access.{platform}"
    for platform in ("telegram", "discord", "slack")
}
_NAMED = {"providers", "mcp_servers", "hooks"}
"""Maps with user-defined keys."""
_OPENING = """\
# Made by `parley import hermes`. Read it, then make it parley.yaml, or copy what you want; until
# then no gateway uses it. docs/import.md says what became of what.
"""


def counterpart(key: str) -> tuple[str | None, str] | None:
    """Return the mapping of a dotted key, or None if Hermes has no such key.

    A key without an entry inherits its section's if the section has no counterpart.
    """
    if here := next((HERMES[each] for each in HERMES if fnmatchcase(key, each)), None):
        return here
    above = counterpart(key.rpartition(".")[0]) if "." in key else None
    return above if above and above[0] is None else None


def hint(key: str, value: Any) -> str | None:
    """Return a hint for replacing a Hermes key, or None if Hermes has no such key.

    Args:
        value: The key's value; for a section the hint covers its keys.
    """
    inside = [name for name, _ in leaves({key: value}, _NAMED.__contains__)]
    own = [name for name in inside if any(fnmatchcase(name, each) for each in HERMES)]
    lines = [_told(name, *here) for name in own or [key] if (here := counterpart(name))]
    return "; ".join([*lines[:MOST_TOLD], *(["…"] if len(lines) > MOST_TOLD else [])]) or None


def _told(name: str, key: str | None, note: str) -> str:
    here = f"is {key}" if key else "has no counterpart"
    return f"{name} of Hermes {here}{f' ({note})' if note else ''}"


def leaves(
    tree: Mapping[Any, Any], is_whole: Callable[[str], bool], above: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and value of every leaf; maps accepted by `is_whole` are leaves."""
    for name, item in tree.items():
        key = f"{above}{name}"
        if isinstance(item, Mapping) and item and not is_whole(key):
            yield from leaves(item, is_whole, f"{key}.")
        else:
            yield key, item


class SettingsFound:
    """A Hermes home's settings translated to Parley.

    Attributes:
        tree: The content for parley.yaml.
        lines: The report.
    """

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.lines: list[Line] = []

    def put(self, key: str, value: Any, *, of: str) -> None:
        """Set a key to a Hermes value unless it is invalid or a secret."""
        told = str(value)
        if Redactor().text(told) != told or (isinstance(value, str) and is_reference(value)):
            self.leave(of, "it holds a secret; write it as a reference yourself")
            return
        tree = deepcopy(self.tree)
        _set(tree, key.split("."), value)
        # Hermes has one block per platform; Parley has a list.
        platforms = {name: [block] for name, block in tree.get("platforms", {}).items()}
        try:
            Settings.model_validate({**tree, "platforms": platforms, "home": Path("/")})
        except ValidationError as exc:
            wrong = exc.errors(include_url=False, include_input=False)[0]
            self.leave(of, f"not allowed here: {wrong['msg']}")
            return
        self.tree = tree
        text = ", ".join(value) if isinstance(value, list) else value
        text = Redactor().text(text) if isinstance(text, str) else ""
        if not key.startswith("agent."):
            # Escape to ASCII, since other letters may look like Latin ones.
            text = text.encode("unicode_escape").decode()
        self.lines.append(Line("settings", of, "taken", key, text))

    def leave(self, what: str, note: str, part: str = "settings") -> None:
        """Report a setting that is not imported."""
        self.lines.append(Line(part, what, "left out", note))

    def as_yaml(self) -> str:
        """Return the settings as YAML."""
        body = yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True) if self.tree else ""
        return _OPENING + body


def found_in(home: HermesHome) -> SettingsFound:
    """Translate the settings and variables of a Hermes home."""
    found = SettingsFound()
    lacking: dict[tuple[str, str], list[str]] = {}
    for name, value in leaves(home.settings(), _NAMED.__contains__):
        if value in ("", None, [], {}) or name == "_config_version":
            continue
        key, note = counterpart(name) or (None, "")
        if name in SAME or (key and not note):
            found.put(key or name, value, of=name)
        else:
            why = f"see `{key}`: {note}" if key else note or "Parley has no such setting"
            lacking.setdefault((name.partition(".")[0], why), []).append(name)
    for (_, why), names in lacking.items():
        found.leave(", ".join(names), why)
    _put_variables(found, home.variables())
    return found


def _put_variables(found: SettingsFound, variables: Mapping[str, str]) -> None:
    for name, value in sorted(variables.items()):
        if key := SECRETS.get(name):
            _set(found.tree, key.split("."), f"env:{name}")
            found.leave(name, f"set it in the environment: {key} refers to it", "secrets")
        elif name in KEY_VARIABLES.values():
            found.leave(name, "set it in the environment: Parley reads it there", "secrets")
        elif key := PEOPLE.get(name):
            found.put(key, [who for part in value.split(",") if (who := part.strip())], of=name)
        else:
            found.leave(name, "a variable that no setting of Parley's needs")


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value
