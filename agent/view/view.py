"""Views: the part of a transcript that the model sees (invariant 4). Rendering a plan is pure.

A plan is a small value that refers to messages by `seq`; its only texts are the summaries that
replace messages.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple, TypeVar

import orjson

from agent.messages import ChatMessage, ToolCall
from agent.view import edits as rewriting

VERSION = 3
"""Version of stored plans; `load_plan` still reads the earlier ones."""
MARKER = "[CONTEXT COMPACTION]"
REFERENCE = (
    f"{MARKER} Earlier turns were compacted into the summary below. It is a reference, not a"
    " request: do not answer what stands in it, answer only what follows it. The full messages"
    " stay on record."
)
NOTE = (
    "\n\n[Note: Some earlier conversation turns have been compacted into a summary to save context"
    " space. The summary is background; build on it and do not redo work that it reports as done.]"
)

RECALL_WAYS = {
    "session_search": 'session_search(query="...") finds words in everything that was said',
    "lcm_grep": 'lcm_grep(query="...") finds words in this conversation and names their nodes',
    "read_conversation": "read_conversation(from_seq=N) returns messages from number N on",
    "lcm_expand": "lcm_expand(node=N) returns the messages that a node stands for",
}
"""Tools for recalling more, in the order of the text."""
RECALL_BEGIN = (
    "What is not in it can be recalled, so look it up before you guess, with those of these tools"
    " that you have"
)
"""Text before the tools; "that you have", since a plan outlives the engine that offered some."""

E = TypeVar("E", bound=tuple[int, ChatMessage])
SummaryRole = Literal["user", "assistant"]
SummarySource = Literal["model", "extract", "pointer"]
"""Author of a summary: the summary model or the extractor; a pointer only names the range."""
EditKind = Literal["prune", "duplicate", "outline", "arguments", "images", "clip"]

_seq = itemgetter(0)


class Entry(NamedTuple):
    """A stored message and its position in the transcript."""

    seq: int
    message: ChatMessage


@dataclass(frozen=True, slots=True)
class Summary:
    """The text that replaces messages `first_seq` to `last_seq` of the transcript in the view.

    Attributes:
        role: Chosen when the plan is made, so that adjacent messages have different roles.
        model: Name of the summary model, if the summary was written ahead.
        node: Number of its node (agent/context_engine.py); 0 if it has none.
        level: Level of the node; 0 for a leaf.
    """

    text: str
    first_seq: int
    last_seq: int
    role: SummaryRole = "user"
    source: SummarySource = "extract"
    model: str = ""
    node: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True)
class Edit:
    """A message shown in shortened form.

    Attributes:
        kind: prune: a tool result becomes one line; duplicate: likewise, because a later result is
            identical; outline: a very long text becomes an outline; arguments: long values in its
            calls are cut; images: images become labels; clip: texts over `limit` characters keep
            head and tail.
        limit: In characters; 0 if the kind needs none.
    """

    seq: int
    kind: EditKind
    limit: int = 0


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """The messages of the transcript to show, referenced by `seq`, and their edits.

    The view shows the head (`first_seq` to `head_upto`), the summaries, pinned messages, and the
    tail (from `tail_from`). A plan without a tail start shows all messages from `first_seq` on.

    Attributes:
        first_seq: Earlier messages are out of view (`/new` starts after the newest message).
        hidden: Inclusive ranges of seqs to omit (the question of `/retry`).
        head_upto: Newest message of the head; 0 without a head.
        summaries: Shown after the head, in order.
        pinned: Messages shown between head and tail, in order.
        tail_from: First message of the tail; 0 before the first compaction.
        edits: Ordered by seq; at most one of each kind per message.
        thinking_from: Earlier messages are shown without thoughts: signed thinking is bound to the
            exact conversation before it.
        recall: `recall_text` after the reference in the summaries' message; empty before version 3.
    """

    first_seq: int = 1
    hidden: tuple[tuple[int, int], ...] = ()
    head_upto: int = 0
    summaries: tuple[Summary, ...] = ()
    pinned: tuple[int, ...] = ()
    tail_from: int = 0
    edits: tuple[Edit, ...] = ()
    thinking_from: int = 0
    recall: str = ""

    @property
    def compacted(self) -> bool:
        """Whether a summary replaces earlier turns."""
        return bool(self.summaries)

    @property
    def rewritten_upto(self) -> int:
        """Newest old message shown in shortened form; 0 if there is none."""
        return max((edit.seq for edit in self.edits if edit.kind != "clip"), default=0)

    @property
    def newest_named(self) -> int:
        """Newest message that the plan handles other than as part of the tail."""
        edited = max((edit.seq for edit in self.edits), default=0)
        hidden = max((high for _, high in self.hidden), default=0)
        return max(edited, hidden, self.head_upto, self.thinking_from - 1)

    def shows(self, seq: int) -> bool:
        """Return whether the message at `seq` is in the view."""
        if seq < self.first_seq or any(low <= seq <= high for low, high in self.hidden):
            return False
        return seq >= self.tail_from or seq <= self.head_upto or seq in self.pinned

    def select(self, entries: Sequence[E]) -> list[E]:
        """Return the entries in the view, in linear time; entries are ordered by seq."""
        first = bisect_left(entries, self.first_seq, key=_seq)
        head_end = bisect_right(entries, self.head_upto, lo=first, key=_seq)
        tail_start = bisect_left(entries, self.tail_from, lo=head_end, key=_seq)
        middle = entries[head_end:tail_start] if self.pinned else ()
        pinned = [entry for entry in middle if entry[0] in self.pinned]
        shown = [*entries[first:head_end], *pinned, *entries[tail_start:]]
        return [entry for entry in shown if self.shows(entry[0])] if self.hidden else shown

    def hiding(self, low: int, high: int) -> "ViewPlan":
        """Return this plan with another hidden range, without summaries of hidden messages only.

        Without the last summary, the cut messages are shown again.
        """
        plan = replace(self, hidden=(*self.hidden, (low, high)))
        kept = tuple(
            each for each in self.summaries if not low <= each.first_seq <= each.last_seq <= high
        )
        if kept or not self.summaries:
            return replace(plan, summaries=kept)
        return replace(plan, head_upto=0, summaries=(), pinned=(), tail_from=0, recall="")


def render(plan: ViewPlan, entries: Iterable[tuple[int, ChatMessage]]) -> list[ChatMessage]:
    """Return the messages that the plan shows, in order; results follow their calls' order.

    Unedited messages are the input objects.

    Args:
        entries: (seq, message) ordered by seq; may include more than the plan shows.
    """
    shown = plan.select(list(entries))
    messages = rewrite(plan, shown)
    behind_head = bisect_right(shown, plan.head_upto, key=_seq)
    # Each side separately: the summaries are between, and no group spans both (invariant 6).
    head, rest = order_results(messages[:behind_head]), order_results(messages[behind_head:])
    return [*head, *summary_messages(plan), *rest]


def shown_messages(system: str, plan: ViewPlan, entries: Sequence[Entry]) -> list[ChatMessage]:
    """Return the system message followed by the messages that a plan shows."""
    first = ChatMessage(role="system", content=prompt_with_note(system, plan))
    return [first, *render(plan, entries)]


def with_newer(
    plan: ViewPlan, messages: Sequence[ChatMessage], newer: Sequence[Entry]
) -> list[ChatMessage] | None:
    """Append newer messages of the transcript to those of a view.

    Returns None if they change earlier messages or have edits: then the view must be rendered.
    """
    if not newer:
        return [*messages]
    # A result belongs to the group before it and may change its order.
    if newer[0].seq <= plan.newest_named or newer[0].message["role"] == "tool":
        return None
    return [*messages, *order_results([entry.message for entry in newer])]


def summary_messages(plan: ViewPlan) -> list[ChatMessage]:
    """Return the messages of a plan's summaries: adjacent summaries of one role share one."""
    messages: list[ChatMessage] = []
    for role, same in groupby(plan.summaries, key=attrgetter("role")):
        run = [*same]
        covered = f"(messages {run[0].first_seq} to {run[-1].last_seq})"
        blocks = [" ".join(filter(None, (REFERENCE, covered, plan.recall)))]
        for each in run:
            heading = f"[node {each.node}: {each.first_seq} to {each.last_seq}]\n"
            blocks.append(f"{heading if each.node else ''}{each.text}")
        # Synthetic: not a question, and it starts no round.
        messages.append(ChatMessage(role=role, content="\n\n".join(blocks), synthetic=True))
    return messages


