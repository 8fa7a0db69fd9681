"""Turns by day, and the replicas that there are."""

from gateway.storage.queue import leases
from gateway.storage.reports import traffic
from gateway.storage.reports.ledger import Span
from gateway.storage.reports.traffic import DayTurns
from gateway.storage.schema import replica, turn
from tests.gateway.storage.reports.test_conversation_list import answered, set_rows
from tests.support.storage import Store


def test_turns_are_counted_where_they_began(store: Store) -> None:
    """Those that were given up are told apart; a day without any is there."""
    for at in (90.0, 100.0, 150.0, 310.0):
        answered(store, "a", at=at)
    store.run(set_rows, turn, turn.c.started_at == 150.0, state="dead")
    spans = [Span("one", 100.0, 200.0), Span("two", 200.0, 300.0), Span("three", 300.0, 400.0)]
    assert store.run(traffic.turns, spans) == [
        DayTurns("one", 2, 1),
        DayTurns("two", 0, 0),
        DayTurns("three", 1, 0),
    ]


def test_a_replica_that_says_nothing_is_late(store: Store) -> None:
    """By the time since its heartbeat was due."""
    late, fine = (store.run(leases.register, name) for name in ("one", "two"))
    store.run(set_rows, replica, replica.c.id == late, heartbeat_until=1.0)
    found = {row.id: row for row in store.run(traffic.replicas)}
    assert (found[late].name, found[late].late_s > 1e6, found[fine].late_s) == ("one", True, 0.0)
