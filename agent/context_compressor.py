"""The default context engine: prune, find boundaries, summarise, assemble (read `compress`).

Each phase is a pure function in agent/context/phases/. Only the summary asks a model; where it
cannot, the extractor's summary takes its place and nothing is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from agent.context.extract import Extract, extract, key_facts, retained_share
from agent.context.phases.boundaries import (
    Boundaries,
    assemble,
    find_boundaries,
    head_end_of,
    leaving,
    protected_tail,
    starts_before,
)
from agent.context.phases.convergence import converge, target_tokens
from agent.context.phases.prune import prune_old_results
from agent.context.phases.summary import summary_budget, write_summary
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Level, Limits, Sizes
from agent.errors import SummaryFailed, SummaryTooLong
from agent.messages import user_message
from agent.tokens.estimate import estimate_tokens
from agent.view.view import Entry, Summary, ViewPlan

MANUAL_TAIL_SHARE = 0.25
MANUAL_LAST_N = 6
"""What stays verbatim when a person asks for a compaction: this share of the view, or so many
messages if they are more."""
PRUNED_SHARE = 1.25
"""A summary that is there is used where pruning alone would leave so many times as much: both move
the prefix, and every later request reads what is left. Source: measured, docs/decisions/310."""
GAP_SHARE = 0.25
"""How much of what has come between a summary that was written ahead and the tail the extractor
keeps."""
EXTRACT_VIEW_SHARE = 0.4
EXTRACT_SHARE = 2
"""An extract, which cannot judge what matters, may fill the view up to this share of the threshold,
and be so many times as long as a model's summary. Source: measured, docs/performance.md."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan with its new summary, and how that came about."""

    plan: ViewPlan
    level: Level
    retained_share: float | None
    failure: str | None = None


class ContextCompressor(ContextEngine):
    """Keeps the head and the newest messages; a summary stands for what lies between."""

    name: ClassVar[str] = "compressor"
    prepares: ClassVar[bool] = True

    @override
    def prepare(self, request: CompressionRequest) -> Summary | None:
        """Write what a compaction would need now."""
        return prepare_summary(request)

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Make the view smaller than its target; None where it is already, or nothing can go."""
        if request.trigger == "manual":
            request = replace(request, limits=thorough(request))
        elif request.tokens <= target_tokens(request):
            return None
        request = replace(request, prepared=fitting_prepared(request))
        sizes = Sizes(request)
        tail_start = protected_tail(request, sizes)
        ready = by_prepared(request, tail_start, sizes)
        pruned = prune_old_results(request, sizes, tail_start)
        if pruned and (ready is None or pruned.tokens <= PRUNED_SHARE * sizes.view(ready.plan)):
            return pruned
        cut = find_boundaries(request, list(starts_before(request.entries, tail_start)))
        if cut is None:
            return self._smaller(request, clip_only(request, sizes))
        draft = ready or summarise(request, cut, sizes)
        end = converge(request, sizes, draft.plan, draft.level)
        found = Compressed(end.plan, end.level, end.tokens, draft.retained_share, draft.failure)
        if end.tokens >= request.tokens:
            # A summary may be longer than the few messages that it stands for.
            return clip_only(request, sizes)
        return self._smaller(request, found)

    def _smaller(self, request: CompressionRequest, found: Compressed | None) -> Compressed | None:
        """Compact once more with a smaller `protect_last_n`, if the view is still too large.

        That starts from the plan that was found. If a model wrote its summary, the extractor
        updates it.
        """
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
                # The model was asked in this compaction already, and people wait.
                summarise=None if written else request.summarise,
                prepared=None,
            )
        )
        if again is None or found is None:
            return again or found
        return replace(again, failure=again.failure or found.failure)


def thorough(request: CompressionRequest) -> Limits:
    """Return the limits of a compaction that a person asked for: only the newest turns stay."""
    limits, room = request.limits, request.tokens - request.fixed_tokens
    share = room * MANUAL_TAIL_SHARE / max(1, limits.threshold_tokens)
    return replace(
        limits,
        target_ratio=min(limits.target_ratio, share),
        protect_last_n=min(limits.protect_last_n, MANUAL_LAST_N),
    )


def prepare_summary(request: CompressionRequest) -> Summary | None:
    """Write the summary of what a compaction would cut now; None where it would cut nothing.

    Raises:
        SummaryFailed: The summary model gave nothing usable.
    """
    sizes = Sizes(request)
    starts = list(starts_before(request.entries, protected_tail(request, sizes)))
    found = find_boundaries(request, starts)
    if found is None:
        return None
    # What is pinned now will not be when this is used.
    cut = replace(found, pinned=())
    budget = budget_of(request, cut, sizes)
    return by_model(request, cut, facts_of(request, cut), budget).plan.summaries[0]


def fitting_prepared(request: CompressionRequest) -> Summary | None:
    """Return the summary that was written ahead; None for one of a part, of another engine."""
    prepared, shown = request.prepared, request.plan.summaries
    return None if prepared and shown and prepared.first_seq > shown[0].first_seq else prepared


def by_prepared(request: CompressionRequest, tail_start: int, sizes: Sizes) -> Draft | None:
    """Return a plan around the summary that was written ahead; None if there is none that fits.

    The tail begins where it always does. What has come between is told by the extractor behind the
    text: another summary would be paid for the same compaction.
    """
    prepared, entries = request.prepared, request.entries
    if prepared is None:
        return None
    covered = sum(entry.seq <= prepared.last_seq for entry in entries)
    if covered <= head_end_of(request):
        return None
    # It was written for a tail that was still to grow.
    if tail_start < covered <= len(entries) - request.limits.protect_last_n:
        tail_start = covered
    starts = [n for n in starts_before(entries, tail_start) if n >= min(covered, tail_start)]
    cut = find_boundaries(request, starts)
    if cut is None:
        return None
    text, gap = prepared.text, uncovered(request, cut)
    if gap:
        tokens = int(sum(sizes.message(entry.message) for entry in gap) * GAP_SHARE)
        text = f"{text}\n\n{extract(gap, '', tokens).text}"
    plan = assemble(request, cut, text, prepared.source, prepared.model)
    return Draft(plan, "summary", None)


def summarise(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> Draft:
    """Phases 3 and 4: the model's summary, a shorter one, or the extractor's; assembled."""
    budget = budget_of(request, cut, sizes)
    facts = facts_of(request, cut) if request.summarise else ()
    failure = None
    attempts: tuple[tuple[Level, int], ...] = (("summary", budget), ("short_summary", budget // 2))
    for level, tokens in attempts:
        if request.summarise is None:
            break
        try:
            draft = by_model(request, cut, facts, tokens)
        except SummaryTooLong as exc:
            failure = str(exc)
        except SummaryFailed as exc:
            failure = str(exc)
            break
        else:
            if level == "short_summary" or not shorter_would_help(request, sizes, draft.plan):
                return replace(draft, level=level)
    return replace(by_extractor(request, cut, sizes), failure=failure)


def by_model(
    request: CompressionRequest, cut: Boundaries, facts: Sequence[str], budget: int
) -> Draft:
    """Return a plan with the summary model's text.

    Raises:
        SummaryFailed: There is none that can be used.
    """
    leaving = uncovered(request, cut)
    written = write_summary(leaving, previous_text(request), facts, budget, request)
    ahead = "" if leaving or request.prepared is None else request.prepared.model
    plan = assemble(request, cut, written.text, "model", ahead)
    return Draft(plan, "summary", written.retained_share)


def by_extractor(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> Draft:
    """Return a plan with the extractor's text."""
    extracted = extract_of(request, cut, extract_budget(request, cut, sizes))
    plan = assemble(request, cut, extracted.text, "extract")
    return Draft(plan, "extract", retained_share(extracted.facts, extracted.text))


