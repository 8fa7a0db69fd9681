"""The lossless context engine: messages only leave the view, and the model can look them up.

The oldest messages after the head become leaves, leaves become nodes, and the view shows the nodes
of the frontier (see `compress`). The frontier decides what may be cut and the scribe writes the
texts (both in agent/engines/lcm/nodes.py); agent/engines/lcm/tools.py has the model's tools.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

from typing_extensions import override

from agent.context.boundaries import arrange, newest_ask, protected_tail
from agent.context.prune import converge, prune_old_results, target_tokens, with_edits
from agent.context_compressor import clip_only, manual_limits
from agent.context_engine import (
    Archive,
    Compressed,
    CompressionRequest,
    ContextEngine,
    Level,
    Limits,
    Node,
    Sizes,
)
from agent.engines.lcm import tools
from agent.engines.lcm.nodes import (
    FAN_OUT,
    Frontier,
    NodeText,
    Run,
    Scribe,
    find_full_level,
    join_texts,
    next_run,
    open_frontier,
    pick_longest,
    span_of,
    split_text,
)
from agent.errors import SummaryFailed, ToolError
from agent.messages import ToolSchema
from agent.view.edits import outlined
from agent.view.view import Edit, Entry, Summary, ViewPlan

LARGE_TOKENS = 25_000
"""A larger message is shown as an outline. Source: the design's page on context, 4."""
LEAF_TOKENS = 20_000
"""Most tokens of the messages summarised in one leaf; same source."""
LEAF_SHARE = 0.2
"""Most source tokens of a leaf, as a share of the threshold: several leaves have to fit."""
TEXT_SHARE = 0.2
"""Longest text of a leaf, as a share of its source."""
LEAST_TEXT_TOKENS = 100
FRONTIER_SHARE = 0.3
FRONTIER_SUMMARIES = 3
"""The frontier may use this share of the threshold, or this many largest summaries if less."""
CONDENSED_SHARE = 0.95
"""Share of its room that the frontier uses after neighbours were condensed for lack of it."""
GOAL_SHARE = 0.4
"""A compaction continues down to this share of the threshold: each further compaction costs the
provider's cache. Source: measured, docs/engines.md."""
AHEAD = 3
"""Number of nodes written ahead: each swap changes the prefix that the provider has cached."""
READY_SHARE = 0.75
"""Nodes written ahead suffice if they bring the view below this share of the threshold: the next
ones are written while it fills up."""

_LEVELS: tuple[Level, ...] = get_args(Level)


