"""Nodes: what the lossless engine (agent/engines/lcm) has written about stretches of a transcript.

Leaves stand for messages, higher nodes for nodes. They are stored with the compaction that made
them and never change; which of them are in view is the plan's.
"""

from dataclasses import dataclass
from typing import Literal

NodeSource = Literal["model", "extract", "pointer"]


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        number: In its conversation, from 1 on.
        level: 0 for a leaf, else one more than the highest of its children.
        first_seq: It stands for the messages from here on, without a gap.
        last_seq: To here, included.
        children: Numbers of the nodes that it condenses, in order; their ranges lie in its own.
        source: Who wrote it; see `agent.view.Summary`.
        tokens: About how many its text takes.
        source_tokens: About how many that took which it was written from: messages, or children.
    """

    number: int
    level: int
    first_seq: int
    last_seq: int
    text: str
    source: NodeSource
    tokens: int
    source_tokens: int
    children: tuple[int, ...] = ()
