"""The default context engine: prune, find boundaries, summarise, assemble (read `compress`).

Each phase is a pure function in agent/context/. Only the summary needs a model; if the model fails,
the extractor writes the summary and nothing is dropped.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from agent.context.boundaries import (
    SOFT_CEILING,
    Boundaries,
    assemble,
    find_boundaries,
    head_end_of,
    leaving,
    newest_ask,
    protected_tail,
    starts_before,
)
from agent.context.extract import extract, key_sentences, retained_share, shortened
from agent.context.prune import MARGIN, converge, prune_old_results, target_tokens
from agent.context.summary import summary_budget, write_summary
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits, Sizes
from agent.errors import SummaryFailed
from agent.tokens import estimate_tokens
from agent.view.view import Entry, Summary

MANUAL_TAIL_SHARE = 0.25
MANUAL_LAST_N = 6
"""In a compaction requested by a person this share of the view stays verbatim, or this many
messages if they are more."""
PRUNED_SHARE = 1.25
"""A prepared summary is used if pruning alone would leave this many times as much: both move the
prefix, and every later request reads the remainder. Source: measured, decision 021."""
GAP_SHARE = 0.25
"""Share that the extractor keeps of the messages between a prepared summary and the tail."""
EXTRACT_SHARE = 0.24
"""Largest extract, as a share of the threshold, next to a whole tail: an extract cannot judge
relevance. Source: measured by `python -m tests.bench statements`."""
HELD_SHARE = 0.8
"""Earlier notes are thinned out if they exceed this share of the compacted messages."""
LEAST_EXTRACT_TOKENS = 100
"""Applies even to the smallest window; the extract's heading takes half of it."""


class ContextCompressor(ContextEngine):
    """Keeps head and tail; prunes, then summarises what lies between."""

    name: ClassVar[str] = "compressor"
    prepares: ClassVar[bool] = True

    @override
    def prepare(self, request: CompressionRequest) -> Summary | None:
        """Write the summary of the part that a compaction would cut now; None if it is empty."""
        sizes = Sizes(request)
        starts = list(starts_before(request.entries, protected_tail(request, sizes)))
        found = find_boundaries(request, starts)
        if found is None:
            return None
        # Messages pinned now will no longer be pinned when the summary is used.
        cut = replace(found, pinned=())
        return use_model(request, cut, budget_of(request, cut, sizes)).plan.summaries[0]

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Shrink the view below its target; return None if already there or nothing can leave."""
        if request.trigger == "manual":
            request = replace(request, limits=manual_limits(request))
        elif request.tokens <= target_tokens(request):
            return None
        prepared, shown = request.prepared, request.plan.summaries
        if prepared and shown and prepared.first_seq > shown[0].first_seq:
            # Another engine wrote it, for only part of the cut.
            request = replace(request, prepared=None)
        sizes = Sizes(request)
        tail_start = protected_tail(request, sizes)
        ready = use_prepared(request, tail_start, sizes)
        pruned = prune_old_results(request, sizes, tail_start)
        if pruned and (ready is None or pruned.tokens <= PRUNED_SHARE * sizes.view(ready.plan)):
            return pruned
        cut = find_boundaries(request, list(starts_before(request.entries, tail_start)))
        if cut is None:
            return self._smaller(request, clip_only(request, sizes))
        draft = ready or summarise(request, cut, sizes)
        end = converge(request, sizes, draft.plan, draft.level)
        found = replace(end, retained_share=draft.retained_share, failure=draft.failure)
        if end.tokens >= request.tokens:
            # A summary may be longer than the few messages it covers.
            return clip_only(request, sizes)
        return self._smaller(request, found)

    def _smaller(self, request: CompressionRequest, found: Compressed | None) -> Compressed | None:
        """Compact a view that is still too large again, with a smaller `protect_last_n`."""
        limits = request.limits
        if limits.protect_last_n == 1 or (found and found.tokens <= target_tokens(request)):
            return found
        plan = found.plan if found else request.plan
        written = found is not None and found.level not in {"none", "prune"}
        again = self.compress(
            replace(
                request,
                plan=plan,
                entries=plan.select(list(request.entries)),
                tokens=found.tokens if found else request.tokens,
                fixed_tokens=Sizes(request).fixed(plan),
                limits=replace(limits, protect_last_n=max(1, limits.protect_last_n // 4)),
                # This compaction already asked the model, and people are waiting.
                summarise=None if written else request.summarise,
                prepared=None,
            )
        )
        if again is None or found is None:
            return again or found
        return replace(again, failure=again.failure or found.failure)


def manual_limits(request: CompressionRequest) -> Limits:
    """Return the limits of a compaction requested by a person: the newest turns stay."""
    limits, room = request.limits, request.tokens - request.fixed_tokens
    share = room * MANUAL_TAIL_SHARE / max(1, limits.threshold_tokens)
    return replace(
        limits,
        target_ratio=min(limits.target_ratio, share),
        protect_last_n=min(limits.protect_last_n, MANUAL_LAST_N),
    )


def use_prepared(request: CompressionRequest, tail_start: int, sizes: Sizes) -> Compressed | None:
    """Return a plan around the prepared summary, not measured; None if none fits.

    The extractor adds the messages between it and the usual tail, since a second model summary
    would have to be paid for in the same compaction.
    """
    prepared, entries = request.prepared, request.entries
    if prepared is None:
        return None
    covered = sum(entry.seq <= prepared.last_seq for entry in entries)
    if covered <= head_end_of(request):
        return None
    # It was written for a tail that was still expected to grow.
    if tail_start < covered <= len(entries) - request.limits.protect_last_n:
        tail_start = covered
    starts = [n for n in starts_before(entries, tail_start) if n >= min(covered, tail_start)]
    cut = find_boundaries(request, starts)
    if cut is None:
        return None
    text, gap = prepared.text, uncovered_messages(request, cut)
    if gap:
        tokens = int(sum(sizes.message(entry.message) for entry in gap) * GAP_SHARE)
        text = f"{text}\n\n{extract(gap, '', tokens, days=request.days).text}"
    plan = assemble(request, cut, text, prepared.source, prepared.model)
    return Compressed(plan, "summary", 0)


def summarise(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> Compressed:
    """Phases 3 and 4: assemble the model's summary, cut if necessary, or the extractor's."""
    if request.summarise is None:
        return use_extractor(request, cut, sizes)
    budget = budget_of(request, cut, sizes)
    try:
        draft = use_model(request, cut, budget)
    except SummaryFailed as exc:
        return replace(use_extractor(request, cut, sizes), failure=str(exc))
    excess = sizes.view(draft.plan) - target_tokens(request)
    own = sizes.summaries(draft.plan)
    if not 0 < excess <= own // 2:
        return draft
    # Cut to the share that fits: another summary would have to be paid for.
    (summary,) = draft.plan.summaries
    most = int(estimate_tokens(summary.text) * (1 - excess / own) * MARGIN)
    text = shortened(summary.text, most)
    plan = replace(draft.plan, summaries=(replace(summary, text=text),))
    return Compressed(plan, "short_summary", 0, retained_share(facts_of(request, cut), text))


def use_model(request: CompressionRequest, cut: Boundaries, budget: int) -> Compressed:
    """Return a plan with the model's summary; raise `SummaryFailed` if it is unusable."""
    leaving = uncovered_messages(request, cut)
    text = write_summary(leaving, previous_text(request), budget, request)
    ahead = "" if leaving or request.prepared is None else request.prepared.model
    plan = assemble(request, cut, text, "model", ahead)
    return Compressed(plan, "summary", 0, retained_share(facts_of(request, cut), text))


