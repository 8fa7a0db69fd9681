"""Settings of Hermes Agent, and which of Parley's means the same: for hints, and for imports.

The nearest spelling is often the wrong key: `agent.max_turns` of Hermes is `agent.max_iterations`
here, and not `agent.max_turn_s`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MOST_TOLD = 4
"""As many keys of a section are told of; who brings more has a whole file of the other program."""


class Counterpart(NamedTuple):
    """What a key of Hermes is here.

    Attributes:
        key: The one of Parley's that means the same; None where there is none.
        note: What is different, or why there is none.
    """

    key: str | None
    note: str = ""


_COMMITS = "there is nothing to set: it holds always"
_NO_BROWSER = "Parley has no browser; MCP servers (`tools.mcp`) can bring one"
_NO_VOICE = "Parley neither speaks nor listens"
_NO_TERMINAL_PAGE = "of the terminal's own look, which `parley chat` does not have"
_NO_SCHEDULE = "Parley has no schedule of its own; have cron or a timer write to the web chat's API"
_NO_CONTAINERS = "commands run behind bubblewrap or Landlock, not in containers"
_ONE_MODEL = "no side task but the summary has a model of its own"
_GROUPS = 'a rule of `access.groups`, such as {"telegram:*": {respond: always}}'

# Source: DEFAULT_CONFIG and GatewayConfig of hermes-agent 0.19.0.
HERMES: dict[str, tuple[str | None, str]] = {
    "model": ("model.name", ""),
    "model.default": ("model.name", ""),
    "model.model": ("model.name", ""),
    "model.max_tokens": ("model.max_output_tokens", ""),
    "model.api_mode": (None, "the provider says which API is spoken"),
    "providers": ("model.base_url", "an own server is one block of `model` or `fallbacks`"),
    "custom_providers": ("model.base_url", "an own server is one block of `model` or `fallbacks`"),
    "fallback_providers": ("fallbacks", "blocks like `model`"),
    "fallback_model": ("fallbacks", "blocks like `model`"),
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
    "reset_triggers": (None, "/new begins anew"),
    "agent.max_turns": ("agent.max_iterations", ""),
    "agent.gateway_timeout": (None, "`agent.max_turn_s` and `model.idle_timeout_s` are near"),
    "agent.gateway_timeout_warning": (None, "the preview shows that it works"),
    "agent.gateway_notify_interval": (None, "the preview shows that it works"),
    "agent.gateway_auto_continue_freshness": (None, "a turn always goes on"),
    "agent.restart_drain_timeout": ("queue.grace_s", ""),
    "agent.api_max_retries": ("model.retry_for_s", "seconds, not tries"),
    "agent.clarify_timeout": (None, "a day, a constant"),
    "agent.disabled_toolsets": ("tools.enabled", "what is not named is off"),
    "agent.system_prompt": ("agent.instructions", ""),
    "agent.environment_hint": ("agent.instructions", "behind what is there"),
    "agent.coding_instructions": ("agent.instructions", "behind what is there"),
    "agent.reasoning_effort": ("model.extra_body", "in the words of the provider"),
    "agent.reasoning_overrides": ("model.extra_body", "of each block"),
    "agent.service_tier": ("model.extra_body", "in the words of the provider"),
    "terminal.backend": ("tools.sandbox.backend", "auto, bwrap, landlock or none"),
    "terminal.timeout": ("tools.terminal.timeout_s", ""),
    "terminal.cwd": ("agent.workspace", "commands run below `tools.workspace.root`"),
    "terminal.docker_image": (None, _NO_CONTAINERS),
    "terminal.singularity_image": (None, _NO_CONTAINERS),
    "terminal.container_memory": (None, "2 GB, a constant"),
    "terminal.container_disk": (None, "200 MB, a constant"),
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
    "memory.memory_enabled": ("tools.enabled", "with or without `memory`"),
    "memory.user_profile_enabled": ("tools.enabled", "with or without `memory`"),
    "memory.memory_char_limit": (None, "2,200 characters, a constant"),
    "memory.user_char_limit": (None, "4,000 characters, a constant"),
    "memory.provider": ("plugins.enabled", "memory providers are plugins"),
    "delegation.max_iterations": (None, "30 calls, a constant"),
    "delegation.child_timeout_seconds": (None, "600 seconds, a constant"),
    "slack.require_mention": ("access.groups", _GROUPS),
    "slack.allowed_channels": ("access.groups", _GROUPS),
    "slack.free_response_channels": ("access.groups", _GROUPS),
    "discord.require_mention": ("access.groups", _GROUPS),
    "discord.allowed_channels": ("access.groups", _GROUPS),
    "discord.free_response_channels": ("access.groups", _GROUPS),
    "discord.auto_thread": ("platforms.discord.threads", ""),
    "discord.reactions": ("platforms.discord.reactions", ""),
    "discord.max_attachment_bytes": ("attachments.max_bytes", ""),
    "discord.history_backfill": (None, "what was missed while it was down is always read"),
    "telegram.reactions": ("platforms.telegram.reactions", ""),
    "telegram.require_mention": ("access.groups", _GROUPS),
    "telegram.allowed_chats": ("access.groups", _GROUPS),
    "slack.reactions": ("platforms.slack.reactions", ""),
    "gateway.max_inbound_media_bytes": ("attachments.max_bytes", ""),
    "approvals.mode": ("tools.approval", "side_effects, always or never"),
    "approvals.timeout": (None, "an hour, a constant; nothing is blocked meanwhile"),
    "approvals.deny": ("tools.policy.rules", "rows of the table"),
    "security.redact_secrets": (None, _COMMITS),
    "security.allow_private_urls": ("tools.fetch.allow_hosts", "each host by name"),
    "security.website_blocklist": ("tools.policy.rules", "rows with a destination"),
    "sessions.retention_days": ("retention.transcript_days", "null keeps everything"),
    "sessions.auto_prune": ("retention.transcript_days", "null keeps everything"),
    "session_reset.mode": ("sessions.reset", ""),
    "session_reset.at_hour": ("sessions.at_hour", ""),
    "session_reset.idle_minutes": ("sessions.idle_minutes", ""),
    "streaming.enabled": (None, "the growing answer is always shown"),
    "streaming.transport": ("platforms.telegram.preview", "edit or draft"),
    "browser": (None, _NO_BROWSER),
    "tts": (None, _NO_VOICE),
    "stt": (None, _NO_VOICE),
    "voice": (None, _NO_VOICE),
    "cron": (None, _NO_SCHEDULE),
    "kanban": (None, "Parley has no board"),
    "checkpoints": (None, "files of tools lie in directories of their own (`tools.workspace`)"),
    "display": (None, _NO_TERMINAL_PAGE),
    "dashboard": (None, "the web chat is set under `web`"),
    "auxiliary": (None, _ONE_MODEL),
    "moa": (None, "one model answers; others only step in (`fallbacks`)"),
    "hooks": ("plugins.enabled", "hooks are plugins"),
    "secrets": (None, "secrets are referred to: file:, env:, keyring:, command:"),
}


def counterpart(key: str) -> Counterpart | None:
    """Return what a dotted key of Hermes is here; None if Hermes has no such key.

    A key without an entry of its own is what its section is, where that has no counterpart.
    """
    if key in HERMES:
        return Counterpart(*HERMES[key])
    section = key.rpartition(".")[0]
    above = counterpart(section) if section else None
    return above if above is not None and above.key is None else None


def hint(key: str, value: Any = None) -> str | None:
    """Return what to write in place of a key of Hermes; None if Hermes has no such key.

    Args:
        key: Dotted.
        value: What stands there; of a section the keys that it holds are looked up.
    """
    inside = [name for name, _ in leaves(value, key)] if isinstance(value, Mapping) else []
    known = [name for name in inside if name in HERMES] or [key]
    lines = [_told(name, here) for name in known if (here := counterpart(name)) is not None]
    return "; ".join([*lines[:MOST_TOLD], *(["…"] if len(lines) > MOST_TOLD else [])]) or None


def _told(name: str, here: Counterpart) -> str:
    note = f" ({here.note})" if here.note else ""
    if here.key is None:
        return f"{name} of Hermes has no counterpart{note}"
    return f"{name} of Hermes is {here.key}{note}"


def leaves(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf of a map.

    A map whose entries have names of one's own counts as one value.
    """
    for name, item in value.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(item, Mapping) and item and key not in _WHOLE:
            yield from leaves(item, key)
        else:
            yield key, item


_WHOLE = frozenset({"providers", "mcp_servers", "hooks"})
