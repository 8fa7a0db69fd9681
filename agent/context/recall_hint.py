"""What the message of a summary says about recalling more: the tools that are really offered.

The text is stored with the plan (`ViewPlan.recall`), so that a plan shows the same bytes for as
long as it is in force, whatever a newer version writes here.
"""

from collections.abc import Iterable

WAYS = {
    "session_search": 'session_search(query="...") finds words in everything that was said',
    "lcm_grep": 'lcm_grep(query="...") finds words in this conversation and names their nodes',
    "read_conversation": "read_conversation(from_seq=N) returns messages from number N on",
    "lcm_expand": "lcm_expand(node=N) returns the messages that a node stands for",
}
"""Tools by name, in the order in which they are told."""
BEGIN = (
    "What is not in it can be recalled, so look it up before you guess, with those of these tools"
    " that you have"
)
"""A plan outlives the engine that offered some of them."""


def recall_text(tools: Iterable[str]) -> str:
    """Return one or two sentences about these tools; empty where none of them recalls anything."""
    offered = set(tools)
    ways = [way for name, way in WAYS.items() if name in offered]
    if not ways:
        return ""
    return f"{BEGIN}: {'; '.join(ways)}."