def use_extractor(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> Compressed:
    """Return a plan with the extractor's text, shortened to make room for the tail."""
    budget, fits = extract_budget(request, cut, sizes)
    draft = _extracted(request, cut, budget)
    excess = sizes.view(draft.plan) - target_tokens(request)
    if not fits or excess <= 0:
        return draft
    # Sizes are scaled to the provider's reports, the budget is not.
    own = sizes.summaries(draft.plan)
    share = MARGIN * max(0, own - excess) / own
    return _extracted(request, cut, max(LEAST_EXTRACT_TOKENS, int(budget * share)))


def _extracted(request: CompressionRequest, cut: Boundaries, budget: int) -> Compressed:
    leaves, before = uncovered_messages(request, cut), previous_text(request)
    found = extract(leaves, before, budget, focus=request.focus, days=request.days)
    plan = assemble(request, cut, found.text, "extract")
    return Compressed(plan, "extract", 0, found.retained_share)


def clip_only(request: CompressionRequest, sizes: Sizes) -> Compressed | None:
    """Return a plan that only clips, for a view without a middle."""
    end = converge(request, sizes, request.plan, "none")
    if end.level == "none" or end.tokens >= request.tokens:
        return None
    return replace(end, plan=replace(end.plan, thinking_from=request.entries[-1].seq + 1))


def budget_of(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> int:
    """Return the budget for a summary of all messages that leave."""
    return summary_budget(max(0, request.tokens - kept_tokens(request, cut, sizes)), request.limits)


def extract_budget(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> tuple[int, bool]:
    """Return the budget of the extract, and whether the target has room for it.

    Dropped notes are lost for good, so earlier ones keep their room. Next to a long turn its
    results are clipped instead, but not a long question.
    """
    threshold, kept = request.limits.threshold_tokens, kept_tokens(request, cut, sizes)
    earlier, room = estimate_tokens(previous_text(request)), target_tokens(request) - kept
    newest = newest_ask(request.entries)
    asked = sizes.message(newest.message) if newest else 0
    usual = max(int(request.limits.tail_tokens * SOFT_CEILING), asked) + request.fixed_tokens
    held = min(earlier, max(room, target_tokens(request) - usual))
    middle = request.tokens - kept
    most = min(max(room, held), max(middle // 2, min(held, int(middle * HELD_SHARE))))
    budget = max(LEAST_EXTRACT_TOKENS, min(most, int(threshold * EXTRACT_SHARE)))
    if budget <= room:
        return budget, True
    # The tail is clipped in any case.
    return max(budget, budget_of(request, cut, sizes)), False


def kept_tokens(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> int:
    """Return the size of the view without a summary."""
    return sizes.view(assemble(request, cut, "", "extract"))


def facts_of(request: CompressionRequest, cut: Boundaries) -> Sequence[str]:
    """Return the key sentences of the cut messages and of earlier notes."""
    return key_sentences(uncovered_messages(request, cut), previous_text(request), request.focus)


def uncovered_messages(request: CompressionRequest, cut: Boundaries) -> list[Entry]:
    """Return the originals that leave the view and are not covered by an earlier summary."""
    covered = request.prepared.last_seq if request.prepared else 0
    return [entry for entry in leaving(request.entries, cut) if entry.seq > covered]


def previous_text(request: CompressionRequest) -> str:
    """Return the earlier summary, preferably the prepared one, which covers more."""
    earlier = (request.prepared,) if request.prepared else request.plan.summaries
    return "\n\n".join(summary.text for summary in earlier)
