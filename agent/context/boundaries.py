"""Phases 2 and 4: split a view into head, middle and tail, and build the plan that shows the cut.

Positions are indexes into the request's entries. A group of tool calls and their results is never
split (invariant 6), the newest user message always stays (invariant 7), and no cut leaves two
adjacent messages with the same role.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, product

from agent.context_engine import CompressionRequest, Sizes
from agent.messages import is_ephemeral, text_of
from agent.view.view import Entry, Summary, SummaryRole, SummarySource, ViewPlan

PROTECT_FIRST_N = 3
"""System prompt and first exchange. Source: Hermes, also as a constant."""
SOFT_CEILING = 1.5
"""The tail may exceed its budget by this factor rather than lose a message. Source: Hermes."""
TAIL_CHOICES = 12
"""Number of tail starts to try before shrinking the head."""

Choice = tuple[int, int, tuple[int, ...]]
"""A way to cut: end of the head, start of the tail, positions pinned between them."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Head, middle and tail of a view.

    Attributes:
        tail_start: First position of the tail; the middle lies between.
        pinned: Positions in the middle that stay in the view.
    """

    head_end: int
    tail_start: int
    pinned: tuple[int, ...]
    role: SummaryRole

    @property
    def evicted(self) -> list[int]:
        """Positions that leave the view."""
        middle = range(self.head_end, self.tail_start)
        return [n for n in middle if n not in self.pinned] if self.pinned else list(middle)


def find_boundaries(request: CompressionRequest, tail_starts: Sequence[int]) -> Boundaries | None:
    """Return the best cut with alternating roles, or None without a middle.

    `tail_starts` lists candidates, best first; see `protected_tail` and `starts_before`.
    """
    return next(iterate_cuts(request, tail_starts), None)


def iterate_cuts(request: CompressionRequest, tail_starts: Sequence[int]) -> Iterator[Boundaries]:
    """Yield every cut with alternating roles, best first."""
    # Head and tail meet: nothing lies between them.
    if tail_starts[0] <= head_end_of(request):
        return
    newest = Newest.of(request.entries)
    # `product` varies its last factor first: every tail is tried before the head shrinks.
    ends = product(_head_ends(request, newest), tail_starts)
    choices = ((*each, pinned) for each in ends for pinned in newest.pins(*each))
    yield from fitting(request.entries, choices)


def fitting(entries: Sequence[Entry], choices: Iterable[Choice]) -> Iterator[Boundaries]:
    """Yield the cuts with alternating roles that remove something from the view."""
    for head_end, tail_start, pinned in choices:
        role = _role(entries, head_end, pinned, tail_start)
        found = Boundaries(head_end, tail_start, pinned, role or "user")
        if role is not None and leaving(entries, found):
            yield found


def leaving(entries: Sequence[Entry], cut: Boundaries) -> list[Entry]:
    """Return the messages that leave the view and need a summary, without ephemeral ones."""
    return [entries[n] for n in cut.evicted if not is_ephemeral(entries[n].message)]


def protected_tail(request: CompressionRequest, sizes: Sizes) -> int:
    """Return the start of the tail: by its token budget, or `protect_last_n` messages if longer.

    A group is kept or dropped as a whole.
    """
    entries, limits = request.entries, request.limits
    # A plan without edits shows stored messages, which can be measured without rendering.
    shown = sizes.shown(request.plan) if request.plan.edits else {}
    used, start = 0, len(entries)
    while start > 0:
        first = group_start(entries, start - 1)
        before = used
        used += sum(shown.get(e.seq) or sizes.message(e.message) for e in entries[first:start])
        # One large message may exceed the budget; a full tail does not grow.
        fits = before < limits.tail_tokens and used <= SOFT_CEILING * limits.tail_tokens
        if not fits and len(entries) - start >= limits.protect_last_n:
            break
        start = first
    return start


def starts_before(entries: Sequence[Entry], start: int) -> Iterator[int]:
    """Yield `start`, then the starts of the preceding groups, nearest first."""
    before = (n for n in range(start - 1, -1, -1) if entries[n].message["role"] != "tool")
    yield from (start, *islice(before, TAIL_CHOICES - 1))


def group_start(entries: Sequence[Entry], position: int) -> int:
    """Return the position of the message whose calls `position` answers, else `position`."""
    while 0 < position < len(entries) and entries[position].message["role"] == "tool":
        position -= 1
    return position


@dataclass(frozen=True, slots=True)
class Newest:
    """Positions of the newest user message and the newest visible answer, or -1."""

    user: int
    answer: int

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "Newest":
        """Find both positions."""
        backwards = range(len(entries) - 1, -1, -1)
        users = (n for n in backwards if is_ask(entries[n]))
        answers = (n for n in backwards if _is_answer(entries[n]))
        return cls(next(users, -1), next(answers, -1))

    def pins(self, head_end: int, tail_start: int) -> Iterator[tuple[int, ...]]:
        """Yield possible pins between head and tail: first with the answer, then without it."""
        middle = range(head_end, tail_start)
        user = (self.user,) if self.user in middle else ()
        if self.answer in middle:
            yield tuple(sorted((self.answer, *user)))
        yield user


def is_ask(entry: Entry) -> bool:
    """Return whether a message comes from a person and so starts a round."""
    return entry.message["role"] == "user" and not entry.message.get("synthetic")


def newest_ask(entries: Sequence[Entry]) -> Entry | None:
    """Return the newest message from a person, or None."""
    return next(filter(is_ask, reversed(entries)), None)


def _is_answer(entry: Entry) -> bool:
    message = entry.message
    # A text with tool calls is not the final answer.
    if message["role"] != "assistant" or message.get("tool_calls") or message.get("synthetic"):
        return False
    return bool(text_of(message).strip())


def _head_ends(request: CompressionRequest, newest: Newest) -> Iterator[int]:
    """Yield possible ends of the head, best first; the last is an empty head."""
    entries = request.entries
    end = head_end_of(request)
    second = first_lasting(entries, end)
    # A compacted view already has the summary here: a head is one range of the transcript.
    if end and newest.user == second and not request.plan.compacted:
        # If the second message is the newest, it keeps its place, with the first step after it.
        yield _after_group(entries, second + 1)
    yield end
    first = first_lasting(entries, 0) + 1
    if end > first:
        yield first
    if end:
        yield 0


def head_end_of(request: CompressionRequest) -> int:
    """Return the end of a view's head; the head of a compacted view does not change."""
    entries, plan = request.entries, request.plan
    # A different head would change the first bytes of the request, which are cached.
    if plan.head_upto or plan.compacted:
        return sum(entry.seq <= plan.head_upto for entry in entries)
    first = first_lasting(entries, 0)
    if first == len(entries) or entries[first].message["role"] != "user":
        return 0
    exchange = PROTECT_FIRST_N - 1
    return _after_group(entries, first + 1) if len(entries) - first >= exchange else first + 1


