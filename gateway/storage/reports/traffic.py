"""How much is going on: turns by day, and which replicas there are.

The console's overview shows both. A day is a range of ids: nothing is looked for by its time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, func, select

from gateway.storage.reports.conversation_list import first_turn_since
from gateway.storage.reports.ledger import Span
from gateway.storage.schema import now_s, replica, turn
from gateway.storage.statements import built_once


@dataclass(frozen=True, slots=True)
class DayTurns:
    """The turns that began in a stretch of time.

    Attributes:
        dead: Those that were given up; they are among `begun`.
    """

    name: str
    begun: int
    dead: int


def turns(conn: Connection, spans: Sequence[Span]) -> list[DayTurns]:
    """Return how many turns began in each stretch of time; they follow one another."""
    places = [first_turn_since(conn, span.start) for span in spans]
    places.append(first_turn_since(conn, spans[-1].end))
    found = []
    for span, (low, high) in zip(spans, pairwise(places), strict=True):
        row = conn.execute(*_begun(low, high)).one()
        found.append(DayTurns(span.name, row.begun, row.dead))
    return found


@built_once
def _begun(first: int, behind: int) -> Any:
    dead = func.count().filter(turn.c.state == "dead").label("dead")
    here = (turn.c.id >= first, turn.c.id < behind)
    return select(func.count().label("begun"), dead).where(*here)


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A process that works on the database.

    Attributes:
        late_s: For how long it should have said something; 0 while it is in time.
    """

    id: int
    name: str
    late_s: float


def replicas(conn: Connection) -> list[ReplicaRow]:
    """Return all replicas by id."""
    late = now_s() - replica.c.heartbeat_until
    rows = conn.execute(select(replica.c.id, replica.c.name, late.label("late")).order_by("id"))
    return [ReplicaRow(row.id, row.name, max(row.late, 0.0)) for row in rows]
