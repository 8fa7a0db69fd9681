"""The convergence ladder below the summary: whatever came in, the view ends under its target.

A rung is taken only where the one before does not reach the target (invariant 8). What cannot be
reached is told by the size: system prompt, tools and the newest messages are then too large.
"""

from collections.abc import Collection
from dataclasses import replace
from operator import attrgetter

from agent.context.phases.boundaries import group_start, newest_ask
from agent.context_engine import Compressed, CompressionRequest, Level, Sizes
from agent.messages import ChatMessage, chars_of
from agent.view.view import Edit, ViewPlan

NEWEST_SHARE = 0.9
"""The newest user message is clipped only where it alone would exceed this of the threshold."""
LEAST_SHARE = 0.2
"""Share of what system prompt and tools leave of the window that messages get in any case."""
MARGIN = 0.98
"""Clips aim a little below the target: estimates of one message round up."""
MIN_CLIP_CHARS = 100


def target_tokens(request: CompressionRequest) -> int:
    """Return what the whole view is to come down to.

    Where the provider refused the view, half of what it refused counts: the window is smaller
    than believed.
    """
    limits = request.limits
    free = max(0, limits.context_length - request.fixed_tokens)
    target = max(limits.target_tokens, request.fixed_tokens + int(free * LEAST_SHARE))
    if request.trigger == "overflow":
        return min(target, request.fixed_tokens + (request.tokens - request.fixed_tokens) // 2)
    return target


def converge(request: CompressionRequest, sizes: Sizes, plan: ViewPlan, level: Level) -> Compressed:
    """Return the plan, clipped until it is under its target; clips of before are made anew.

    First what tools were given and gave back is clipped; if that is not enough, everything, images
    included. The step that the model is at comes last. The newest user message is clipped only if
    it alone is too large.

    Args:
        plan: Where the ladder starts.
        level: What was needed so far; stays if nothing has to be clipped.
    """
    target = target_tokens(request)
    # What was clipped for want of room is whole again where there is room now.
    plan = replace(plan, edits=tuple(edit for edit in plan.edits if edit.kind != "clip"))
    start = Compressed(plan, level, sizes.view(plan))
    if start.tokens <= target:
        return start
    newest = ask.seq if (ask := newest_ask(request.entries)) else 0
    # Clipped last: the model would have to run this step again.
    at_work = group_start(request.entries, len(request.entries) - 1)
    earlier = {entry.seq for entry in request.entries[:at_work]}
    results = {entry.seq for entry in request.entries[:at_work] if is_tool_work(entry.message)}
    everything = {entry.seq for entry in request.entries}
    # A clip counts characters, so it cannot make a view of nothing but images smaller.
    bare = without_images(request, plan, everything - {newest})
    alone = request.fixed_tokens + sizes.shown(bare).get(newest, 0)
    most = max(target, int(request.limits.threshold_tokens * NEWEST_SHARE))
    spared = {newest} if alone <= most else set()
    last: Level = "clip_tail" if spared else "clip_newest"
    found = _clipped(request, sizes, plan, results, "clip_tail")
    for seqs in (earlier - spared, everything - spared):
        if found.tokens > target:
            found = _clipped(request, sizes, bare, seqs, last)
    # A clip holds a pointer, which may be longer than what it replaces.
    return found if found.tokens < start.tokens else start


def is_tool_work(message: ChatMessage) -> bool:
    """Whether a message is a tool's result, or calls tools."""
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def _clipped(
    request: CompressionRequest, sizes: Sizes, plan: ViewPlan, seqs: Collection[int], level: Level
) -> Compressed:
    clipped = clip(request, sizes, plan, seqs)
    return Compressed(clipped, level, sizes.view(clipped))


def clip(
    request: CompressionRequest, sizes: Sizes, plan: ViewPlan, seqs: Collection[int]
) -> ViewPlan:
    """Return the plan with the largest of these messages clipped to one common size.

    That size is as large as the target allows; smaller messages are not touched.
    """
    if sizes.view(plan) <= target_tokens(request):
        return plan
    tokens = {seq: size for seq, size in sizes.shown(plan).items() if seq in seqs}
    chars = {each.seq: chars_of(each.message) for each in request.entries if each.seq in tokens}

    def clipped(cap: int) -> ViewPlan:
        """Return the plan with every message of more than `cap` tokens clipped to about that."""
        clips = [
            Edit(seq, "clip", max(MIN_CLIP_CHARS, chars[seq] * cap // size))
            for seq, size in tokens.items()
            if size > cap
        ]
        return replace(plan, edits=tuple(sorted([*plan.edits, *clips], key=attrgetter("seq"))))

    target = int(target_tokens(request) * MARGIN)
    low, high = 0, max(tokens.values(), default=0)
    # Within 2 % is near enough: every step renders and measures the whole view.
    while high - low > 1 + high // 50:
        cap = (low + high) // 2
        if sizes.view(clipped(cap)) > target:
            high = cap
        else:
            low = cap
    return clipped(low)


def without_images(request: CompressionRequest, plan: ViewPlan, seqs: Collection[int]) -> ViewPlan:
    """Return the plan with a label in place of every image of these messages."""
    labels = [
        Edit(seq, "images")
        for seq, message in request.entries
        if seq in seqs and plan.shows(seq) and isinstance(message.get("content"), list)
    ]
    fresh = [edit for edit in labels if edit not in plan.edits]
    return replace(plan, edits=tuple(sorted([*plan.edits, *fresh], key=attrgetter("seq"))))