def recall_text(tools: Iterable[str]) -> str:
    """Return a summary's hint on recalling more with the offered tools, or "".

    It is stored with the plan, so the plan gives the same bytes in newer versions.
    """
    offered = set(tools)
    ways = [way for name, way in RECALL_WAYS.items() if name in offered]
    if not ways:
        return ""
    return f"{RECALL_BEGIN}: {'; '.join(ways)}."


def prompt_with_note(system: str, plan: ViewPlan) -> str:
    """Return the system prompt of this plan, with the note if the plan is compacted."""
    return system + NOTE if plan.compacted else system


def rewrite(plan: ViewPlan, shown: Sequence[tuple[int, ChatMessage]]) -> list[ChatMessage]:
    """Apply the plan's edits; unedited messages are the input objects."""
    if not plan.edits and not plan.thinking_from:
        return [message for _, message in shown]
    by_seq: dict[int, list[Edit]] = {}
    for edit in plan.edits:
        by_seq.setdefault(edit.seq, []).append(edit)
    calls: dict[str, ToolCall] = {}
    messages: list[ChatMessage] = []
    for seq, message in shown:
        if message["role"] == "assistant":
            # Only the newest message's calls: later groups may reuse ids.
            calls = {call["id"]: call for call in message.get("tool_calls") or ()}
        kept = message if seq >= plan.thinking_from else rewriting.without_thinking(message)
        edits = by_seq.get(seq)
        messages.append(_edited(Entry(seq, kept), edits, calls) if edits else kept)
    return messages


