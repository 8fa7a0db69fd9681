"""What the agent needs from its caller. The gateway implements these ports on its database.

Those of a turn and its tools are made for one turn at a time: each is bound to the conversation of
the turn, and to the people whose words are in it.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import ConfigDict, StringConstraints

from agent.context_engine import Archive, Days, Level, Node, Trigger
from agent.messages import ChatMessage, ToolCall
from agent.models.prefix import Prefix
from agent.usage import Usage
from agent.view.view import Summary, ViewPlan

Effect = Literal["read", "idempotent", "side_effect"]
JournaledEffect = Effect | Literal["none"]
"""none: of a call that does not run."""
ToolStatus = Literal[
    "ok", "partial", "error", "unknown", "cancelled", "refused", "vetoed", "denied"
]
"""What became of a call. The last three did not run: the sender may not, a plugin said no, a person
did or nobody said yes."""

OriginKind = Literal["quoted", "page", "server", "tool", "person", "file", "pasted"]


class Origin(NamedTuple):
    """Where a text comes from that a conversation has read beside the words of its own people.

    Attributes:
        kind: quoted: somebody who was quoted or forwarded; page: of the web; server: of MCP; tool:
            another one that reads the world outside, or a memory; person: one who is quoted, or
            whose words come back from an earlier conversation, and who may not act; file: one that
            came with a message; pasted: the part of a message that its sender pasted.
        which: Names it: "platform:sender id", a host, a server, a tool, a file, the number of a
            message.
    """

    kind: OriginKind
    which: str


StepMark = Literal["linked", "recalled"]
"""Of a tool's call: it took a link of a page; by its end the turn had recalled something."""
DecidedVerdict = Literal["allow", "ask", "ask_owner", "deny", "veto"]


class Decision(NamedTuple):
    """What was decided about a call before it ran, and on what grounds; it goes on record.

    Attributes:
        verdict: allow, ask, ask_owner or deny by the policy (agent/tools/policy.py); veto by a
            plugin.
        rule: The row of the policy; empty for a plugin.
        arguments_sha256: Of the arguments as the model wrote them.
        roles: Of all whose words the turn reads.
        tainted: Whether it has read what somebody wrote who may not act.
    """

    verdict: DecidedVerdict
    rule: str
    arguments_sha256: str
    roles: tuple[str, ...]
    tainted: bool


CALL_ID_BYTES = 6
"""Enough, since ids are compared within one turn."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model, as it is booked (ledger) and remembered (session).

    Attributes:
        provider: As in the settings; `model` too: prices and the meter go by these names.
        purpose: answer: a step of the loop; summary: a compaction's;
            embedding: of texts, for the search; memory: what people said was read for the memory;
            lost: it ended without an answer and is billed all the same.
        usage: None where nothing was reported.
        estimated: Whether `usage` is Parley's estimate, not the provider's report.
        cost_usd: None where the prices are not known.
        reported_name: What the provider called the model that answered.
        ratio: What the meter has learned about its estimates by now; None for nothing new.
        prefix: What was sent; None where that is of no use to the next call.
        id: Tells calls apart: one that is booked as lost may have been booked before.
    """

    provider: str
    model: str
    usage: Usage | None
    cost_usd: float | None
    purpose: Literal["answer", "summary", "embedding", "memory", "lost"] = "answer"
    estimated: bool = False
    reported_name: str = ""
    ratio: float | None = None
    prefix: Prefix | None = None
    id: str = field(default_factory=partial(token_hex, CALL_ID_BYTES), compare=False)


