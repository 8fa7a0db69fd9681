"""Views: what the model sees of a transcript (invariant 4). Rendering a plan is pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import orjson

from agent.messages import ChatMessage

VERSION = 1


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """Which messages of the transcript are shown, by their `seq`.

    Attributes:
        first_seq: Everything before it is out of view (`/new` starts behind the newest message).
        hidden: Ranges of seqs, both ends included, that are left out (what `/retry` asks again).
    """

    first_seq: int = 1
    hidden: tuple[tuple[int, int], ...] = ()

    def shows(self, seq: int) -> bool:
        """Whether the message at `seq` is in the view."""
        return seq >= self.first_seq and not any(low <= seq <= high for low, high in self.hidden)

    def hiding(self, low: int, high: int) -> "ViewPlan":
        """Return this plan with one more hidden range."""
        return ViewPlan(self.first_seq, (*self.hidden, (low, high)))


def render(plan: ViewPlan, messages: Iterable[tuple[int, ChatMessage]]) -> list[ChatMessage]:
    """Return the messages that the plan shows, in order; results follow their calls' order.

    Args:
        plan: The plan of the active session.
        messages: (seq, message) in order of seq.
    """
    if not plan.hidden:
        return order_results([message for seq, message in messages if seq >= plan.first_seq])
    return order_results([message for seq, message in messages if plan.shows(seq)])


def order_results(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Return the list with each group's results in the order of its calls.

    Results are stored in the order in which they finished; calls and results of one group stand
    next to each other in the transcript.
    """
    ordered: list[ChatMessage] = []
    places: dict[str, int] = {}
    start = 0
    for message in messages:
        if message["role"] == "tool":
            ordered.append(message)
            ordered[start:] = sorted(
                ordered[start:], key=lambda m: places.get(m["tool_call_id"], 0)
            )
            continue
        ordered.append(message)
        places = {call["id"]: n for n, call in enumerate(message.get("tool_calls", ()))}
        start = len(ordered)
    return ordered


def dump_plan(plan: ViewPlan) -> str:
    """Return the plan as versioned JSON text."""
    return orjson.dumps({"version": VERSION, **asdict(plan)}).decode()


def load_plan(text: str) -> ViewPlan:
    """Return the plan that `dump_plan` wrote.

    Raises:
        ValueError: The text has another version.
    """
    data = orjson.loads(text)
    if data.pop("version", None) != VERSION:
        raise ValueError(f"unknown version of a view plan: {text[:80]}")
    hidden = tuple((low, high) for low, high in data["hidden"])
    return ViewPlan(data["first_seq"], hidden)