def shorter_would_help(request: CompressionRequest, sizes: Sizes, plan: ViewPlan) -> bool:
    """Whether the view is over its target, and half of the summary would bring it under."""
    excess = sizes.view(plan) - target_tokens(request)
    return 0 < excess <= sizes.summaries(plan) // 2


def clip_only(request: CompressionRequest, sizes: Sizes) -> Compressed | None:
    """Return a plan for a view without a middle: what is too large is clipped."""
    end = converge(request, sizes, request.plan, "none")
    if end.plan == request.plan:
        return None
    plan = replace(end.plan, thinking_from=request.entries[-1].seq + 1)
    return Compressed(plan, end.level, end.tokens)


def budget_of(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> int:
    """Return how long the summary may be; what is cut is counted as what does not stay."""
    return summary_budget(max(0, request.tokens - kept_tokens(request, cut, sizes)), request.limits)


def extract_budget(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> int:
    """Return how long the extract may be; never shorter than the one before, within its limit."""
    limits, kept = request.limits, kept_tokens(request, cut, sizes)
    most = EXTRACT_SHARE * limits.max_summary_tokens
    earlier = estimate_tokens(previous_text(request))
    room = int(limits.threshold_tokens * EXTRACT_VIEW_SHARE) - kept
    wanted = min(room, (request.tokens - kept) // 2)
    return max(budget_of(request, cut, sizes), min(most, max(wanted, earlier)))


def kept_tokens(request: CompressionRequest, cut: Boundaries, sizes: Sizes) -> int:
    """Return the size of what stays, without a summary."""
    return sizes.view(assemble(request, cut, "", "extract"))


def extract_of(request: CompressionRequest, cut: Boundaries, budget: int) -> Extract:
    """Return the extractor's summary of what is cut."""
    return extract(uncovered(request, cut), previous_text(request), budget, focus=request.focus)


def facts_of(request: CompressionRequest, cut: Boundaries) -> Sequence[str]:
    """Return the key facts of what is cut, and of the summary of what was cut before."""
    leaving = uncovered(request, cut)
    if earlier := previous_text(request):
        # Before every message, whose seqs begin with 1.
        leaving.insert(0, Entry(0, user_message(earlier)))
    return key_facts(leaving, focus=request.focus)


def uncovered(request: CompressionRequest, cut: Boundaries) -> list[Entry]:
    """Return the originals that leave the view and that no earlier summary covers."""
    covered = request.prepared.last_seq if request.prepared else 0
    return [entry for entry in leaving(request.entries, cut) if entry.seq > covered]


def previous_text(request: CompressionRequest) -> str:
    """Return the summary of what left the view before: the one written ahead covers more."""
    earlier = (request.prepared,) if request.prepared else request.plan.summaries
    return "\n\n".join(summary.text for summary in earlier)
