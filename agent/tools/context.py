"""What a tool may use of the turn that it runs in, and of whoever runs that.

The gateway implements these ports for one turn at a time: each is bound to the conversation of the
turn, and to the people whose words are in it. The transcript's port is in agent/ports.py.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from typing_extensions import override

from agent.context_engine import ContextEngine
from agent.messages import ToolCall
from agent.ports import (
    ConversationReader,
    Decision,
    Files,
    Origin,
    OriginKind,
    PastMessage,
    StepMark,
    ToolStatus,
)
from agent.prompt.skills import SkillShelf
from agent.tools.addresses import Trail

InquiryKind = Literal["approval", "clarify"]
MemoryTarget = Literal["memory", "user"]


Redirects = Callable[[str], str]
"""Returns the rule of the policy that forbids a redirect to this address of another host; empty if
none does."""


def no_redirects(_: str, /) -> str:
    """Let nothing lead on: no policy was asked."""
    return "no rule"


class Past(Protocol):
    """Tells what the past of a conversation taints a turn with that reads of it.

    People whose words it holds do where they may not act now.
    """

    async def taints_of(self, read: Collection[Origin]) -> Collection[Origin]:
        """Return what taints of what past messages hold."""
        ...

    async def taints(self, *, of_scope: bool = False) -> Collection[Origin]:
        """Return what taints of all that the conversation holds since its first message.

        Args:
            of_scope: Of all conversations that share its memories.
        """
        ...


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
        marks: dict[StepMark, bool] = {
            "linked": call_id in self.may_follow,
            "recalled": self.trail.recalled,
        }
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
        may_act: Whether tools may have side effects: not for senders who are only let talk.
        by_owners: Whether all of them are owners.
        roles: Of all of them, as agent/tools/policy.py names them.
        group: "platform:chat"; empty in a direct chat.
        read: What the turn has read beside their words.
        redirects: Where a page may lead the call that runs.
    """

    scope: str = ""
    may_act: bool = True
    by_owners: bool = False
    roles: frozenset[str] = frozenset({"member"})
    group: str = ""
    read: Provenance = field(default_factory=Provenance)
    redirects: Redirects = field(default=no_redirects, repr=False)


@dataclass(frozen=True, slots=True)
class ToolServices:
    """What Parley's own tools use beside the transcript; None where there is none.

    Attributes:
        delegates: Runs child agents.
        skills: The operator's.
        hooks: What plugins do before and after a call.
        progress: Shows which calls run.
    """

    engine: ContextEngine | None = None
    people: "People | None" = None
    notebook: "Notebook | None" = None
    searcher: "Searcher | None" = None
    delegates: "Delegates | None" = None
    skills: SkillShelf | None = None
    hooks: "Hooks | None" = None
    progress: "Progress | None" = None


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use of the turn it runs in; docs/plugins.md tells what plugins' tools get.

    Attributes:
        reader: Reads the transcript of this conversation, and no other.
        clock: Returns the current time, aware.
        files: Takes files that are to be shown with the answer; None where none can be.
        workspace: The conversation's own directory, where tools that touch files work; None where
            there is none.
        rights: What those may do whose words the turn reads.
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


