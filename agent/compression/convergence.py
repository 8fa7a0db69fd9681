"""The convergence ladder below the summary: whatever came in, the view ends under its target.

Each rung makes the view smaller than the one before (invariant 8). What cannot be reached is told
by the size: system prompt, tools and the newest user message are then too large by themselves.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from agent.compression.boundaries import Newest
from agent.compression.sizes import Sizes
from agent.context_engine import CompressionRequest, Level
from agent.messages import ChatMessage
from agent.view import Edit, Entry, ViewPlan

NEWEST_SHARE = 0.9
"""Only a view over this share of the threshold has its newest user message clipped."""
LEAST_SHARE = 0.1
"""Share of the threshold that messages get even where system prompt and tools fill the target."""
MARGIN = 0.98
"""Clips aim a little below the target: estimates of one message round up."""
MIN_CLIP_CHARS = 100
MAX_ROUNDS = 6
"""Corrections of a clip whose characters took more tokens than on average."""


@dataclass(frozen=True, slots=True)
class Converged:
    """A plan that was clipped as far as needed, and its size in tokens."""

    plan: ViewPlan
    level: Level
    tokens: int


def target_tokens(request: CompressionRequest) -> int:
    """Return what the whole view is to come down to.

    Where the provider refused the view, half of what it refused counts: the window is smaller
    than believed.
    """
    limits = request.limits
    target = limits.target_tokens
    if request.trigger == "overflow":
        target = min(target, request.tokens // 2)
    least = request.fixed_tokens + int(limits.threshold_tokens * LEAST_SHARE)
    return max(target, least)


def converge(request: CompressionRequest, sizes: Sizes, plan: ViewPlan, level: Level) -> Converged:
    """Return the plan, clipped until it is under its target: tool output first, the newest last.

    Args:
        request: What is compacted.
        sizes: Counts for it.
        plan: Where the ladder starts.
        level: What was needed so far; stays if nothing has to be clipped.
    """
    target = target_tokens(request)
    newest = _newest_seq(request)
    others = {entry.seq for entry in request.entries} - {newest}
    results = {entry.seq for entry in request.entries if is_tool_work(entry.message)}
    aim = int(target * MARGIN)
    last_resort = max(target, int(request.limits.threshold_tokens * NEWEST_SHARE))
    rungs: tuple[tuple[Level, int, Callable[[ViewPlan], ViewPlan]], ...] = (
        ("clip_tail", target, lambda plan: clip(request, sizes, plan, results, aim)),
        ("clip_tail", target, lambda plan: without_images(request, plan, others)),
        ("clip_tail", target, lambda plan: clip(request, sizes, plan, others, aim)),
        ("clip_newest", last_resort, lambda plan: clip(request, sizes, plan, {newest}, aim)),
    )
    tokens = sizes.view(plan)
    for rung, limit, smaller in rungs:
        if tokens > limit:
            shortened = smaller(plan)
            size = sizes.view(shortened)
            if size < tokens:
                plan, level, tokens = shortened, rung, size
    return Converged(plan, level, tokens)


def is_tool_work(message: ChatMessage) -> bool:
    """Whether a message is a tool's result, or calls tools."""
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def clip(
    request: CompressionRequest,
    sizes: Sizes,
    plan: ViewPlan,
    seqs: Collection[int],
    target: int,
) -> ViewPlan:
    """Return the plan with the largest of these messages clipped to one common size.

    That size is as large as the target allows; smaller messages are not touched.
    """
    chars = {entry.seq: chars_of(entry.message) for entry in request.entries}
    best, aim = plan, target
    for _ in range(MAX_ROUNDS):
        shown = sizes.shown(plan)
        fixed = sizes.view(plan) - sum(shown[seq] for seq in shown if seq in seqs)
        cap = common_cap([shown[seq] for seq in shown if seq in seqs], aim - fixed)
        edits = {
            seq: Edit(seq, "clip", max(MIN_CLIP_CHARS, chars[seq] * cap // shown[seq]))
            for seq in shown
            if seq in seqs and shown[seq] > cap
        }
        best = with_edits(plan, edits)
        excess = sizes.view(best) - target
        if excess <= 0:
            break
        aim -= excess
    return best


def without_images(request: CompressionRequest, plan: ViewPlan, seqs: Collection[int]) -> ViewPlan:
    """Return the plan with a label in place of every image of these messages."""
    labels = [
        Edit(seq, "images")
        for seq, message in request.entries
        if seq in seqs and plan.shows(seq) and isinstance(message.get("content"), list)
    ]
    fresh = [edit for edit in labels if edit not in plan.edits]
    return replace(plan, edits=tuple(sorted([*plan.edits, *fresh], key=_by_seq)))


def common_cap(sizes: list[int], room: int) -> int:
    """Return the largest cap such that the sizes, each cut to the cap, sum up to `room` at most.

    At least 1, also where there is no room.
    """
    left = max(0, room)
    for n, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - n)
        if size > share:
            return max(1, share)
        left -= size
    return max(1, *sizes) if sizes else 1


def with_edits(plan: ViewPlan, clips: Mapping[int, Edit]) -> ViewPlan:
    """Return the plan with these clips, each in place of an earlier clip of its message."""
    kept = [edit for edit in plan.edits if edit.kind != "clip" or edit.seq not in clips]
    return replace(plan, edits=tuple(sorted([*kept, *clips.values()], key=_by_seq)))


def chars_of(message: ChatMessage) -> int:
    """Return the characters of a message's texts and call arguments."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [_text(part) for part in content or ()]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return sum(map(len, parts)) + sum(map(len, calls))


def _text(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _newest_seq(request: CompressionRequest) -> int:
    entries: list[Entry] = list(request.entries)
    position = Newest.of(entries).user
    return entries[position].seq if position >= 0 else 0


def _by_seq(edit: Edit) -> int:
    return edit.seq
