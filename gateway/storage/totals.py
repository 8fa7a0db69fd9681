"""What a turn took: its journal counted, its calls in the ledger summed up."""

from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, func, select

from agent.models.base import Usage
from gateway.storage.models import ledger, step
from gateway.storage.statements import built_once


@dataclass(frozen=True, slots=True)
class Totals:
    """What a turn took, over all its attempts.

    Attributes:
        iterations: Steps of the model in its journal; `tool_calls` likewise.
        usage: Of all its calls in the ledger, also those that were lost or made a summary.
        usd: What they cost; None where that of any is not known.
        estimated: Whether any of it is Parley's estimate.
        last_model: Who took the last step; empty for nobody.
    """

    iterations: int
    tool_calls: int
    usage: Usage
    usd: float | None = 0.0
    estimated: bool = False
    last_model: str = ""


def of_turn(conn: Connection, conversation_id: int, turn_id: int) -> Totals:
    """Return what a turn took so far."""
    row = conn.execute(*_sums(conversation_id, turn_id)).one()
    return Totals(
        iterations=row.iterations,
        tool_calls=row.tool_calls,
        usage=Usage(**{name: getattr(row, name) for name in _TOKENS}),
        usd=row.usd if row.prices == row.calls else None,
        estimated=row.estimates > 0,
        last_model=row.last_model or "",
    )


@built_once
def _sums(conversation_id: int, turn_id: int) -> Any:
    """Select all of it in one row."""
    steps = select(func.count()).where(step.c.turn_id == turn_id)
    answered = select(step.c.name).where(step.c.turn_id == turn_id, step.c.kind == "model")
    return select(
        steps.where(step.c.kind == "model").scalar_subquery().label("iterations"),
        steps.where(step.c.kind == "tool").scalar_subquery().label("tool_calls"),
        answered.order_by(step.c.n.desc()).limit(1).scalar_subquery().label("last_model"),
        func.count().label("calls"),
        func.count(ledger.c.usd).label("prices"),
        func.coalesce(func.sum(ledger.c.usd), 0.0).label("usd"),
        func.count().filter(ledger.c.estimated).label("estimates"),
        *(func.coalesce(func.sum(ledger.c[name]), 0).label(name) for name in _TOKENS),
    ).where(ledger.c.conversation == conversation_id, ledger.c.turn_id == turn_id)


_TOKENS = tuple(field.name for field in fields(Usage))
