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
"""Returns the policy rule that forbids a redirect to this address on another host, or ""."""


class NoPast(Past):
    """A history without messages; a quoted author counts as a stranger."""

    @override
    async def taints_of(self, read: Collection[Origin]) -> Collection[Origin]:
        return {Origin("person" if kind == "quoted" else kind, which) for kind, which in read}

    @override
    async def taints(self, *, of_scope: bool = False) -> Collection[Origin]:
        return ()


@dataclass(slots=True)
class Provenance:
    """The origins of the content that a turn has read; the set grows while tools run.

    Attributes:
        origins: All origins in the conversation since it was last restarted, except its own
            speakers.
        seen: The origins that the model had read when it wrote the newest calls.
        trail: The addresses that the turn knows or has visited.
        may_follow: Ids of the newest calls that may follow a link found on a page.
        recalled: Whether the model had read recalled content when it wrote the newest calls.
    """

    origins: set[Origin] = field(default_factory=set)
    seen: frozenset[Origin] = frozenset()
    trail: Trail = field(default_factory=Trail, repr=False)
    may_follow: frozenset[str] = frozenset()
    recalled: bool = False
    past: Past = field(default_factory=NoPast, repr=False)

    def mark_read(self) -> None:
        """Record that the model has read all origins so far."""
        self.seen = frozenset(self.origins)
        self.recalled = self.trail.recalled

    def note(self, kind: OriginKind, which: str) -> None:
        """Record an origin before the model reads its content."""
        self.origins.add(Origin(kind, which))

    def marks_of(self, call_id: str) -> frozenset[StepMark]:
        """Return the marks to record with the result of one of the newest calls."""
        linked = call_id in self.may_follow
        marks: dict[StepMark, bool] = {"linked": linked, "recalled": self.trail.recalled}
        return frozenset(mark for mark, is_so in marks.items() if is_so)

    async def note_earlier(self, *, of_scope: bool = False) -> None:
        """Record all origins of this conversation, or of every conversation in the scope.

        Workspace files, stored outputs and the engine's original messages survive a restart of the
        conversation; memories survive the conversation itself.
        """
        self.trail.recalled = True
        self.origins |= set(await self.past.taints(of_scope=of_scope))

    async def note_all(self, messages: Iterable[PastMessage]) -> None:
        """Record messages that are read again, with the taints of their lineage.

        Their authors do not speak in this turn, so their words taint it like a web page.
        """
        self.trail.recalled = True
        if read := {origin for message in messages for origin in message.origins}:
            self.origins |= set(await self.past.taints_of(read))


@dataclass(frozen=True, slots=True)
class TurnRights:
    """Rights of the people who wrote a turn's messages.

    Attributes:
        scope: Scope of the memories that the turn may use: "platform:sender id" in a direct chat,
            else "conversation:id".
        roles: Roles of all those people (agent/tools/policy.py).
        group: "platform:chat"; empty in a direct chat.
        redirects: Check of the running call's redirects; forbids all by default.
    """

    scope: str = ""
    roles: frozenset[str] = frozenset({"member"})
    group: str = ""
    read: Provenance = field(default_factory=Provenance)
    redirects: Redirects = field(default=lambda _: "no rule", repr=False)

    @property
    def may_act(self) -> bool:
        """Whether tools may have side effects; false for senders who may only talk."""
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
    """The context of a tool call; docs/plugins.md describes the part available to plugins.

    Attributes:
        clock: Returns the current time, timezone-aware.
        workspace: The conversation's own directory, for tools that access files.
        services: For Parley's own tools only.
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
        """The scope of the memories that the turn may use."""
        return self.rights.scope

    @property
    def may_act(self) -> bool:
        """Whether tools may have side effects."""
        return self.rights.may_act


def require(service: Service | None, why: str) -> Service:
    """Return a service of the turn; raise a ToolError with the reason `why` if it is missing."""
    if service is None:
        raise ToolError(why)
    return service


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result of a call; error texts are written for the model."""

    text: str
    status: ToolStatus


class Hooks(Protocol):
    """Plugin hooks around a permitted call.

    They never raise and have a time limit: a failing hook is logged and skipped.
    """

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: "ToolContext"
    ) -> str | None:
        """Return a reason, written for the model, to block the call, or None to permit it.

        `arguments` come from the model and match the tool's schema.
        """

    async def after(
        self,
        name: str,
        arguments: Mapping[str, Any],
        outcome: "ToolOutcome",
        context: "ToolContext",
    ) -> None:
        """Receive the outcome of a completed call."""
