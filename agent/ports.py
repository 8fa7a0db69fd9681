"""The agent's ports, which the gateway implements on its database.

Those of a turn and its tools are made for one turn: each is bound to its conversation, and to the
people whose words are in it.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import ConfigDict, StringConstraints

from agent.context_engine import Archive, Days, Level, Node, Trigger
from agent.messages import ChatMessage, ToolCall, Usage
from agent.models.base import Prefix
from agent.view.view import Summary, ViewPlan

Effect = Literal["read", "idempotent", "side_effect"]
JournaledEffect = Effect | Literal["none"]
"""none: of a call that does not run."""
ToolStatus = Literal[
    "ok", "partial", "error", "unknown", "cancelled", "refused", "vetoed", "denied"
]
"""How a call ended. The last three did not run: the sender may not, a plugin vetoed it, a person
denied it or did not answer."""

OriginKind = Literal["quoted", "page", "server", "tool", "person", "file", "pasted"]


class Origin(NamedTuple):
    """The source of a text that a conversation has read and its own people did not write.

    Attributes:
        kind: quoted: a quoted or forwarded sender; page: of the web; server: of MCP; tool: another
            tool that reads the world outside, or a memory; person: a quoted sender, or one of an
            earlier conversation, who may not act; file: it came with a message; pasted: the part of
            a message that its sender pasted.
        which: "platform:sender id", or the name of a host, server, tool or file, or the number of a
            message.
    """

    kind: OriginKind
    which: str


StepMark = Literal["linked", "recalled"]
"""Of a tool call: it followed a link of a page; by its end the turn had recalled a memory."""
DecidedVerdict = Literal["allow", "ask", "ask_owner", "deny", "veto"]


class Decision(NamedTuple):
    """The decision about a call before it ran, and its grounds; it goes on record.

    Attributes:
        verdict: The policy's (agent/tools/policy.py), or a plugin's veto.
        rule: The row of the policy; empty for a plugin.
        arguments_sha256: Of the arguments as the model wrote them.
        roles: Those of all people whose words the turn reads.
        tainted: Whether the turn has read words of people who may not act.
    """

    verdict: DecidedVerdict
    rule: str
    arguments_sha256: str
    roles: tuple[str, ...]
    tainted: bool


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model, for the ledger and the session.

    Attributes:
        provider: As in the settings, like `model`: prices and the meter use these names.
        usage: None if nothing was reported.
        cost_usd: None if the prices are not known.
        purpose: answer: a step of the loop; summary: a compaction's; embedding: of texts, for the
            search; memory: reads people's words for the memory; lost: it ended without an answer
            and is billed.
        estimated: Whether `usage` is Parley's estimate.
        reported_name: The provider's name of the model that answered.
        ratio: The meter's newest correction of its estimates; None if it did not change.
        prefix: The request's; None if it is of no use to the next call.
        id: A call that is booked as lost may have been booked before.
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
    # Short: ids are compared within one turn.
    id: str = field(default_factory=partial(token_hex, 6), compare=False)


class TurnJournal(Protocol):
    """The durable record of one turn. Every call is committed when it returns.

    All raise `LeaseLost` (gateway/errors.py) if another worker has taken the conversation over; the
    turn must then be dropped.
    """

    async def record_message(self, message: ChatMessage, call: ModelCall | None = None) -> int:
        """Append an assistant step or a synthetic request; returns its `seq`.

        The `call` that made it is booked in the same transaction; Parley's own messages have none.
        """

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book calls that made no message."""

    def begin_call(self, call: ModelCall | None) -> None:
        """Note a call that is under way, or None once nothing is; returns at once.

        If the turn ends before it is recorded or booked, `call` is booked as given here.
        """

    async def start_tool(
        self, call: ToolCall, effect: JournaledEffect, decision: Decision | None = None
    ) -> None:
        """Note, with the decision, the intent to run a tool, or that a call does not run."""

    async def record_result(
        self,
        message: ChatMessage,
        status: ToolStatus,
        origins: Collection[Origin] = (),
        marks: Collection[StepMark] = (),
    ) -> int:
        """Append a tool's result and end its journal entry; returns its `seq`.

        `origins` are those of all that the turn has read by now, for later turns. `marks` are for a
        later attempt at this turn.
        """

    async def store_output(self, text: str) -> str:
        """Store a tool's full output and return its id."""


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message of the transcript as a tool shows it; `at` is an ISO 8601 time in UTC.

    `origins` are those of its lineage and of its own words; its speakers are "quoted" too.
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
            contains: Only messages with this text, letter case ignored.
        """

    async def read_output(self, output_id: str) -> str | None:
        """Return a stored tool output of this conversation, or None if there is none."""


class Files(Protocol):
    """Takes the files that the tools of one turn make."""

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        """Store a file that is shown with the turn's answer, once; returns the name shown.

        The model's `name` is never used as a path.

        Raises:
            ToolError: It is too large, or there are too many.
        """


@dataclass(frozen=True, slots=True)
class PlannerState:
    """The planner's state from one compaction to the next, across restarts.

    Attributes:
        poor_savings: Compactions in a row that saved less than 10 % of what they could touch.
        paused_at_tokens: Size of the view at which automatic compaction was paused; 0 for not.
        summary_not_before: Seconds since the epoch; until then no summary model is asked.
    """

    poor_savings: int = 0
    paused_at_tokens: int = 0
    summary_not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Compaction:
    """A change of the view's plan, and what is reported about it (one row, one event).

    Attributes:
        tokens_before: As measured; `tokens_after` is estimated in the same scale.
        cache_tokens_lost: Tokens after the first changed byte, which a prompt cache may have had.
        summary_model: None for the extractor or no new summary.
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
    """The segment that a compaction has begun; `system` is None if the prompt stays."""

    id: str
    system: str | None = None


