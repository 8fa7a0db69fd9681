"""Phase 1 of a compaction: which old messages are shown shortened, without asking a model.

Only lengths and hashes are looked at here; agent/view/edits.py writes the texts when the
plan is rendered.
"""

from collections.abc import Sequence
from dataclasses import replace

import orjson

from agent.context.phases.convergence import target_tokens
from agent.context_engine import Compressed, CompressionRequest, Sizes
from agent.messages import ChatMessage, images_in
from agent.view.edits import LONG_CHARS
from agent.view.view import Edit, Entry, ViewPlan

LONG_RESULT_CHARS = 200
"""Tool results up to this length stay as they are. Source: Hermes."""

LEAF_CHARS = 200
"""What is left of a string inside of long call arguments. Source: Hermes."""


def prune_old_results(
    request: CompressionRequest, sizes: Sizes, tail_start: int
) -> Compressed | None:
    """Return a plan that only prunes, if that is enough; None if it is not.

    A manual compaction is asked for its summary, so pruning never replaces it.
    """
    if request.trigger == "manual":
        return None
    plan = with_edits(request, prune(request.entries, tail_start))
    if plan is None:
        return None
    tokens = sizes.view(plan)
    return Compressed(plan, "prune", tokens) if tokens <= target_tokens(request) else None


def with_edits(request: CompressionRequest, edits: Sequence[Edit]) -> ViewPlan | None:
    """Return the plan in force with these edits; None if it has them all."""
    # What was clipped for want of room is whole again where others make room.
    known = {edit for edit in request.plan.edits if edit.kind != "clip"}
    if known.issuperset(edits):
        return None
    ordered = sorted({*known, *edits}, key=lambda edit: (edit.seq, edit.kind))
    return replace(request.plan, edits=tuple(ordered), thinking_from=request.entries[-1].seq + 1)


def prune(entries: Sequence[Entry], upto: int) -> tuple[Edit, ...]:
    """Return the edits for what is outside of the protected tail, in order of seq.

    Of identical long results the newest is pruned like any other, or stands in the tail; the
    older ones say that there is a later one. A result with an image counts as long. Images before
    the newest image of the user become labels. What user and assistant wrote is not touched.

    Args:
        entries: What the view shows, in order of seq, the tail included.
        upto: Position among the entries at which the tail starts.
    """
    older = _repeated_later(entries)
    asked_about = _newest_user_image(entries)
    edits: list[Edit] = []
    for place, (seq, message) in enumerate(entries[:upto]):
        if place in older:
            edits.append(Edit(seq, "duplicate"))
        elif _is_long_result(message):
            edits.append(Edit(seq, "prune"))
        # The newest image may be what the question is about.
        elif place < asked_about and images_in(message):
            edits.append(Edit(seq, "images"))
        calls = message.get("tool_calls") or ()
        if any(len(call["function"]["arguments"]) > LONG_CHARS for call in calls):
            edits.append(Edit(seq, "arguments", LEAF_CHARS))
    return tuple(edits)


def _repeated_later(entries: Sequence[Entry]) -> set[int]:
    """Return the positions of long results that a later result repeats."""
    newest: dict[str | bytes, int] = {}
    older: set[int] = set()
    for place, (_, message) in enumerate(entries):
        if not _is_long_result(message):
            continue
        content = message.get("content")
        # A list of parts cannot be the key of a dict.
        key = content if isinstance(content, str) else orjson.dumps(content)
        if key in newest:
            older.add(newest[key])
        newest[key] = place
    return older


def _newest_user_image(entries: Sequence[Entry]) -> int:
    """Return the position of the newest message of the user with an image; 0 if there is none."""
    for place in range(len(entries) - 1, 0, -1):
        message = entries[place].message
        if message["role"] == "user" and images_in(message):
            return place
    return 0


def _is_long_result(message: ChatMessage) -> bool:
    if message["role"] != "tool":
        return False
    content = message.get("content")
    if isinstance(content, str):
        return len(content) > LONG_RESULT_CHARS
    chars = sum(len(part.get("text") or "") for part in content or ())
    return chars > LONG_RESULT_CHARS or images_in(message) > 0
