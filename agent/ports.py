"""The agent's ports, which the gateway implements on its database.

The ports of a turn and its tools are created per turn: each is bound to its conversation and to the
people who wrote its messages.
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
"""none: the effect of a call that does not run."""
ToolStatus = Literal[
    "ok", "partial", "error", "unknown", "cancelled", "refused", "vetoed", "denied"
]
"""How a call ended. In the last three cases it did not run: the sender lacks permission, a plugin
vetoed it, a person denied it or did not answer."""

OriginKind = Literal["quoted", "page", "server", "tool", "person", "file", "pasted"]


class Origin(NamedTuple):
    """The source of text that a conversation has read and its own participants did not write.

    Attributes:
        kind: quoted: a quoted or forwarded sender; page: a web page; server: an MCP server; tool:
            another tool that reads outside content, or a memory; person: a quoted or earlier sender
            who may not act; file: attached to a message; pasted: the pasted part of a message.
        which: "platform:sender id", the name of a host, server, tool or file, or the number of a
            message.
    """

    kind: OriginKind
    which: str


StepMark = Literal["linked", "recalled"]
"""Mark of a tool call: it followed a link of a page; the turn had recalled a memory by its end."""
DecidedVerdict = Literal["allow", "ask", "ask_owner", "deny", "veto"]


class Decision(NamedTuple):
    """The recorded decision about a call before it ran, with its reasons.

    Attributes:
        verdict: From the policy (agent/tools/policy.py), or a plugin's veto.
        rule: The policy row; empty for a plugin.
        arguments_sha256: Digest of the arguments as the model wrote them.
        roles: Roles of all people whose messages the turn reads.
        tainted: Whether the turn has read text by people who may not act.
    """

    verdict: DecidedVerdict
    rule: str
    arguments_sha256: str
    roles: tuple[str, ...]
    tainted: bool


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call, for the ledger and the session.

    Attributes:
        provider: As in the settings, like `model`: prices and the meter use these names.
        usage: None if nothing was reported.
        cost_usd: None if the prices are unknown.
        purpose: answer: a step of the loop; summary: for a compaction; embedding: of texts, for
            search; memory: extracts memories from messages; lost: ended without an answer but is
            billed.
        estimated: Whether `usage` is Parley's estimate.
        reported_name: The provider's name for the model that answered.
        ratio: The meter's newest correction factor; None if unchanged.
        prefix: The request's fingerprint; None if useless to the next call.
        id: Identifies a call booked as lost that may have been booked before.
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
    # Short: ids are only compared within one turn.
    id: str = field(default_factory=partial(token_hex, 6), compare=False)


class TurnJournal(Protocol):
    """The durable record of one turn. Every method commits before it returns.

    All raise `LeaseLost` (gateway/errors.py) if another worker has taken over the conversation; the
    turn must then be dropped.
    """

    async def record_message(self, message: ChatMessage, call: ModelCall | None = None) -> int:
        """Append an assistant step or a synthetic request; return its `seq`.

        The `call` that produced it is booked in the same transaction; Parley's own messages have
        none.
        """

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book calls that produced no message."""

    def begin_call(self, call: ModelCall | None) -> None:
        """Set the running call, or None if there is none; returns at once.

        If the turn ends before the call is recorded or booked, `call` is booked with these values.
        """

    async def start_tool(
        self, call: ToolCall, effect: JournaledEffect, decision: Decision | None = None
    ) -> None:
        """Record the intent to run a tool, or that a call does not run, with the decision."""

    async def record_result(
        self,
        message: ChatMessage,
        status: ToolStatus,
        origins: Collection[Origin] = (),
        marks: Collection[StepMark] = (),
    ) -> int:
        """Append a tool's result and close its journal entry; return its `seq`.

        `origins` are those of everything the turn has read so far, for later turns. `marks` are for
        a later attempt at this turn.
        """

    async def store_output(self, text: str) -> str:
        """Store a tool's full output and return its id."""


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message of the transcript as a tool shows it; `at` is an ISO 8601 time in UTC.

    `origins` cover its lineage and its own text; its speakers also count as "quoted".
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
            from_seq: First position to return; None for the newest messages.
            contains: Return only messages that contain this text, ignoring case.
        """

    async def read_output(self, output_id: str) -> str | None:
        """Return a stored tool output of this conversation, or None."""


class Files(Protocol):
    """Accepts the files created by the tools of one turn."""

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        """Store a file to send once with the turn's answer; return the name shown.

        The model's `name` is never used as a path.

        Raises:
            ToolError: It is too large, or there are too many files.
        """


@dataclass(frozen=True, slots=True)
class PlannerState:
    """The planner's state between compactions, kept across restarts.

    Attributes:
        poor_savings: Consecutive compactions that saved less than 10 % of what they could change.
        paused_at_tokens: Size of the view at which automatic compaction was paused; 0 if not
            paused.
        summary_not_before: Seconds since the epoch; the summary model is not asked before that.
    """

    poor_savings: int = 0
    paused_at_tokens: int = 0
    summary_not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Compaction:
    """A change of the view's plan, with the facts to report (one row, one event).

    Attributes:
        tokens_before: Measured; `tokens_after` is estimated on the same scale.
        cache_tokens_lost: Tokens after the first changed byte, which a prompt cache may have held.
        summary_model: None for the extractor or without a new summary.
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
    """The segment started by a compaction; `system` is None if the prompt is unchanged."""

    id: str
    system: str | None = None


