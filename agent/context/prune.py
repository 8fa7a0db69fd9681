"""Shorten messages in the view without a model: pruning, and the convergence ladder.

Phase 1 of a compaction prunes old messages. If the summary does not suffice, the ladder clips the
rest until the view meets its target; a rung is used only if the previous one did not suffice
(invariant 8). If no rung suffices, system prompt, tools and the newest messages are too large, and
the reported size shows it. This module reads only lengths and hashes; agent/view/edits.py writes
the texts of a rendered plan.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import attrgetter

import orjson

from agent.context.boundaries import group_start, newest_ask
from agent.context_engine import Compressed, CompressionRequest, Level, Sizes
from agent.messages import ChatMessage, chars_of, images_in
from agent.view.edits import LONG_CHARS
from agent.view.view import Edit, Entry, ViewPlan

LONG_RESULT_CHARS = 200
"""Tool results up to this length are not pruned. Source: Hermes."""
LEAF_CHARS = 200
"""Length to which strings inside long call arguments are cut. Source: Hermes."""
NEWEST_SHARE = 0.9
"""The newest user message is clipped only if it alone exceeds this share of the threshold."""
LEAST_SHARE = 0.2
"""Minimum for messages, as a share of the window without system prompt and tools."""
MARGIN = 0.98
"""Clips aim slightly below the target: estimates of single messages round up."""
MIN_CLIP_CHARS = 100


def prune_old_results(
    request: CompressionRequest, sizes: Sizes, tail_start: int
) -> Compressed | None:
    """Return a plan that only prunes, or None if that does not suffice.

    A manual compaction requests a summary, so pruning never replaces it.
    """
    if request.trigger == "manual":
        return None
    plan = with_edits(request, prune(request.entries, tail_start))
    if plan is None:
        return None
    tokens = sizes.view(plan)
    return Compressed(plan, "prune", tokens) if tokens <= target_tokens(request) else None


def with_edits(request: CompressionRequest, edits: Sequence[Edit]) -> ViewPlan | None:
    """Return the current plan with these edits added, or None if it already has all of them."""
    # Earlier clips are removed: the new edits may make enough room.
    known = {edit for edit in request.plan.edits if edit.kind != "clip"}
    if known.issuperset(edits):
        return None
    ordered = sorted({*known, *edits}, key=lambda edit: (edit.seq, edit.kind))
    return replace(request.plan, edits=tuple(ordered), thinking_from=request.entries[-1].seq + 1)


def prune(entries: Sequence[Entry], upto: int) -> tuple[Edit, ...]:
    """Return the edits of the view before the protected tail, ordered by seq.

    Of identical long results the older ones become references to the newest. A result with an image
    counts as long. Images before the user's newest image become labels. Texts written by user and
    assistant are not changed.

    Args:
        upto: Position of the tail's start among the entries.
    """
    older = _repeated_later(entries)
    shown = (n for n, (_, it) in enumerate(entries) if it["role"] == "user" and images_in(it))
    asked_about = max(shown, default=0)
    edits: list[Edit] = []
    for place, (seq, message) in enumerate(entries[:upto]):
        if place in older:
            edits.append(Edit(seq, "duplicate"))
        elif _is_long_result(message):
            edits.append(Edit(seq, "prune"))
        # The question may refer to the newest image.
        elif place < asked_about and images_in(message):
            edits.append(Edit(seq, "images"))
        calls = message.get("tool_calls") or ()
        if any(len(call["function"]["arguments"]) > LONG_CHARS for call in calls):
            edits.append(Edit(seq, "arguments", LEAF_CHARS))
    return tuple(edits)


def _repeated_later(entries: Sequence[Entry]) -> set[int]:
    """Find the positions of long results that a later result repeats."""
    newest: dict[str | bytes, int] = {}
    older: set[int] = set()
    for place, (_, message) in enumerate(entries):
        if not _is_long_result(message):
            continue
        content = message.get("content")
        # A list of parts cannot be a dict key.
        key = content if isinstance(content, str) else orjson.dumps(content)
        if key in newest:
            older.add(newest[key])
        newest[key] = place
    return older


def _is_long_result(message: ChatMessage) -> bool:
    if message["role"] != "tool":
        return False
    content = message.get("content")
    if isinstance(content, str):
        return len(content) > LONG_RESULT_CHARS
    chars = sum(len(part.get("text") or "") for part in content or ())
    return chars > LONG_RESULT_CHARS or images_in(message) > 0


def target_tokens(request: CompressionRequest) -> int:
    """Return the size that the whole view must be reduced to.

    After a refusal it is at most half of the refused size, since the window is smaller than
    assumed.
    """
    limits = request.limits
    free = max(0, limits.context_length - request.fixed_tokens)
    target = max(limits.target_tokens, request.fixed_tokens + int(free * LEAST_SHARE))
    if request.trigger == "overflow":
        return min(target, request.fixed_tokens + (request.tokens - request.fixed_tokens) // 2)
    return target


def converge(request: CompressionRequest, sizes: Sizes, plan: ViewPlan, level: Level) -> Compressed:
    """Clip the plan until it meets its target, redoing earlier clips.

    First tool arguments and results are clipped; then everything, images included, with the model's
    current step last. The newest user message is clipped only if it alone is too large.

    Args:
        level: The plan's level so far; kept if nothing needs clipping.
    """
    target = target_tokens(request)
    # Earlier clips are redone only if the room is still insufficient.
    plan = replace(plan, edits=tuple(edit for edit in plan.edits if edit.kind != "clip"))
    start = Compressed(plan, level, sizes.view(plan))
    if start.tokens <= target:
        return start
    newest = ask.seq if (ask := newest_ask(request.entries)) else 0
    # Clipped last: the model would have to repeat this step.
    at_work = group_start(request.entries, len(request.entries) - 1)
    earlier = {entry.seq for entry in request.entries[:at_work]}
    results = {entry.seq for entry in request.entries[:at_work] if is_tool_work(entry.message)}
    everything = {entry.seq for entry in request.entries}
    # A clip counts characters, so it cannot shrink a view that consists of images only.
    bare = without_images(request, plan, everything - {newest})
    alone = request.fixed_tokens + sizes.shown(bare).get(newest, 0)
    most = max(target, int(request.limits.threshold_tokens * NEWEST_SHARE))
    spared = {newest} if alone <= most else set()
    last: Level = "clip_tail" if spared else "clip_newest"
    found = start
    rungs: tuple[tuple[ViewPlan, set[int], Level], ...] = (
        (plan, results, "clip_tail"),
        (bare, earlier - spared, last),
        (bare, everything - spared, last),
    )
    for shown, seqs, rung in rungs:
        if found.tokens > target:
            clipped = clip(request, sizes, shown, seqs)
            found = Compressed(clipped, rung, sizes.view(clipped))
    # A clip contains a pointer, which may be longer than the text it replaces.
    return found if found.tokens < start.tokens else start


def is_tool_work(message: ChatMessage) -> bool:
    """Return whether a message calls tools or is the result of a call."""
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def clip(
    request: CompressionRequest, sizes: Sizes, plan: ViewPlan, seqs: Collection[int]
) -> ViewPlan:
    """Return the plan with the largest of these messages clipped to one common size.

    The size is the largest that the target allows; smaller messages stay unchanged.
    """
    if sizes.view(plan) <= target_tokens(request):
        return plan
    tokens = {seq: size for seq, size in sizes.shown(plan).items() if seq in seqs}
    chars = {each.seq: chars_of(each.message) for each in request.entries if each.seq in tokens}

    def clipped(cap: int) -> ViewPlan:
        """Clip every message above `cap` tokens to about that size."""
        clips = [
            Edit(seq, "clip", max(MIN_CLIP_CHARS, chars[seq] * cap // size))
            for seq, size in tokens.items()
            if size > cap
        ]
        return replace(plan, edits=tuple(sorted([*plan.edits, *clips], key=attrgetter("seq"))))

    target = int(target_tokens(request) * MARGIN)
    low, high = 0, max(tokens.values(), default=0)
    # Within 2 % is close enough: every step renders and measures the whole view.
    while high - low > 1 + high // 50:
        cap = (low + high) // 2
        if sizes.view(clipped(cap)) > target:
            high = cap
        else:
            low = cap
    return clipped(low)


def without_images(request: CompressionRequest, plan: ViewPlan, seqs: Collection[int]) -> ViewPlan:
    """Replace every image of these messages by a label."""
    labels = [
        Edit(seq, "images")
        for seq, message in request.entries
        if seq in seqs and plan.shows(seq) and isinstance(message.get("content"), list)
    ]
    fresh = [edit for edit in labels if edit not in plan.edits]
    return replace(plan, edits=tuple(sorted([*plan.edits, *fresh], key=attrgetter("seq"))))