class LcmEngine(ContextEngine):
    """Loses nothing: summarises ranges in levels of nodes that the model can open."""

    name: ClassVar[str] = "lcm"
    prepares: ClassVar[bool] = True
    prepares_parts: ClassVar[bool] = True

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        super().__init__(limits, options)
        self._archive: Archive | None = None

    @override
    def attach(self, archive: Archive) -> None:
        self._archive = archive

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Shrink the view below its target; return None if already there or nothing can leave."""
        if request.trigger == "manual":
            request = replace(request, limits=manual_limits(request))
        elif request.tokens <= target_tokens(request):
            return None
        sizes = Sizes(request)
        # Outlines first: they need no model and may suffice.
        request = with_outlines(request, sizes)
        if request.trigger != "manual" and request.tokens <= target_tokens(request):
            return Compressed(request.plan, "prune", request.tokens)
        if pruned := prune_old_results(request, sizes, protected_tail(request, sizes)):
            return pruned
        known = self._archive.nodes() if self._archive else ()
        work = _Compaction(request, sizes, open_frontier(request, known))
        work.run()
        return work.result()

    @override
    def prepare(self, request: CompressionRequest) -> Summary | None:
        """Write ahead for the next compaction: condense a full level, or write leaves."""
        request = replace(request, prepared=None)
        work = _Compaction(request, Sizes(request), open_frontier(request, ()))
        written = work.written_ahead()
        if not written and work.scribe.told:
            raise SummaryFailed(work.scribe.failure or "there is nothing to summarise")
        return join_texts(written) if written else None

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        return tools.SCHEMAS

    @override
    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._archive is None:
            raise ToolError("this conversation's records cannot be read now")
        return tools.answer(name, arguments, self._archive)


def with_outlines(request: CompressionRequest, sizes: Sizes) -> CompressionRequest:
    """Replace large contents by outlines, except in the newest question."""
    newest = newest_ask(request.entries)
    spared = {newest.seq} if newest else set()
    before = sizes.shown(request.plan)
    large = {seq for seq, tokens in before.items() if tokens > LARGE_TOKENS} - spared
    plan = with_edits(request, [Edit(seq, "outline") for seq in large])
    if plan is None:
        return request
    saved = sum(before.values()) - sum(sizes.shown(plan).values())
    return replace(request, plan=plan, tokens=request.tokens - saved)


@dataclass(slots=True)
class _Compaction:
    request: CompressionRequest
    sizes: Sizes
    frontier: Frontier
    scribe: Scribe = field(init=False)
    tokens: int = field(init=False)
    ahead: list[Summary] = field(init=False)
    has_used_ahead: bool = False

    def __post_init__(self) -> None:
        self.scribe = Scribe(self.request)
        self.tokens = self.request.tokens
        self.ahead = split_text(self.request.prepared)

    def run(self) -> None:
        """Cut leaves until the view is small enough, protected messages last."""
        place = self.crowded()
        # A text written ahead covers exactly its source messages.
        if place and self.ahead and span_of(self.frontier.shown[place]) == span_of(self.ahead[:1]):
            self.condense(place, self.taken())
        for request in self.tighter():
            while self.wants_more(request) and (run := self.next_run(request)):
                self.cut(run)
                if self.is_settled():
                    return
            self.squeeze()
            if request.trigger == "manual" or self.tokens <= target_tokens(request):
                return

    def written_ahead(self) -> list[Summary]:
        """Have a model write for the next compaction; return adjacent texts with their ranges."""
        place = self.crowded()
        if place and place.stop == len(self.frontier.shown):
            self.condense(place)
            written = [*self.frontier.shown[place.start :]]
        else:
            written = []
        # An extract means that the model failed: do not continue.
        while len(written) < AHEAD and all(each.source == "model" for each in written):
            run = self.next_run(self.request)
            if run is None or run.before is not None:
                break
            self.add(run, in_front=False)
            written.append(self.frontier.shown[-1])
        return [each for each in written if each.source == "model"]

    def tighter(self) -> Iterator[CompressionRequest]:
        request = self.request
        yield request
        while (count := request.limits.protect_last_n) > 1:
            limits = replace(request.limits, protect_last_n=max(1, count // 4))
            request = replace(request, limits=limits)
            yield request

    def wants_more(self, request: CompressionRequest) -> bool:
        """Return whether to cut another leaf; a person's request cuts all of them.

        Protected messages are cut to reach the target, but not the goal.
        """
        most = target_tokens(request)
        if request is self.request:
            most = min(most, int(request.limits.threshold_tokens * GOAL_SHARE))
        return request.trigger == "manual" or self.tokens > most

    def is_settled(self) -> bool:
        """Return whether the texts written ahead are used up and made enough room for now."""
        if self.ahead or not self.has_used_ahead or self.request.trigger == "overflow":
            return False
        return self.tokens <= int(self.request.limits.threshold_tokens * READY_SHARE)

    def next_run(self, request: CompressionRequest) -> Run | None:
        """Return the next leaf's run, which is that of the text written ahead if it still fits."""
        limit = protected_tail(request, self.sizes)
        most = min(LEAF_TOKENS, int(request.limits.threshold_tokens * LEAF_SHARE))
        if self.ahead:
            upto = sum(entry.seq <= self.ahead[0].last_seq for entry in request.entries)
            # No size limit: the text determines the end of the leaf.
            run = next_run(request, self.sizes, self.frontier, min(limit, upto), 10**9)
            if run and not run.before and (run.first_seq, run.last_seq) == span_of(self.ahead[:1]):
                return run
            # Each text starts after the previous one: if one does not fit, later ones do not
            # either.
            self.ahead = []
        return next_run(request, self.sizes, self.frontier, limit, most)

    def cut(self, run: Run) -> None:
        """Make a leaf of a run, then condense the frontier if crowded."""
        if run.before is not None:
            self.add(run.before, in_front=True)
        is_ahead = bool(self.ahead)
        self.add(run, in_front=False)
        # Condensing would ask a model, and this compaction must not wait.
        if not is_ahead:
            self.condense_all()
        self.tokens = self.sizes.view(self.plan())

    def add(self, run: Run, *, in_front: bool) -> None:
        source = sum(self.sizes.message(entry.message) for entry in run.entries)
        if self.ahead and not in_front:
            told = self.taken()
        else:
            share = min(int(source * TEXT_SHARE), self.most_frontier_tokens() // FAN_OUT)
            budget = max(LEAST_TEXT_TOKENS, share)
            told = self.scribe.leaf(self.material(run.entries), budget)
        text, node = self.made(told, run.first_seq, run.last_seq, source, ())
        self.frontier = self.frontier.add(text, node, run.cut, in_front=in_front)

    def squeeze(self) -> None:
        """Condense to half of the room before protected messages are cut or clipped."""
        while self.frontier.cut and self.tokens > target_tokens(self.request):
            before = self.frontier_tokens()
            if before <= self.most_frontier_tokens() // 2:
                return
            self.condense(pick_longest(self.frontier.shown))
            self.tokens = self.sizes.view(self.plan())
            if self.frontier_tokens() >= before:
                return

    def taken(self) -> NodeText:
        self.has_used_ahead, ahead = True, self.ahead.pop(0)
        return NodeText(ahead.text, "model", "summary", model=ahead.model)

    def condense_all(self) -> None:
        """Condense while the frontier is crowded."""
        while place := self.crowded():
            before = len(self.frontier.shown), self.frontier_tokens()
            self.condense(place)
            if (len(self.frontier.shown), self.frontier_tokens()) >= before:
                return

    def crowded(self) -> slice | None:
        """Return the nodes to condense: those of a full level, or some if room is short."""
        shown = self.frontier.shown
        if place := find_full_level(shown):
            return place
        return pick_longest(shown) if self.frontier_tokens() > self.most_frontier_tokens() else None

    def condense(self, place: slice, told: NodeText | None = None) -> None:
        """Replace several nodes by one; a model's text is at most half as long."""
        nodes = self.frontier.shown[place]
        source = sum(self.scribe.tokens(node.text) for node in nodes)
        if told is None:
            most = self.most_frontier_tokens()
            budget = max(LEAST_TEXT_TOKENS, min(source // 2, most // 2))
            excess = self.frontier_tokens() - int(most * CONDENSED_SHARE)
            kept = source - max(source // 10, excess)
            told = self.scribe.condensed(nodes, budget, kept)
        text, node = self.made(told, nodes[0].first_seq, nodes[-1].last_seq, source, nodes)
        self.frontier = self.frontier.condense(place, text, node)

    def made(
        self,
        told: NodeText,
        first_seq: int,
        last_seq: int,
        source_tokens: int,
        below: Sequence[Summary],
    ) -> tuple[Summary, Node]:
        node = Node(
            number=self.frontier.last_number + 1,
            level=max((each.level + 1 for each in below), default=0),
            first_seq=first_seq,
            last_seq=last_seq,
            text=told.text,
            source=told.source,
            tokens=self.scribe.tokens(told.text),
            source_tokens=source_tokens,
            children=tuple(each.node for each in below),
        )
        shown = Summary(told.text, first_seq, last_seq, source=told.source, model=told.model)
        return replace(shown, node=node.number, level=node.level), node

    def material(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the source of a leaf: large contents as outlines, without ephemeral notes."""
        found: list[Entry] = []
        for seq, message in entries:
            if not message.get("ephemeral"):
                is_large = self.sizes.message(message) > LARGE_TOKENS
                found.append(Entry(seq, outlined(message, seq) if is_large else message))
        return found

    def most_frontier_tokens(self) -> int:
        limits = self.request.limits
        share = int(limits.threshold_tokens * FRONTIER_SHARE)
        most = FRONTIER_SUMMARIES * limits.max_summary_tokens
        return min(share, most) if self.scribe.asks else share

    def frontier_tokens(self) -> int:
        return sum(self.scribe.tokens(each.text) for each in self.frontier.shown)

    def plan(self) -> ViewPlan:
        if self.frontier.cut is None:
            return self.request.plan
        return arrange(self.request, self.frontier.cut, self.frontier.shown)

    def result(self) -> Compressed | None:
        """Return the result, clipped if needed, or None if nothing shrinks."""
        if self.frontier.cut is None:
            return clip_only(self.request, self.sizes)
        told = self.scribe.told
        levels: list[Level] = ["summary", *(each.level for each in told)]
        level = max(levels, key=_LEVELS.index)
        if self.is_settled():
            # Not clipped: the next text is written ahead while the view fills up again.
            end = Compressed(self.plan(), level, self.tokens)
        else:
            end = converge(self.request, self.sizes, self.plan(), level)
        # Nodes may be longer than the few messages they cover.
        if end.tokens >= self.request.tokens:
            return clip_only(self.request, self.sizes)
        share = sum(each.share for each in told) / len(told) if told else None
        failure, nodes = self.scribe.failure, self.frontier.nodes
        return replace(end, retained_share=share, failure=failure, nodes=nodes)