class PartStore(Protocol):
    """Stores the paid summaries of parts, across restarts, until the whole is written."""

    async def load(self) -> Mapping[str, str]:
        """Return the texts by key."""

    async def keep(self, key: str, text: str, calls: Sequence[ModelCall]) -> None:
        """Store the summary of a part and book the calls that produced it, in one transaction."""

    async def forget(self) -> None:
        """Delete all parts, since the whole is written."""


class CompactionStore(Protocol):
    """Stores the decisions of one turn's planner."""

    async def commit(self, compaction: Compaction, state: PlannerState) -> NewSegment:
        """Split the lineage in one transaction; later records belong to the new segment.

        Raises:
            LeaseLost: As for the journal (gateway/errors.py).
        """

    async def book(self, calls: Sequence[ModelCall]) -> None:
        """Book the calls of the summary model."""

    async def prepared(self) -> Summary | None:
        """Return the summary written in the background for the current segment.

        Raises:
            SummaryFailed: It failed recently or is still being written: another attempt would be
                paid for twice.
        """

    def prepare(self) -> None:
        """Start writing such a summary in the background; returns at once."""

    async def days(self, first_seq: int, last_seq: int) -> Days:
        """Return the dates of a range of messages; those of this turn may be missing."""

    def archive(self) -> Archive:
        """Return the conversation's records, for its engine."""

    def parts(self) -> PartStore:
        """Return the store for summaries of parts."""

    async def tell(self, what: Literal["clipped", "floor"]) -> None:
        """Warn the user about a limit of compaction, at most once a turn.

        clipped: the model sees only beginning and end of the newest message; floor: the view still
            exceeds
        the threshold because of parts that no plan can change.
        """


class Spending(Protocol):
    """The budgets that apply to a turn."""

    def call(self, forecast_usd: float | None) -> AbstractAsyncContextManager[None]:
        """Reserve the minimum cost of a call while it runs; None if unknown.

        Entering raises `agent.errors.SpendLimitReached` if a budget does not allow the call.
        """

    async def exhausted(self) -> bool:
        """Return whether nothing is left, so that only calls needed for an answer are made."""


InquiryKind = Literal["approval", "clarify"]
MemoryTarget = Literal["memory", "user"]