MakesTools = Callable[[], Awaitable[ToolContext]]
"""Makes what the tools of a turn may use."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What became of a call; the texts of errors are written for the model.

    Attributes:
        rule: The row of the policy by which the registry refused it.
    """

    text: str
    status: ToolStatus
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Something that a person is asked while the turn waits.

    Attributes:
        kind: approval: may this call run; clarify: a question of the agent.
        call_id: The call that waits; one inquiry for each call of a turn.
        question: In Markdown.
        choices: Labels of the buttons of a question; an approval has its own.
        definition: Of an approval, a digest of the tool as the model is offered it, and of which
            calls of it are meant: what stays approved is that, not whatever comes under its name.
        askable: Whether there is a question that can be shown; else only a standing approval
            counts.
        for_owners: Whether owners alone may say yes.
        decision: Why somebody is asked; None for a question of the agent.
    """

    kind: InquiryKind
    call_id: str
    tool: str
    question: str
    choices: tuple[str, ...] = ()
    definition: str = ""
    askable: bool = True
    for_owners: bool = False
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class InquiryReply:
    """What became of an inquiry.

    Attributes:
        state: expired: nobody answered in time.
        text: approval: "once", "conversation" or "deny"; clarify: what was said.
        by: Who answered, "platform:sender id".
    """

    state: Literal["answered", "expired"]
    text: str = ""
    by: str = ""


class People(Protocol):
    """The people of the turn's conversation."""

    async def ask(self, inquiry: Inquiry) -> InquiryReply:
        """Return the reply to an inquiry; asked once, however often this is called.

        Nobody is asked for a tool that was approved for the conversation, since it began anew
        last: that is the reply.

        Raises:
            TurnSuspended: Nobody has answered yet. The turn ends its attempt, and goes on once
                somebody has, or the time is over.
            ToolError: It is not askable, and the tool was not approved for the conversation.
        """
        ...

    async def decided(self, call_id: str) -> InquiryReply | None:
        """Return what became of the question whether a call may run; None if nobody was asked.

        Raises:
            TurnSuspended: Nobody has answered yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One thing to be done."""

    content: str
    state: Literal["pending", "in_progress", "done", "cancelled"] = "pending"


class Notebook(Protocol):
    """What the agent keeps for itself: the conversation's list, and what it has noted down.

    Notes belong to the sender of a direct chat, and to the conversation everywhere else.
    """

    async def todo(self) -> Sequence[TodoItem]:
        """Return the list."""
        ...

    async def set_todo(self, items: Sequence[TodoItem]) -> None:
        """Replace the list."""
        ...

    async def notes(self, target: MemoryTarget) -> Sequence[str]:
        """Return the notes in the order in which they were made."""
        ...

    async def change(
        self, target: MemoryTarget, *, remove: str | None, add: str | None
    ) -> Sequence[str]:
        """Take out the one note that holds `remove`, put `add` in its place or behind the others.

        Returns:
            The notes as they stand now. A change that was made already has no effect.

        Raises:
            ToolError: No note or several hold it, or there is no room for the new one.
        """
        ...


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What is searched for; times are ISO 8601, `until` not included."""

    text: str
    limit: int = 10
    neighbours: int = 1
    role: Literal["user", "assistant", "tool"] | None = None
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found, among its neighbours in order of seq.

    Attributes:
        conversation: Its id; `title` what it is called, `here` whether it is the turn's own.
        seq: Which of `messages` was found.
        holds: Whether it holds a word that was looked for; else only messages next to it do.
    """

    conversation: int
    title: str
    here: bool
    seq: int
    messages: tuple[PastMessage, ...]
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search found, best first; `scope` says in words what was and was not looked at."""

    hits: tuple[Hit, ...]
    scope: str


class Searcher(Protocol):
    """Searches what the turn may see.

    That is its own conversation from its first message on and, in a direct chat, the other direct
    chats of the same sender.
    """

    async def search(self, query: SearchQuery) -> Findings:
        """Return what was found."""
        ...


@dataclass(frozen=True, slots=True)
class Delegated:
    """How a delegated task ended.

    Attributes:
        outcome: As of a turn (agent/turn/loop.py), or "failed" for a child that broke.
        text: What it answered; else why there is no answer.
    """

    outcome: str
    text: str
    conversation: int
    iterations: int = 0
    used_tokens: int = 0
    cost_usd: float | None = None


class Delegates(Protocol):
    """Runs child agents, each in a conversation of its own."""

    async def run(self, call_id: str, task: str) -> Delegated:
        """Have a child agent do a task; for the same call of a turn it is one child, resumed.

        Raises:
            TurnSuspended: The child waits for a person.
        """
        ...


class Progress(Protocol):
    """Shows people what the tools of the turn do; both return at once and never raise."""

    def working(self, call: ToolCall) -> None:
        """A call begins."""
        ...

    def worked(self, call: ToolCall, status: ToolStatus | Literal["waiting"]) -> None:
        """A call has ended, or waits for a person."""
        ...


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
