"""How a conversation fared lately: `/insights`. Sums only, no texts but those of commands."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from gateway import commands
from gateway.storage import costs
from gateway.storage.costs import Group
from gateway.storage.models import inbox, step, turn
from gateway.storage.statements import built_once


@dataclass(frozen=True, slots=True)
class Insights:
    """What happened in a conversation since a point in time.

    Attributes:
        outcomes: How many turns that answer people ended in which way; those that run are
            "running".
        tools: How often each tool was called.
        models: What was spent, by model; the dearest first.
        durations_s: Of those that ended, from their beginning, waits included; ascending.
    """

    outcomes: Counter[str]
    tools: Counter[str]
    models: tuple[Group, ...]
    durations_s: Sequence[float]

    def duration_s(self, share: float) -> float | None:
        """Return the time within which this share of the turns ended; None where none did."""
        rank = math.ceil(share * len(self.durations_s))
        return self.durations_s[max(rank, 1) - 1] if self.durations_s else None


def insights(conn: Connection, conversation_id: int, since: float) -> Insights:
    """Return how a conversation fared, by the turns that began since.

    Args:
        conn: A reading connection.
        conversation_id: Which conversation.
        since: Seconds since the epoch.
    """
    turns = [
        row
        for row in conn.execute(*_turns(conversation_id, since))
        if commands.parse(row.command or "") not in commands.HOUSEKEEPING
    ]
    tools = conn.execute(*_tools(conversation_id, since)).all()
    ended = [row.finished_at - row.started_at for row in turns if row.finished_at is not None]
    return Insights(
        outcomes=Counter(row.outcome for row in turns),
        tools=Counter({row.name: row.calls for row in tools}),
        models=tuple(costs.of_conversation(conn, conversation_id, since)),
        durations_s=sorted(ended),
    )


@built_once
def _turns(conversation_id: int, since: float) -> Any:
    ended_as = func.coalesce(turn.c.outcome, turn.c.state).label("outcome")
    its_command = (
        select(inbox.c.text)
        .where(
            inbox.c.conversation == turn.c.conversation,
            inbox.c.seq == turn.c.first_seq,
            inbox.c.kind == "command",
        )
        .scalar_subquery()
        .label("command")
    )
    return select(ended_as, its_command, turn.c.started_at, turn.c.finished_at).where(
        turn.c.conversation == conversation_id, turn.c.started_at >= since
    )


@built_once
def _tools(conversation_id: int, since: float) -> Any:
    return (
        select(step.c.name, func.count().label("calls"))
        .join(turn, turn.c.id == step.c.turn_id)
        .where(
            turn.c.conversation == conversation_id,
            turn.c.started_at >= since,
            step.c.kind == "tool",
        )
        .group_by(step.c.name)
    )
