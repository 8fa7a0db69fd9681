"""Phases 2 and 4: where head, middle and tail of a view lie, and the plan that shows such a cut.

All positions are indexes into the entries of the request. A group of tool calls and their results
is never cut (invariant 6), the newest user message always stays (invariant 7), and no two
neighbours get the same role because of the cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Literal

from agent.context_engine import CompressionRequest, Sizes
from agent.messages import is_ephemeral, text_of
from agent.view.view import Entry, Summary, ViewPlan

PROTECT_FIRST_N = 3
"""System prompt and first exchange. Source: Hermes, where it is a constant, too."""
SOFT_CEILING = 1.5
"""The tail may exceed its budget by this factor rather than lose a message. Source: Hermes."""
TAIL_CHOICES = 12
"""How many starts of the tail are tried before the head gives way."""

SummaryRole = Literal["user", "assistant"]
Choice = tuple[int, int, tuple[int, ...]]
"""A way to cut: end of the head, start of the tail, what is pinned between them."""
SummarySource = Literal["model", "extract", "pointer"]


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where head, middle and tail of a view lie.

    Attributes:
        head_end: The head is everything before it.
        tail_start: The tail is everything from it on; the middle lies between.
        pinned: Positions in the middle that stay in the view.
        role: Of the summary message.
    """

    head_end: int
    tail_start: int
    pinned: tuple[int, ...]
    role: SummaryRole

    @property
    def evicted(self) -> list[int]:
        """The positions that leave the view."""
        middle = range(self.head_end, self.tail_start)
        return [n for n in middle if n not in self.pinned] if self.pinned else list(middle)


def find_boundaries(request: CompressionRequest, tail_starts: Sequence[int]) -> Boundaries | None:
    """Return the first way to cut in which all roles fit; None where there is no middle.

    Args:
        tail_starts: Possible starts of the tail, best first; see `protected_tail` and
            `starts_before`.
    """
    return next(cuts(request, tail_starts), None)


def cuts(request: CompressionRequest, tail_starts: Sequence[int]) -> Iterator[Boundaries]:
    """Yield every way to cut in which all roles fit, best first."""
    # Head and tail meet: there is no middle.
    if tail_starts[0] <= head_end_of(request):
        return
    newest = Newest.of(request.entries)
    # `product` turns its last factor first: every tail is tried before the head gives way.
    ends = product(_head_ends(request, newest), tail_starts)
    choices = ((*each, pinned) for each in ends for pinned in newest.pins(*each))
    yield from fitting(request.entries, choices)


def fitting(entries: Sequence[Entry], choices: Iterable[Choice]) -> Iterator[Boundaries]:
    """Yield those of the ways to cut in which all roles fit and something leaves the view."""
    for head_end, tail_start, pinned in choices:
        role = _role(entries, head_end, pinned, tail_start)
        found = Boundaries(head_end, tail_start, pinned, role or "user")
        if role is not None and leaving(entries, found):
            yield found


def leaving(entries: Sequence[Entry], cut: Boundaries) -> list[Entry]:
    """Return what leaves the view and is worth a summary: what was only told beside goes unsaid."""
    return [entries[n] for n in cut.evicted if not is_ephemeral(entries[n].message)]


def protected_tail(request: CompressionRequest, sizes: Sizes) -> int:
    """Return where the tail starts: by its token budget, or `protect_last_n` messages if longer.

    Groups are kept or left as a whole.
    """
    entries, limits = request.entries, request.limits
    # Without edits all is shown as it is stored, and need not be rendered again to be measured.
    shown = sizes.shown(request.plan) if request.plan.edits else {}
    used, start = 0, len(entries)
    while start > 0:
        first = group_start(entries, start - 1)
        before = used
        used += sum(shown.get(e.seq) or sizes.message(e.message) for e in entries[first:start])
        # One large message may go over the budget; nothing is added to a tail that is full.
        fits = before < limits.tail_tokens and used <= SOFT_CEILING * limits.tail_tokens
        if not fits and len(entries) - start >= limits.protect_last_n:
            break
        start = first
    return start


def starts_before(entries: Sequence[Entry], start: int) -> Iterator[int]:
    """Yield `start`, then the starts of the groups before it, nearest first."""
    yield start
    found = 1
    for n in range(start - 1, -1, -1):
        if found == TAIL_CHOICES:
            return
        if entries[n].message["role"] != "tool":
            found += 1
            yield n


def group_start(entries: Sequence[Entry], position: int) -> int:
    """Return the position of the message whose calls `position` answers; else `position` itself."""
    while 0 < position < len(entries) and entries[position].message["role"] == "tool":
        position -= 1
    return position


@dataclass(frozen=True, slots=True)
class Newest:
    """Positions of the newest user message and the newest visible answer; -1 for none."""

    user: int
    answer: int

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "Newest":
        """Find both."""
        users = (n for n in _backwards(entries) if is_ask(entries[n]))
        answers = (n for n in _backwards(entries) if _is_answer(entries[n]))
        return cls(next(users, -1), next(answers, -1))

    def pins(self, head_end: int, tail_start: int) -> Iterator[tuple[int, ...]]:
        """Yield what may be pinned between head and tail; the answer may be given up, last."""
        middle = range(head_end, tail_start)
        user = (self.user,) if self.user in middle else ()
        if self.answer in middle:
            # Both first: of the two the answer is given up, and never the question.
            yield tuple(sorted((self.answer, *user)))
        yield user