def first_lasting(entries: Sequence[Entry], start: int) -> int:
    """Return the first position from `start` on whose message is not ephemeral.

    Examples and other context of the first question stay in the head with it.
    """
    while start < len(entries) and is_ephemeral(entries[start].message):
        start += 1
    return start


def _after_group(entries: Sequence[Entry], position: int) -> int:
    """Return the position after the assistant message at `position` and its results."""
    if position >= len(entries) or entries[position].message["role"] != "assistant":
        return position
    return behind_results(entries, position)


def behind_results(entries: Sequence[Entry], position: int) -> int:
    """Return the position after a message and the tool results that follow it."""
    position += 1
    while position < len(entries) and entries[position].message["role"] == "tool":
        position += 1
    return position


def _role(
    entries: Sequence[Entry], head_end: int, pinned: tuple[int, ...], tail_start: int
) -> SummaryRole | None:
    before = [entries[head_end - 1].message["role"]] if head_end else []
    kept = [*pinned, tail_start] if tail_start < len(entries) else list(pinned)
    after = [entries[n].message["role"] for n in kept]
    # Without a head the summary comes first, and the first message must be the user's.
    roles: tuple[SummaryRole, ...] = ("user", "assistant") if head_end else ("user",)
    for role in roles:
        # Tool results of one group follow each other.
        if all(one != two or one == "tool" for one, two in pairwise([*before, role, *after])):
            return role
    return None


def assemble(
    request: CompressionRequest, cut: Boundaries, text: str, source: SummarySource, model: str = ""
) -> ViewPlan:
    """Return the plan that shows head, summary, pinned messages and tail.

    The summary covers the previous summary's messages and those that leave the view now. Thoughts
    in the remaining messages are dropped: their signatures are only valid for the previous history.
    """
    evicted = cut.evicted
    ends = [request.entries[n].seq for n in (*evicted[:1], *evicted[-1:])]
    earlier = request.plan.summaries
    summary = Summary(
        text=text,
        first_seq=min([*ends, *(each.first_seq for each in earlier)]),
        last_seq=max([*ends, *(each.last_seq for each in earlier)]),
        role=cut.role,
        source=source,
        model=model,
    )
    return arrange(request, cut, (summary,))


def arrange(request: CompressionRequest, cut: Boundaries, summaries: Iterable[Summary]) -> ViewPlan:
    """Return the plan that shows these summaries between head and tail, in the cut's role."""
    entries = request.entries
    newest_seq = entries[-1].seq
    plan = replace(
        request.plan,
        head_upto=entries[cut.head_end - 1].seq if cut.head_end else 0,
        summaries=tuple(replace(each, role=cut.role) for each in summaries),
        pinned=tuple(entries[n].seq for n in cut.pinned),
        tail_from=entries[cut.tail_start].seq if cut.tail_start < len(entries) else newest_seq + 1,
        thinking_from=newest_seq + 1,
        recall=request.recall,
    )
    # Edits of messages out of view would accumulate. Clips were made for lack of room: remaining
    # messages become whole again, and `converge` clips those that still do not fit.
    kept = (edit for edit in plan.edits if edit.kind != "clip" and plan.shows(edit.seq))
    return replace(plan, edits=tuple(kept))
