"""The nodes: those in view (the frontier), and the texts of new ones (the scribe).

The frontier covers the range between head and tail without gaps. It grows by a leaf and shrinks by
a level; it is immutable, and each step returns a new one.

A node's text is written in up to three steps, each shorter and more reliable than the previous one:
a model preserves details; asked again, it writes bullets of half the length; if no answer is
usable, the extractor writes the text. A text that is not shorter than its source is replaced by a
pointer.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice, pairwise
from operator import attrgetter

from agent.context.boundaries import (
    Boundaries,
    behind_results,
    head_end_of,
    iterate_cuts,
    starts_before,
)
from agent.context.extract import extract, key_sentences, retained_share
from agent.context.summary import merge_summaries, write_summary
from agent.context_engine import CompressionRequest, Level, Node, Sizes
from agent.errors import SummaryFailed, SummaryTooLong
from agent.messages import user_message
from agent.view.view import Entry, Summary, SummarySource

FAN_OUT = 8
HIGHER_FAN_OUT = 4
"""Number of leaves, or of nodes of a higher level, that are condensed into one node."""
MOST_ENDS = 24
"""Ends of a run to try before shrinking the head."""
POINTER = "(not summarised)"
"""Text after a node's number and range, by which the node can be opened."""
_HEADING = "[messages {} to {}]"
_HEADED = re.compile(r"^\[messages (\d+) to (\d+)\]\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The nodes in view, in order, and the new ones.

    Attributes:
        shown: One summary for each node of the frontier.
        nodes: Nodes made since the current plan, in order of number.
        orphans: Pinned messages in view that a node covers without summarising them, because
            another engine wrote its summary.
        cut: The new head and tail; None while the current plan's apply.
    """

    shown: tuple[Summary, ...]
    nodes: tuple[Node, ...]
    last_number: int
    orphans: tuple[Entry, ...] = ()
    cut: Boundaries | None = None

    @property
    def last_seq(self) -> int:
        """The last covered message; 0 if there is none."""
        return self.shown[-1].last_seq if self.shown else 0

    def add(self, text: Summary, made: Node, cut: Boundaries, *, in_front: bool) -> "Frontier":
        """Return the frontier with a new leaf at one end."""
        shown = (text, *self.shown) if in_front else (*self.shown, text)
        orphans = self.orphans if in_front else ()
        return Frontier(shown, (*self.nodes, made), made.number, orphans, cut)

    def condense(self, place: slice, text: Summary, made: Node) -> "Frontier":
        """Return the frontier with several nodes replaced by one."""
        shown = (*self.shown[: place.start], text, *self.shown[place.stop :])
        return replace(self, shown=shown, nodes=(*self.nodes, made), last_number=made.number)


def open_frontier(request: CompressionRequest, known: Sequence[Node]) -> Frontier:
    """Build the frontier of the current plan; another engine's summaries become nodes of it.

    `known` are the stored nodes of the conversation.
    """
    shown = tuple(_widened(request))
    last = max((node.number for node in known), default=0)
    last = max([last, *(each.node for each in shown)])
    adopted: list[Node] = []
    for place, summary in enumerate(shown):
        if not summary.node:
            last += 1
            node = _adopted(summary, last, request, known)
            adopted.append(node)
            own = replace(summary, node=node.number, level=node.level)
            shown = (*shown[:place], own, *shown[place + 1 :])
    plan, is_ours = request.plan, all(summary.node for summary in request.plan.summaries)
    pinned = () if is_ours else plan.pinned
    orphans = tuple(entry for entry in request.entries if entry.seq in pinned)
    return Frontier(shown, tuple(adopted), last, orphans)


def _widened(request: CompressionRequest) -> Iterator[Summary]:
    """Yield the plan's summaries, each range extended up to the next one."""
    plan = request.plan
    if not plan.summaries:
        return
    first = plan.head_upto + 1 if plan.head_upto else plan.first_seq
    for one, two in pairwise((*plan.summaries, None)):
        last = two.first_seq - 1 if two else plan.tail_from - 1
        if one is not None:
            yield replace(one, first_seq=first, last_seq=last)
        first = last + 1


def _adopted(
    summary: Summary, number: int, request: CompressionRequest, known: Sequence[Node]
) -> Node:
    """Return a node for another engine's summary; it condenses the nodes of its range."""
    low, high = summary.first_seq, summary.last_seq
    # A node has only one parent.
    parented = {child for node in known for child in node.children}
    below = [
        node
        for node in known
        if node.number not in parented and low <= node.first_seq <= node.last_seq <= high
    ]
    tokens = request.estimate(user_message(summary.text))
    return Node(
        number=number,
        level=max((node.level + 1 for node in below), default=0),
        first_seq=low,
        last_seq=high,
        text=summary.text,
        source=summary.source,
        tokens=tokens,
        source_tokens=sum(node.tokens for node in below) or tokens,
        children=tuple(node.number for node in below),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Messages that become a leaf, which covers the range `first_seq` to `last_seq`.

    Attributes:
        before: Messages that leave a shrinking head: a leaf in front of all others.
    """

    entries: tuple[Entry, ...]
    first_seq: int
    last_seq: int
    cut: Boundaries
    before: "Run | None" = None


def next_run(
    request: CompressionRequest, sizes: Sizes, frontier: Frontier, limit: int, leaf_tokens: int
) -> Run | None:
    """Return the oldest run of messages after the frontier, or None if nothing can be cut.

    Args:
        limit: Position of the protected tail's start.
        leaf_tokens: Most tokens of the run, unless one group of calls and results is larger.
    """
    covered = sum(entry.seq <= frontier.last_seq for entry in request.entries)
    start = max(covered, head_end_of(request))
    last_resort: Run | None = None
    ends = _ends(request.entries, sizes, start, limit, leaf_tokens)
    for end in islice(ends, MOST_ENDS):
        starts = [n for n in starts_before(request.entries, end) if n > start]
        for cut in iterate_cuts(request, starts) if starts else ():
            run = _run(request, frontier, start, cut)
            # A shrinking head changes the cached prefix: other ends are tried first.
            if run is not None and run.before is None:
                return run
            last_resort = last_resort or run
    return last_resort


def _ends(
    entries: Sequence[Entry], sizes: Sizes, start: int, limit: int, leaf_tokens: int
) -> Iterator[int]:
    """Yield possible ends of a run: first of a full one, then longer by one group each."""
    tokens, full = 0, False
    end = start
    while end < limit:
        following = behind_results(entries, end)
        tokens += sum(sizes.message(entry.message) for entry in entries[end:following])
        # A leaf contains at least one group, however large.
        if tokens > leaf_tokens and end > start:
            full = True
        if full:
            yield end
        end = following
    if end == limit:
        yield end


def _run(
    request: CompressionRequest, frontier: Frontier, start: int, cut: Boundaries
) -> Run | None:
    """Return the run of a cut, or None if it does not fit the frontier."""
    entries = request.entries
    head = frontier.cut.head_end if frontier.cut else head_end_of(request)
    first = entries[cut.head_end - 1].seq + 1 if cut.head_end else request.plan.first_seq
    is_inside = cut.tail_start < len(entries)
    last = entries[cut.tail_start].seq - 1 if is_inside else entries[-1].seq
    if not frontier.shown:
        run = tuple(entries[cut.head_end : cut.tail_start])
        return Run(run, first, last, cut) if run else None
    # The head may shrink but not grow: a node covers the messages after it.
    if cut.head_end > head:
        return None
    covered, before = frontier.shown[0].first_seq, None
    if first < covered:
        before = Run(tuple(entries[cut.head_end : head]), first, covered - 1, cut)
    run = (*frontier.orphans, *entries[start : cut.tail_start])
    return Run(run, frontier.last_seq + 1, last, cut, before)


def find_full_level(shown: Sequence[Summary]) -> slice | None:
    """Return the oldest adjacent nodes of one level, as many as a parent replaces."""
    for place, level in _levels(shown):
        fan_out = HIGHER_FAN_OUT if level else FAN_OUT
        if place.stop - place.start >= fan_out:
            return slice(place.start, place.start + fan_out)
    return None


def pick_longest(shown: Sequence[Summary]) -> slice:
    """Return adjacent nodes of one level to condense if the frontier is too large.

    It selects the longest relative to their age: always condensing the oldest would make a
    conversation's beginning fade away. Otherwise it returns any two neighbours, or the only node.
    """
    places = [place for place, _ in _levels(shown) if place.stop - place.start > 1]
    pairs = [slice(n, n + 2) for n in range(len(shown) - 1)]
    start = shown[0].first_seq - 1

    def told(place: slice) -> float:
        """Return the nodes' length in characters relative to their age."""
        nodes = shown[place]
        weight = math.sqrt(nodes[-1].last_seq - start) - math.sqrt(nodes[0].first_seq - 1 - start)
        return sum(len(each.text) for each in nodes) / weight

    return max(places or pairs or [slice(0, len(shown))], key=told)


def _levels(shown: Sequence[Summary]) -> Iterator[tuple[slice, int]]:
    start = 0
    for level, run in groupby(shown, key=attrgetter("level")):
        stop = start + len(list(run))
        yield slice(start, stop), level
        start = stop


@dataclass(frozen=True, slots=True)
class NodeText:
    """The text of a node; `model` is its author if it was written ahead."""

    text: str
    source: SummarySource
    level: Level
    share: float = 1.0
    model: str = ""


@dataclass(slots=True)
class Scribe:
    """Writes the nodes of one compaction.

    Attributes:
        asks: Whether a model may still be asked; False once it has failed.
        failure: Reason why a model's text was not used; None if every text was.
        told: The written texts, in order.
    """

    request: CompressionRequest
    asks: bool = field(init=False)
    failure: str | None = None
    told: list[NodeText] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asks = self.request.summarise is not None

    def leaf(self, entries: Sequence[Entry], budget_tokens: int) -> NodeText:
        """Return a shorter text for messages, or a pointer."""
        request = self.request
        write = partial(write_summary, entries, "", request=request)
        told = self._by_model(write, budget_tokens, entries, "")
        if told is None:
            found = extract(entries, "", budget_tokens, focus=request.focus, days=request.days)
            told = NodeText(found.text, "extract", "extract", found.retained_share)
        return self._kept(told, sum(request.estimate(entry.message) for entry in entries))

    def condensed(
        self, nodes: Sequence[Summary], budget_tokens: int, extract_tokens: int
    ) -> NodeText:
        """Return one text for consecutive nodes.

        Args:
            nodes: Oldest first.
            budget_tokens: Most tokens of a model's text.
            extract_tokens: Most tokens of the extractor's text, if more.
        """
        texts = [node.text for node in nodes]
        earlier, focus = "\n\n".join(texts), self.request.focus
        write = partial(merge_summaries, texts, request=self.request)
        told = self._by_model(write, budget_tokens, (), earlier)
        if told is None:
            found = extract((), earlier, max(budget_tokens, extract_tokens), focus=focus)
            told = NodeText(found.text, "extract", "extract", found.retained_share)
        return self._kept(told, sum(map(self.tokens, texts)))

    def tokens(self, text: str) -> int:
        """Return the tokens of a text, in the scale of the request."""
        return self.request.estimate(user_message(text))

    def _by_model(
        self,
        write: Callable[..., str],
        budget_tokens: int,
        entries: Sequence[Entry],
        earlier: str,
    ) -> NodeText | None:
        """Have a model summarise these messages and the earlier text; return None if it fails."""
        failure = None
        most = min(budget_tokens, self.request.limits.max_summary_tokens)
        steps: tuple[tuple[Level, int, bool], ...] = (
            ("summary", most, False),
            ("short_summary", most // 2, True),
        )
        for level, tokens, brief in steps:
            if not self.asks:
                break
            try:
                text = write(budget_tokens=tokens, brief=brief)
            except SummaryTooLong as exc:
                failure = str(exc)
            except SummaryFailed as exc:
                failure, self.asks = str(exc), False
            else:
                facts = key_sentences(entries, earlier, self.request.focus)
                return NodeText(text, "model", level, retained_share(facts, text))
        self.failure = failure or self.failure
        return None

    def _kept(self, told: NodeText, source_tokens: int) -> NodeText:
        """Record and return the text, or a pointer if it is not shorter than its source."""
        if not told.text.strip() or self.tokens(told.text) >= source_tokens:
            told = NodeText(POINTER, "pointer", "extract", 0.0)
        self.told.append(told)
        return told


def join_texts(parts: Sequence[Summary]) -> Summary:
    """Join texts written ahead; `split_text` splits them again."""
    text = parts[0].text
    if len(parts) > 1:
        text = "\n\n".join(f"{_HEADING.format(*span_of([part]))}\n{part.text}" for part in parts)
    first, last = span_of(parts)
    return Summary(text, first, last, source="model")


def split_text(prepared: Summary | None) -> list[Summary]:
    """Split a text written ahead into its parts, each with its range."""
    if prepared is None:
        return []
    # One capture group per number: text, first, last, text, first, last, text.
    before, *found = _HEADED.split(prepared.text)
    if before.strip() or not found:
        return [prepared]
    return [
        replace(prepared, text=text.strip(), first_seq=int(first), last_seq=int(last))
        for first, last, text in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


def span_of(parts: Sequence[Summary]) -> tuple[int, int]:
    """Return the first and last seq covered by adjacent summaries."""
    return parts[0].first_seq, parts[-1].last_seq