class TurnJournal(Protocol):
    """The durable record of one turn. Every call is committed when it returns.

    All raise `LeaseLost` (gateway/errors.py) when another worker has taken the conversation over;
    the turn must then be dropped.
    """

    async def record_message(self, message: ChatMessage, call: ModelCall | None = None) -> int:
        """Append an intermediate message of this turn: an assistant step or a synthetic request.

        Args:
            message: To be stored.
            call: What made it, booked in the same transaction; None for Parley's own messages.

        Returns:
            Its `seq` in the transcript.
        """
        ...

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book calls that made no message; an empty list does nothing."""
        ...

    def begin_call(self, call: ModelCall | None) -> None:
        """Take note of a call that is under way, or of an answer that is not recorded yet.

        If the turn ends before it is recorded or booked, `call` is booked as it stands here. None:
        nothing is under way any more. Returns at once.
        """
        ...

    async def start_tool(
        self, call: ToolCall, effect: JournaledEffect, decision: Decision | None = None
    ) -> None:
        """Note the intent to run a tool before it runs, or that a call does not run.

        With it goes what was decided about the call, where that is to be on record.
        """
        ...

    async def record_result(
        self,
        message: ChatMessage,
        status: ToolStatus,
        origins: Collection[Origin] = (),
        marks: Collection[StepMark] = (),
    ) -> int:
        """Append a tool's result and end its journal entry; returns its `seq`.

        `origins` of all that the turn has read by now are on record with the result: whoever goes
        on with the conversation knows them. `marks` are for a later attempt at the turn.
        """
        ...

    async def store_output(self, text: str) -> str:
        """Store a tool's full output; return the id under which it can be read again."""
        ...


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message of the transcript as a tool shows it; `at` is an ISO 8601 time in UTC.

    Attributes:
        origins: What its lineage had read, and whose words it holds; both are "quoted" here, who
            spoke and who was quoted.
    """

    seq: int
    role: str
    text: str
    at: str
    origins: tuple[Origin, ...] = ()


class ConversationReader(Protocol):
    """Read access to the transcript of the one conversation that a turn belongs to."""

    async def read(
        self, *, from_seq: int | None, limit: int, contains: str | None
    ) -> Sequence[PastMessage]:
        """Return messages in order of `seq`, at most `limit` (1 to 200).

        Args:
            from_seq: First position to return; None for the newest ones.
            contains: Only messages whose text holds this, letter case ignored.
        """
        ...

    async def read_output(self, output_id: str) -> str | None:
        """Return a stored tool output of this conversation; None if there is none."""
        ...


class Files(Protocol):
    """Where the tools of one turn put the files that they make."""

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        """Store a file that is shown with the turn's answer; the same again is one file.

        Args:
            name: As the model calls it; no path is opened or kept.
            content: Its bytes.

        Returns:
            The name under which it is shown.

        Raises:
            ToolError: It is too large, or there are too many.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlannerState:
    """What the planner remembers from one compaction to the next, across restarts.

    Attributes:
        poor_savings: Compactions in a row that saved less than 10 % of what they could touch.
        paused_at_tokens: Size of the view at which automatic compaction was paused; 0 for not.
        summary_not_before: Seconds since the epoch; until then the loop does not ask the summary
            model.
    """

    poor_savings: int = 0
    paused_at_tokens: int = 0
    summary_not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Compaction:
    """A change of the view's plan, and what is reported about it (one row, one event).

    Attributes:
        tokens_before: As measured; `tokens_after` is estimated in the same scale.
        summary_model: Who wrote the summary; None for the extractor or no new summary.
        cache_tokens_lost: Tokens behind the first changed byte, which a prompt cache held at best.
        nodes: New nodes, stored in the same transaction.
    """

    plan: ViewPlan
    trigger: Trigger
    engine: str
    level: Level
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    duration_ms: int
    cache_tokens_lost: int
    summary_model: str | None = None
    retained_share: float | None = None
    failure: str | None = None
    nodes: tuple[Node, ...] = ()


class NewSegment(NamedTuple):
    """The segment that a compaction has begun; `system` is its prompt, None where that stays."""

    id: str
    system: str | None = None


class PartStore(Protocol):
    """Keeps the summaries of parts of one conversation until the whole is written.

    What was paid for is not paid for again, whatever becomes of the process.
    """

    async def load(self) -> Mapping[str, str]:
        """Return the texts that are there, by key."""
        ...

    async def keep(self, key: str, text: str, calls: Sequence[ModelCall]) -> None:
        """Keep the summary of a part and book the calls that made it, in one transaction."""
        ...

    async def forget(self) -> None:
        """Drop all of them: the whole is written."""
        ...


class CompactionStore(Protocol):
    """Where the planner of one turn commits what it decided."""

    async def commit(self, compaction: Compaction, state: PlannerState) -> NewSegment:
        """Split the lineage in one transaction; later records belong to the new segment.

        Returns:
            The new segment.

        Raises:
            LeaseLost: As for the journal (gateway/errors.py).
        """
        ...

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book the calls of the summary model; an empty list does nothing."""
        ...

    async def prepared(self) -> Summary | None:
        """Return the summary that was written in the background for the segment in force.

        Raises:
            SummaryFailed: It was tried a short time ago, or is being tried for longer than can be
                waited for: whoever tried now would pay for it twice.
        """
        ...

    def prepare(self) -> None:
        """Ask for such a summary to be written in the background; returns at once."""
        ...

    async def days(self, first_seq: int, last_seq: int) -> Days:
        """Return when the messages of a range were said; those of this turn may be missing."""
        ...

    def archive(self) -> Archive:
        """Return the records of the conversation, for its engine."""
        ...

    def parts(self) -> PartStore:
        """Return where the summaries of parts are kept."""
        ...

    async def tell(self, what: Literal["clipped", "floor"]) -> None:
        """Tell the user what a compaction could not spare them, at most once a turn.

        clipped: the newest message is shown by its beginning and end only; floor: the view is
        still above the threshold, since what no plan can change fills it.
        """
        ...


class Spending(Protocol):
    """The budgets of whoever a turn is for."""

    def call(self, forecast_usd: float | None) -> AbstractAsyncContextManager[None]:
        """Hold what a call will cost at least while it is made; None where that is not known.

        Entering it raises `agent.errors.SpendLimitReached` where a budget does not allow the call.
        """
        ...

    async def exhausted(self) -> bool:
        """Whether nothing is left: what is not needed for an answer is not asked for."""
        ...


InquiryKind = Literal["approval", "clarify"]
MemoryTarget = Literal["memory", "user"]


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


MAX_ITEM_CHARS = 300
"""Of one item of the list: a line, not a note."""
_Line = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_ITEM_CHARS)
]


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One thing to be done; the constraints are checked where a model writes it."""

    __pydantic_config__ = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    content: _Line
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

    query: str
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
