"""The named points at which the crash tests kill a gateway; tests/crash/child.py knows how."""

COMMON = (
    "register",
    "take_over",
    "prune_raw",
    "admit_all",
    "claim",
    "begin",
    "record_message",
    "start_tool",
    "store_output",
    "record_result",
    "commit",
    "mark_sending",
    "mark_sent",
)
OUTSIDE = (
    "model: asked",
    "model: in its stream",
    "model: answered",
    "note: before its effect",
    "note: within its effect",
    "note: after its effect",
    "put: within its effect",
    "look: within its effect",
    "send: before the request",
    "send: accepted, no receipt yet",
)
SHOWN = "preview: accepted, its id not stored yet"


def around(*functions: str) -> list[str]:
    """Return the two points around the commit of each transaction function."""
    return [f"{side} commit of {name}" for name in functions for side in ("before", "after")]
