"""What a plugin may offer, and what it is told; docs/plugins.md explains it.

Plugins get copies of plain data. What concerns people goes by a scope: "platform:sender id" for all
direct chats of a person, "conversation:id" for any other conversation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from agent.tools.registry import Tool

HookName = Literal["pre_tool_call", "post_tool_call", "turn_finished"]
HOOKS: tuple[HookName, ...] = get_args(HookName)

Hook = Callable[[dict[str, Any]], Any]
"""Sync or async; gets one map (docs/plugins.md). `pre_tool_call` returns why the call must not run,
or None; what the others return does not count."""


@dataclass(frozen=True, slots=True)
class Query:
    """What the model is about to be asked.

    `text` is what people wrote, `scope` tells whose memories may be used. Everybody in the
    conversation can read what is returned for it.
    """

    text: str
    scope: str
    conversation: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer, once both are committed."""

    question: str
    answer: str
    scope: str
    conversation: str
    turn: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a memory provider recalls, and from which exchanges.

    The turn that reads it counts as having read what theirs had. Without any it comes from
    elsewhere, and counts like a page.

    Attributes:
        turns: `Exchange.turn` of each.
    """

    text: str
    turns: Sequence[str] = ()


class MemoryProvider(ABC):
    """A memory outside of Parley. One object serves all turns; its methods may run side by side.

    Async methods run on Parley's event loop and must not block; others in threads of their own.
    """

    name: ClassVar[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Take a copy of the plugin's options (`plugins.options.<plugin>`)."""
        self.options = options

    def prompt(self) -> str:
        """Return what the system prompt says about it; asked once at start, the same for all."""
        return ""

    @abstractmethod
    async def prefetch(self, query: Query) -> str | Recalled:
        """Return what is known that bears on the question; empty for nothing.

        Asked once before a turn, which waits for it no longer than `HOOK_S`. Only what
        was stored under `query.scope` may be returned. A mere text may come from anything that was
        ever read or said in that scope, and counts so.
        """

    async def store(self, exchange: Exchange) -> None:  # noqa: B027 - not all remember by themselves
        """Take note of an exchange; called after the answer is committed, at most once.

        Not called for turns in which somebody took part who is only let talk.
        """

    def tools(self) -> Sequence[Tool]:
        """Return tools for the model; asked once at start. `ToolContext.scope` is for them."""
        return ()