def _backwards(entries: Sequence[Entry]) -> range:
    return range(len(entries) - 1, -1, -1)


def is_ask(entry: Entry) -> bool:
    """Tell whether a message is a person's: with it a round begins."""
    return entry.message["role"] == "user" and not entry.message.get("synthetic")


def newest_ask(entries: Sequence[Entry]) -> Entry | None:
    """Return the newest message of a person; None without any."""
    return next(filter(is_ask, reversed(entries)), None)


def _is_answer(entry: Entry) -> bool:
    message = entry.message
    # A text beside calls is said on the way, and is no answer that anybody waits for.
    if message["role"] != "assistant" or message.get("tool_calls") or message.get("synthetic"):
        return False
    return bool(text_of(message).strip())


def _head_ends(request: CompressionRequest, newest: Newest) -> Iterator[int]:
    """Yield possible ends of the head, best first; the last resort is no head at all."""
    entries = request.entries
    end = head_end_of(request)
    second = first_said(entries, end)
    # In a view that is compacted the summary stands there: a head is one range of the transcript.
    if end and newest.user == second and not request.plan.compacted:
        # The newest message is the second one: it stays where it is, with the first step after it.
        yield _after_group(entries, second + 1)
    yield end
    first = first_said(entries, 0) + 1
    if end > first:
        yield first
    if end:
        yield 0


def head_end_of(request: CompressionRequest) -> int:
    """Return where the head of a view ends: of a compacted one it stays."""
    entries, plan = request.entries, request.plan
    # A head that moved would change the first bytes of the request, which are in the cache.
    if plan.head_upto or plan.compacted:
        return sum(entry.seq <= plan.head_upto for entry in entries)
    first = first_said(entries, 0)
    if first == len(entries) or entries[first].message["role"] != "user":
        return 0
    exchange = PROTECT_FIRST_N - 1
    return _after_group(entries, first + 1) if len(entries) - first >= exchange else first + 1


def first_said(entries: Sequence[Entry], start: int) -> int:
    """Return the first position from `start` on of a message that is not ephemeral.

    Examples and what is told beside the first question stay in the head with it.
    """
    while start < len(entries) and is_ephemeral(entries[start].message):
        start += 1
    return start


def _after_group(entries: Sequence[Entry], position: int) -> int:
    """Return the position behind the assistant message at `position` and its results."""
    if position >= len(entries) or entries[position].message["role"] != "assistant":
        return position
    return behind_results(entries, position)


def behind_results(entries: Sequence[Entry], position: int) -> int:
    """Return the position behind a message and the tool results that follow it."""
    position += 1
    while position < len(entries) and entries[position].message["role"] == "tool":
        position += 1
    return position


def _role(
    entries: Sequence[Entry], head_end: int, pinned: tuple[int, ...], tail_start: int
) -> SummaryRole | None:
    """Return the summary's role if all seams fit; None otherwise."""
    before = [entries[head_end - 1].message["role"]] if head_end else []
    kept = [*pinned, tail_start] if tail_start < len(entries) else list(pinned)
    after = [entries[n].message["role"] for n in kept]
    # Without a head the summary is the first message, which must be the user's.
    roles: tuple[SummaryRole, ...] = ("user", "assistant") if head_end else ("user",)
    for role in roles:
        # Several results may follow each other: they belong to one group of calls.
        if all(one != two or one == "tool" for one, two in pairwise([*before, role, *after])):
            return role
    return None


def assemble(
    request: CompressionRequest,
    cut: Boundaries,
    text: str,
    source: SummarySource,
    model: str = "",
) -> ViewPlan:
    """Return the plan that shows head, summary, what is pinned, and the tail.

    The summary covers what an earlier summary covered, and what leaves the view now. What the
    model thought is dropped from all that stays: it was signed for another history.
    """
    entries = request.entries
    evicted = cut.evicted
    # In order: the first and the last one say it for all of them.
    ends = [entries[n].seq for n in (*evicted[:1], *evicted[-1:])]
    earlier = request.plan.summaries
    summary = Summary(
        text=text,
        first_seq=min([*ends, *(each.first_seq for each in earlier)]),
        last_seq=max([*ends, *(each.last_seq for each in earlier)]),
        role=cut.role,
        source=source,
        model=model,
    )
    return around(request, cut, (summary,))


def around(request: CompressionRequest, cut: Boundaries, summaries: Iterable[Summary]) -> ViewPlan:
    """Return the plan that shows these summaries between head and tail, in the role of the cut."""
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
    # Edits of what has left the view would pile up from plan to plan. Clips were for want of room:
    # what stays is whole again, and `converge` clips what there is still no room for.
    kept = (edit for edit in plan.edits if edit.kind != "clip" and plan.shows(edit.seq))
    return replace(plan, edits=tuple(kept))
