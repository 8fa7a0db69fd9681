"""Phase 4: head, summary and tail become a plan."""

from collections.abc import Iterable
from dataclasses import replace

from agent.context.phases.boundaries import Boundaries
from agent.context_engine import CompressionRequest
from agent.view import Summary, ViewPlan


def assemble(
    request: CompressionRequest, cut: Boundaries, text: str, source: str, model: str = ""
) -> ViewPlan:
    """Return the plan that shows head, summary, what is pinned, and the tail.

    The summary covers what an earlier summary covered, and what leaves the view now. What the
    model thought is dropped from all that stays: it was signed for another history.
    """
    entries = request.entries
    evicted = [entries[n].seq for n in cut.evicted]
    earlier = request.plan.summaries
    summary = Summary(
        text=text,
        first_seq=min([*evicted, *(each.first_seq for each in earlier)]),
        last_seq=max([*evicted, *(each.last_seq for each in earlier)]),
        role=cut.role,
        source="model" if source == "model" else "extract",
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
    return replace(plan, edits=tuple(edit for edit in plan.edits if plan.shows(edit.seq)))
