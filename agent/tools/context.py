"""What a tool may use of the turn it runs in; the ports behind it are in agent/ports.py."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
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
from agent.tools.addresses import Trail

Service = TypeVar("Service")

Redirects = Callable[[str], str]
"""Returns the rule of the policy that forbids a redirect to this address of another host; empty if
none does."""


def no_redirects(_: str, /) -> str:
    """Let nothing lead on: no policy was asked."""
    return "no rule"


class NoPast(Past):
    """There are no earlier messages; who is named as quoted is taken for a stranger."""

    @override
    async def taints_of(self, read: Collection[Origin]) -> Collection[Origin]:
        return {Origin("person" if kind == "quoted" else kind, which) for kind, which in read}

    @override
    async def taints(self, *, of_scope: bool = False) -> Collection[Origin]:
        return ()


@dataclass(slots=True)
class Provenance:
    """What a turn has read beside the words of its people; it grows while tools run.

    Attributes:
        origins: Of everything in the conversation since it began anew last.
        seen: What of it the model had read when it wrote the newest calls.
        trail: The addresses that the turn knows and visited.
        may_follow: Ids of the newest calls that may follow a link of a page.
        recalled: Whether the model wrote the newest calls after reading recalled content.
        past: What taints a turn that reads what was said before.
    """

    origins: set[Origin] = field(default_factory=set)
    seen: frozenset[Origin] = frozenset()
    trail: Trail = field(default_factory=Trail, repr=False)
    may_follow: frozenset[str] = frozenset()
    recalled: bool = False
    past: Past = field(default_factory=NoPast, repr=False)

    def look(self) -> None:
        """Take note that the model has read all that was noted so far."""
        self.seen = frozenset(self.origins)
        self.recalled = self.trail.recalled

    def note(self, kind: OriginKind, which: str) -> None:
        """Take note of what is read; before the model sees it."""
        self.origins.add(Origin(kind, which))

    def marks_of(self, call_id: str) -> frozenset[StepMark]:
        """Return the marks that are recorded with the result of one of the newest calls."""
        linked = call_id in self.may_follow
        marks: dict[StepMark, bool] = {"linked": linked, "recalled": self.trail.recalled}
        return frozenset(mark for mark, is_so in marks.items() if is_so)

    async def note_earlier(self, *, of_scope: bool = False) -> None:
        """Take note of all that was read and said here: some of it stays, whatever begins anew.

        Files of the workspace, stored outputs and what the engine looks up may hold it; what a
        memory recalls may hold it of all conversations of the scope.
        """
        self.trail.recalled = True
        self.origins |= set(await self.past.taints(of_scope=of_scope))

    async def note_all(self, messages: Iterable[PastMessage]) -> None:
        """Take note of messages that are read again, with what their lineage holds.

        Who spoke or was quoted there is no speaker here: what they said taints like a page.
        """
        self.trail.recalled = True
        if read := {origin for message in messages for origin in message.origins}:
            self.origins |= set(await self.past.taints_of(read))


@dataclass(frozen=True, slots=True)
class TurnRights:
    """What the people behind a turn's messages may do.

    Attributes:
        scope: Whose memories the turn may use: "platform:sender id" in a direct chat, else
            "conversation:id".
        roles: Of all of them, as agent/tools/policy.py names them.
        group: "platform:chat"; empty in a direct chat.
        read: What the turn has read beside their words.
        redirects: Where a page may lead the call that runs.
    """

    scope: str = ""
    roles: frozenset[str] = frozenset({"member"})
    group: str = ""
    read: Provenance = field(default_factory=Provenance)
    redirects: Redirects = field(default=no_redirects, repr=False)

    @property
    def may_act(self) -> bool:
        """Whether tools may have side effects: not for senders who are only let talk."""
        return frozenset() < self.roles <= {"owner", "member"}


@dataclass(frozen=True, slots=True)
class ToolServices:
    """What Parley's own tools use beside the transcript; None where there is none."""

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
    """What a tool may use of the turn it runs in; docs/plugins.md tells what plugins' tools get.

    Attributes:
        clock: Returns the current time, aware.
        files: Takes files that are to be shown with the answer; None where none can be.
        workspace: The conversation's own directory, where tools that touch files work; None where
            there is none.
        services: What only Parley's own tools use.
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
        """Whose memories the turn may use."""
        return self.rights.scope

    @property
    def may_act(self) -> bool:
        """Whether tools may have side effects."""
        return self.rights.may_act


def needed(service: Service | None, why: str) -> Service:
    """Return a service of the turn; raises a ToolError that says why there is none."""
    if service is None:
        raise ToolError(why)
    return service


MakesTools = Callable[[], Awaitable[ToolContext]]
"""Makes what the tools of a turn may use."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What became of a call; the texts of errors are written for the model."""

    text: str
    status: ToolStatus


class Hooks(Protocol):
    """What plugins do around a call that the sender may have made.

    Neither raises, and both are over within their time limit: what fails is logged and left out.
    """

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: "ToolContext"
    ) -> str | None:
        """Return why the call must not run, in words for the model; None where it may.

        Args:
            arguments: As the model gave them, checked against the tool's schema.
        """
        ...

    async def after(
        self,
        name: str,
        arguments: Mapping[str, Any],
        outcome: "ToolOutcome",
        context: "ToolContext",
    ) -> None:
        """Take note of what became of a call that ran."""
        ...