class PartStore(Protocol):
    """Keeps the paid summaries of parts, across restarts, until the whole is written."""

    async def load(self) -> Mapping[str, str]:
        """Return the texts by key."""

    async def keep(self, key: str, text: str, calls: Sequence[ModelCall]) -> None:
        """Keep the summary of a part and book the calls that made it, in one transaction."""

    async def forget(self) -> None:
        """Drop all of them, since the whole is written."""


class CompactionStore(Protocol):
    """Takes the decisions of one turn's planner."""

    async def commit(self, compaction: Compaction, state: PlannerState) -> NewSegment:
        """Split the lineage in one transaction; later records belong to the new segment.

        Raises:
            LeaseLost: As for the journal (gateway/errors.py).
        """

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book the calls of the summary model."""

    async def prepared(self) -> Summary | None:
        """Return the summary that was written in the background for the current segment.

        Raises:
            SummaryFailed: It failed a short time ago, or is still being written: another attempt
                would be paid for twice.
        """

    def prepare(self) -> None:
        """Have such a summary written in the background; returns at once."""

    async def days(self, first_seq: int, last_seq: int) -> Days:
        """Return the times of a range of messages; those of this turn may be missing."""

    def archive(self) -> Archive:
        """Return the conversation's records, for its engine."""

    def parts(self) -> PartStore:
        """Return the store of the summaries of parts."""

    async def tell(self, what: Literal["clipped", "floor"]) -> None:
        """Warn the user of a limit of compaction, at most once a turn.

        clipped: the model sees only beginning and end of the newest message; floor: the view is
        still above the threshold, filled by parts that no plan can change.
        """


class Spending(Protocol):
    """The budgets that apply to a turn."""

    def call(self, forecast_usd: float | None) -> AbstractAsyncContextManager[None]:
        """Reserve the least cost of a call while it is made; None if that is not known.

        Entering it raises `agent.errors.SpendLimitReached` if a budget does not allow the call.
        """

    async def exhausted(self) -> bool:
        """Whether nothing is left, so that only calls needed for an answer are made."""


InquiryKind = Literal["approval", "clarify"]
MemoryTarget = Literal["memory", "user"]


