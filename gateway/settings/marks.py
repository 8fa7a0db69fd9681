"""When a changed setting takes effect in a running gateway: at once, with the next turn, or never.

Each section has a mark, and single keys have one of their own. Tests demand a mark of each key
(tests/gateway/settings), and prove the first two kinds key by key (tests/stories).
"""

from collections.abc import Mapping
from typing import Literal

from gateway.settings.tree import INDEX, KeyPath

Mark = Literal["live", "next-turn", "restart"]
"""live: what comes next goes by it, within a second or so of the reload. next-turn: a turn that
begins after the reload goes by it, one that is under way goes on with what it began with. restart:
it waits for the next start of the gateway."""

SECTIONS: Mapping[str, Mark] = {
    "home": "restart",
    "model": "next-turn",
    "fallbacks": "next-turn",
    "agent": "next-turn",
    "compression": "next-turn",
    "auxiliary": "next-turn",
    "context": "next-turn",
    "prompt_caching": "next-turn",
    "budget": "live",
    "quotas": "live",
    "queue": "live",
    "delivery": "live",
    "sessions": "next-turn",
    "access": "live",
    "attachments": "next-turn",
    "tools": "next-turn",
    # Their code is loaded, and what it does at its start is done.
    "plugins": "restart",
    "platforms": "live",
    "web": "restart",
    "storage": "restart",
    "retention": "live",
    "backup": "restart",
    "search": "restart",
    "alerts": "live",
    "logging": "restart",
    "metrics": "restart",
    "telemetry": "restart",
}
"""The default of each section of the tree."""

EXCEPTIONS: Mapping[str, Mark] = {
    # Who reads for the memory is built at the start.
    "auxiliary.memory": "restart",
    "queue.max_attempts": "next-turn",
    # What an earlier process has left is judged by it once, at the start.
    "queue.give_up_after_s": "restart",
    # It names the conversation that a message belongs to, as the message comes in.
    "sessions.groups": "live",
    # The page tells it to browsers that are open.
    "attachments.max_bytes": "restart",
    # Programs that were started, and directories that confined ones hold.
    "tools.mcp": "restart",
    "tools.workspace.root": "restart",
    "tools.approval_timeout_s": "live",
    "tools.approval_valid_s": "live",
    "tools.clarify_timeout_s": "live",
    # A name is a part of the stored conversations of its account.
    "platforms.telegram.name": "restart",
    "platforms.discord.name": "restart",
    "platforms.slack.name": "restart",
    # Paths of the HTTP server, which knows all of them when it begins to listen.
    "platforms.telegram.mode": "restart",
    "platforms.slack.mode": "restart",
    # The SDK has one of each for the whole process; each shard has a lease.
    "platforms.discord.api_url": "restart",
    "platforms.discord.gateway_url": "restart",
    "platforms.discord.shards": "restart",
    "storage.raw_days": "live",
    # What posts runs beside the gateway, or does not.
    "alerts.enabled": "restart",
    "alerts.webhook": "restart",
    "logging.level": "live",
}
"""Keys whose mark is not that of their section."""


def mark_of(path: KeyPath) -> Mark:
    """Return when a change of a key takes effect; positions in lists of blocks do not matter.

    Raises:
        KeyError: Its section has no mark.
    """
    names = [step for step in path if isinstance(step, str) and step != INDEX]
    for end in range(len(names), 1, -1):
        found = EXCEPTIONS.get(".".join(names[:end]))
        if found is not None:
            return found
    return SECTIONS[names[0]]