class Past(Protocol):
    """Finds the taints of a turn that reads the past, such as text by people who may not act."""

    async def taints_of(self, read: Collection[Origin]) -> Collection[Origin]:
        """Return the tainted origins found in past messages with these origins."""

    async def taints(self, *, of_scope: bool = False) -> Collection[Origin]:
        """Return the tainted origins of the conversation since its first message.

        `of_scope` adds all conversations that share its memories.
        """


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to a person that the turn waits for.

    Attributes:
        kind: approval: may this call run; clarify: a question from the agent.
        call_id: The waiting call; one inquiry per call of a turn.
        question: Markdown.
        choices: Button labels of a question; an approval has its own.
        definition: For an approval, a digest of the tool as offered to the model and of the covered
            calls: the approval does not extend to another tool of this name.
        askable: Whether the question can be shown; otherwise only a standing approval counts.
        decision: The reason for an approval; None for a question from the agent.
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
    """The reply that ends an inquiry.

    Attributes:
        text: approval: "once", "conversation" or "deny"; clarify: the person's text.
        by: "platform:sender id" of the person.
    """

    state: Literal["answered", "expired"]
    text: str = ""
    by: str = ""


class People(Protocol):
    """The people of the turn's conversation."""

    async def ask(self, inquiry: Inquiry) -> InquiryReply:
        """Ask once and return the reply.

        A standing approval of the tool for the conversation, granted since its last restart, counts
        as the reply.

        Raises:
            TurnSuspended: No answer yet. The attempt ends, and the turn resumes with the answer or
                on timeout.
            ToolError: It is not askable, and the tool has no approval for the conversation.
        """

    async def decided(self, call_id: str) -> InquiryReply | None:
        """Return the reply about a call's approval, or None if no person was asked.

        Raises:
            TurnSuspended: No answer yet.
        """


MAX_ITEM_CHARS = 300
"""Longest to-do item: a line, not a note."""
_LINE = StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_ITEM_CHARS)


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One to-do item; the constraints are validated on the model's input."""

    __pydantic_config__ = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    content: Annotated[str, _LINE]
    state: Literal["pending", "in_progress", "done", "cancelled"] = "pending"


class Notebook(Protocol):
    """The conversation's to-do list, and the agent's notes.

    Notes belong to the sender in a direct chat, and otherwise to the conversation.
    """

    async def todo(self) -> Sequence[TodoItem]:
        """Return the to-do list."""

    async def set_todo(self, items: Sequence[TodoItem]) -> None:
        """Replace the to-do list."""

    async def notes(self, target: MemoryTarget) -> Sequence[str]:
        """Return the notes, oldest first."""

    async def change(
        self, target: MemoryTarget, *, remove: str | None, add: str | None
    ) -> Sequence[str]:
        """Remove the note that contains `remove`, and put `add` in its place or at the end.

        Returns the new notes. Repeating a change has no effect.

        Raises:
            ToolError: `remove` matches no note or several, or the new note does not fit.
        """


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search; times are ISO 8601, `until` is exclusive."""

    query: str
    limit: int = 10
    neighbours: int = 1
    role: Literal["user", "assistant", "tool"] | None = None
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A message found, with its neighbours in order of seq.

    Attributes:
        here: Whether it is in the turn's own conversation.
        seq: Position of the found message among `messages`.
        holds: Whether it contains a word of the search; otherwise only its neighbours do.
    """

    conversation: int
    title: str
    here: bool
    seq: int
    messages: tuple[PastMessage, ...]
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """The hits of a search, best first; `scope` describes what was searched."""

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
        outcome: As for a turn (agent/turn/loop.py), or "failed" for a crashed child.
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
        """Run a task in a child agent; repeating a call of a turn resumes the same child.

        Raises:
            TurnSuspended: The child waits for a person.
        """


class Progress(Protocol):
    """Shows people which tools are running; both methods return at once and never raise."""

    def working(self, call: ToolCall) -> None:
        """Report that a call starts."""

    def worked(self, call: ToolCall, status: ToolStatus | Literal["waiting"]) -> None:
        """Report that a call has ended or waits for a person."""