class Past(Protocol):
    """Finds the taints of a turn that reads the past, such as words of people who may not act."""

    async def taints_of(self, read: Collection[Origin]) -> Collection[Origin]:
        """Return the tainted origins among those of past messages."""

    async def taints(self, *, of_scope: bool = False) -> Collection[Origin]:
        """Return the tainted origins of the conversation since its first message.

        `of_scope` adds all conversations that share its memories.
        """


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to a person, for which the turn waits.

    Attributes:
        kind: approval: may this call run; clarify: a question of the agent.
        call_id: The call that waits; one inquiry for each call of a turn.
        question: Markdown.
        choices: Labels of the buttons of a question; an approval has its own.
        definition: For an approval, a digest of the tool as the model is offered it, and of the
            approved calls: another tool of this name is not approved.
        askable: Whether the question can be shown; else only a standing approval counts.
        for_owners: Whether owners alone may say yes.
        decision: The reason for an approval; None for a question of the agent.
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
    """The end of an inquiry.

    Attributes:
        text: approval: "once", "conversation" or "deny"; clarify: the person's words.
        by: "platform:sender id" of the person.
    """

    state: Literal["answered", "expired"]
    text: str = ""
    by: str = ""


class People(Protocol):
    """The people of the turn's conversation."""

    async def ask(self, inquiry: Inquiry) -> InquiryReply:
        """Return the reply to an inquiry, which is asked once.

        A standing approval of the tool for the conversation, since its newest start, is the reply.

        Raises:
            TurnSuspended: There is no answer yet. The turn ends its attempt, and goes on with the
                answer, or when the time is over.
            ToolError: It is not askable, and the tool was not approved for the conversation.
        """

    async def decided(self, call_id: str) -> InquiryReply | None:
        """Return the reply about a call's approval, or None if it was not asked for.

        Raises:
            TurnSuspended: There is no answer yet.
        """


MAX_ITEM_CHARS = 300
"""Longest item of the list: a line, not a note."""
_LINE = StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_ITEM_CHARS)


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One item of the list; the constraints are checked on what a model writes."""

    __pydantic_config__ = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    content: Annotated[str, _LINE]
    state: Literal["pending", "in_progress", "done", "cancelled"] = "pending"


class Notebook(Protocol):
    """The conversation's list, and the agent's notes.

    Notes belong to the sender of a direct chat, and to any other conversation itself.
    """

    async def todo(self) -> Sequence[TodoItem]:
        """Return the list."""

    async def set_todo(self, items: Sequence[TodoItem]) -> None:
        """Replace the list."""

    async def notes(self, target: MemoryTarget) -> Sequence[str]:
        """Return the notes, oldest first."""

    async def change(
        self, target: MemoryTarget, *, remove: str | None, add: str | None
    ) -> Sequence[str]:
        """Remove the one note that contains `remove`, put `add` in its place or last.

        Returns the new notes. A change that was made already has no effect.

        Raises:
            ToolError: No note or several match, or there is no room for the new one.
        """


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search; times are ISO 8601, `until` not included."""

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
        here: Whether the conversation is the turn's own.
        seq: Position of the found one among `messages`.
        holds: Whether it contains a word of the search; else only messages next to it do.
    """

    conversation: int
    title: str
    here: bool
    seq: int
    messages: tuple[PastMessage, ...]
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """The hits of a search, best first; `scope` says in words what was searched."""

    hits: tuple[Hit, ...]
    scope: str


class Searcher(Protocol):
    """Searches the whole conversation and, in a direct chat, the sender's other direct chats."""

    async def search(self, query: SearchQuery) -> Findings:
        """Return the hits."""


@dataclass(frozen=True, slots=True)
class Delegated:
    """The end of a delegated task.

    Attributes:
        outcome: As of a turn (agent/turn/loop.py), or "failed" for a child that broke.
        text: The answer, or the reason why there is none.
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
        """Have a child agent do a task; the same call of a turn resumes the same child.

        Raises:
            TurnSuspended: The child waits for a person.
        """


class Progress(Protocol):
    """Shows people the tools at work; both methods return at once and never raise."""

    def working(self, call: ToolCall) -> None:
        """A call begins."""

    def worked(self, call: ToolCall, status: ToolStatus | Literal["waiting"]) -> None:
        """A call has ended, or waits for a person."""
