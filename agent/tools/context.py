"""The context of a tool call; its ports are in agent/ports.py."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from agent.context_engine import ContextEngine
from agent.errors import ToolError
from agent.ports import (
    ConversationReader,
    Delegates,
    Files,
    Notebook,
    Origin,
    OriginKind,
    Past,
    PastMessage,
    People,
    Progress,
    Searcher,
    StepMark,
    ToolStatus,
)
from agent.prompt.skills import SkillShelf
from agent.tools.links import Trail

Service = TypeVar("Service")

Redirects = Callable[[str], str]
"""Returns the policy's rule that forbids a redirect to this address of another host, or ""."""


class NoPast(Past):
    """A past without messages; a quoted person counts as a stranger."""

    @override
    async def taints_of(self, read: Collection[Origin]) -> Collection[Origin]:
        return {Origin("person" if kind == "quoted" else kind, which) for kind, which in read}

    @override
    async def taints(self, *, of_scope: bool = False) -> Collection[Origin]:
        return ()


@dataclass(slots=True)
class Provenance:
    """The origins of the content that a turn has read; they grow while tools run.

    Attributes:
        origins: Of everything in the conversation since its last start, but its people's words.
        seen: The origins that the model had read when it wrote the newest calls.
        trail: The addresses that the turn knows and visited.
        may_follow: Ids of the newest calls that may follow a link of a page.
        recalled: Whether the model wrote the newest calls after reading recalled content.
        past: The taints of earlier messages.
    """

    origins: set[Origin] = field(default_factory=set)
    seen: frozenset[Origin] = frozenset()
    trail: Trail = field(default_factory=Trail, repr=False)
    may_follow: frozenset[str] = frozenset()
    recalled: bool = False
    past: Past = field(default_factory=NoPast, repr=False)

    def look(self) -> None:
        """Note that the model has read all origins so far."""
        self.seen = frozenset(self.origins)
        self.recalled = self.trail.recalled

    def note(self, kind: OriginKind, which: str) -> None:
        """Note an origin, before the model reads it."""
        self.origins.add(Origin(kind, which))

    def marks_of(self, call_id: str) -> frozenset[StepMark]:
        """Return the marks to record with the result of one of the newest calls."""
        linked = call_id in self.may_follow
        marks: dict[StepMark, bool] = {"linked": linked, "recalled": self.trail.recalled}
        return frozenset(mark for mark, is_so in marks.items() if is_so)

    async def note_earlier(self, *, of_scope: bool = False) -> None:
        """Note all origins of this conversation, or of all conversations of the scope.

        Files of the workspace, stored outputs and the engine's originals outlast a new start, and
        memories outlast the conversation.
        """
        self.trail.recalled = True
        self.origins |= set(await self.past.taints(of_scope=of_scope))

    async def note_all(self, messages: Iterable[PastMessage]) -> None:
        """Note messages that are read again, with the taints of their lineage.

        Their speakers are not speakers of this turn: their words taint like a page.
        """
        self.trail.recalled = True
        if read := {origin for message in messages for origin in message.origins}:
            self.origins |= set(await self.past.taints_of(read))


@dataclass(frozen=True, slots=True)
class TurnRights:
    """Rights of the people behind a turn's messages.

    Attributes:
        scope: Of the memories that the turn may use: "platform:sender id" in a direct chat, else
            "conversation:id".
        roles: Of all of them (agent/tools/policy.py).
        group: "platform:chat"; empty in a direct chat.
        redirects: Of the running call; by default all redirects are forbidden.
    """

    scope: str = ""
    roles: frozenset[str] = frozenset({"member"})
    group: str = ""
    read: Provenance = field(default_factory=Provenance)
    redirects: Redirects = field(default=lambda _: "no rule", repr=False)

    @property
    def may_act(self) -> bool:
        """Whether tools may have side effects: not for senders who may only talk."""
        return frozenset() < self.roles <= {"owner", "member"}


@dataclass(frozen=True, slots=True)
class ToolServices:
    """Services of Parley's own tools; each may be missing."""

    engine: ContextEngine | None = None
    people: People | None = None
    notebook: Notebook | None = None
    searcher: Searcher | None = None
    delegates: Delegates | None = None
    skills: SkillShelf | None = None
    hooks: "Hooks | None" = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a tool call; docs/plugins.md describes the part for plugins' tools.

    Attributes:
        clock: Returns the current time, aware.
        files: Takes files to show with the answer.
        workspace: The conversation's own directory, for tools that touch files.
        services: For Parley's own tools alone.
    """

    conversation: str
    reader: ConversationReader
    clock: Callable[[], datetime]
    call_id: str = ""
    files: Files | None = None
    workspace: Path | None = None
    rights: TurnRights = field(default_factory=TurnRights)
    services: ToolServices = field(default_factory=ToolServices)

    @property
    def scope(self) -> str:
        """The scope of memories that the turn may use."""
        return self.rights.scope

    @property
    def may_act(self) -> bool:
        """Whether tools may have side effects."""
        return self.rights.may_act


def needed(service: Service | None, why: str) -> Service:
    """Return a service of the turn, or raise a ToolError that says why it is missing."""
    if service is None:
        raise ToolError(why)
    return service


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The end of a call; texts of errors are written for the model."""

    text: str
    status: ToolStatus


class Hooks(Protocol):
    """Hooks of plugins around a permitted call.

    They never raise and have a time limit: a failing hook is logged and left out.
    """

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: "ToolContext"
    ) -> str | None:
        """Return why the call must not run, in words for the model, or None.

        `arguments` are the model's, checked against the tool's schema.
        """

    async def after(
        self,
        name: str,
        arguments: Mapping[str, Any],
        outcome: "ToolOutcome",
        context: "ToolContext",
    ) -> None:
        """Learn the outcome of a call that ran."""