def _edited(entry: Entry, edits: Sequence[Edit], calls: Mapping[str, ToolCall]) -> ChatMessage:
    message = entry.message
    for edit in sorted(edits, key=lambda edit: _ORDER.index(edit.kind)):
        match edit.kind:
            case "prune":
                message = rewriting.pruned(message, calls.get(message.get("tool_call_id", "")))
            case "duplicate":
                message = rewriting.duplicate(message)
            case "outline":
                message = rewriting.outlined(message, entry.seq)
            case "arguments":
                message = rewriting.with_short_arguments(message, edit.limit)
            case "images":
                message = rewriting.without_images(message)
            case "clip":
                message = rewriting.clipped(message, edit.limit, entry.seq)
    return message


_ORDER: tuple[EditKind, ...] = ("duplicate", "prune", "outline", "arguments", "images", "clip")
"""Clips come last: the other edits mention the original size."""


def order_results(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Sort each group's results, which are stored in order of completion, by its calls.

    Calls and results of a group are adjacent in the transcript.
    """
    ordered: list[ChatMessage] = []
    for is_result, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        group = list(run)
        if is_result and len(group) > 1 and ordered:
            calls = ordered[-1].get("tool_calls") or ()
            places = {call["id"]: n for n, call in enumerate(calls)}
            group.sort(key=lambda message: places.get(message["tool_call_id"], 0))
        ordered += group
    return ordered


@dataclass(slots=True)
class View:
    """The view of a running turn: its plan, the originals that it shows, and the messages.

    `messages` starts with the system message and only grows at its end until `adopt` applies
    another plan. `settled` are the positions up to which old messages were rewritten: by this plan
    and, until the view grows, by the previous one. The next compaction rewrites what follows.
    `rendered` are `messages` if the caller already has them.
    """

    system: str
    plan: ViewPlan
    entries: list[Entry]
    rendered: InitVar[list[ChatMessage] | None] = None
    messages: list[ChatMessage] = field(init=False)
    settled: list[int] = field(init=False)
    _former: ViewPlan = field(init=False)

    def __post_init__(self, rendered: list[ChatMessage] | None) -> None:
        self._former = self.plan
        if rendered is None:
            self.adopt(self.plan)
        else:
            self.messages = rendered
            self._settle()

    @property
    def moved(self) -> bool:
        """Whether nothing was added since its plan was made, so no request has shown it yet."""
        return bool(self.entries) and self.entries[-1].seq < self.plan.thinking_from

    def adopt(self, plan: ViewPlan) -> None:
        """Apply another plan of the same transcript, and drop originals that are out of view."""
        self.plan = plan
        self.entries = plan.select(self.entries)
        self.messages = shown_messages(self.system, plan, self.entries)
        self._settle()

    def take(self, other: "View") -> None:
        """Take over another view of the same transcript, which must not be used afterwards."""
        self.plan, self.entries, self.messages = other.plan, other.entries, other.messages
        self._settle()

    def begin_with(self, system: str) -> None:
        """Replace the system prompt before the same messages."""
        self.system = system
        first = ChatMessage(role="system", content=prompt_with_note(system, self.plan))
        self.messages = [first, *self.messages[1:]]

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add the newest messages of the transcript, in display order.

        A group's results follow the order of its calls, not of their seqs.
        """
        # Ordered by seq: `select` uses binary search.
        self.entries += sorted(entries, key=lambda entry: entry.seq)
        self.messages += [entry.message for entry in entries]
        # The next request no longer continues the messages shown under the former plan.
        if self._former is not self.plan:
            self._former = self.plan
            self._settle()

    def _settle(self) -> None:
        ends = {plan.rewritten_upto for plan in (self._former, self.plan)}
        self.settled = sorted({place for seq in ends if (place := self._place_of(seq))})

    def _place_of(self, seq: int) -> int:
        """Find the position of the newest message up to `seq`; 0 if there is none."""
        shown = bisect_right(self.entries, seq, key=_seq)
        behind_head = seq > self.plan.head_upto
        return shown + len(summary_messages(self.plan)) if shown and behind_head else shown


def dump_plan(plan: ViewPlan) -> str:
    """Serialize a plan to versioned JSON, omitting the values of an empty plan."""
    named = {each.name: getattr(plan, each.name) for each in fields(plan)}
    own = {name: value for name, value in named.items() if value != getattr(_EMPTY, name)}
    return orjson.dumps({"version": VERSION, **own}).decode()


_EMPTY = ViewPlan()


def load_plan(text: str) -> ViewPlan:
    """Parse a plan written by `dump_plan`; raise a ValueError for an unknown version."""
    data = orjson.loads(text)
    version = data.pop("version", None)
    # Databases contain plans of released versions, which are not rewritten.
    if version not in {1, 2, VERSION}:
        raise ValueError(f"unknown version of a view plan: {text[:80]}")
    summaries = tuple(Summary(**item) for item in data.get("summaries", ()))
    head_upto = data.get("head_upto", 0)
    # Up to 0.6 a head could overlap the summary's range, and no compaction could remove it.
    return ViewPlan(**{
        **data,
        "hidden": tuple((low, high) for low, high in data.get("hidden", ())),
        "head_upto": min([head_upto, *(each.first_seq - 1 for each in summaries[:1])]),
        "summaries": summaries,
        "pinned": tuple(data.get("pinned", ())),
        "edits": tuple(Edit(**item) for item in data.get("edits", ())),
    })
