"""What calls took and cost: sums over the ledger by day, sender, conversation, model, outcome."""

from datetime import UTC, datetime
from typing import Any

import pytest

from agent.costs import Money
from agent.messages import assistant_message
from agent.models.base import Usage
from gateway.storage import costs, endings, ledger, rollup
from gateway.storage.costs import Group, Spent
from gateway.storage.endings import TurnEnd
from gateway.storage.models import ledger as table
from gateway.storage.models import turn
from gateway.storage.turns import Turn
from tests.support.storage import Store, admit, begin_turn, inbound, model_call, parts, turn_of

USAGE = Usage(100, 20, 300, 40, 5)
ADA = "telegram:42"


def book(store: Store, current: Turn, at: float | None = None, **call: Any) -> None:
    """Book a call of a turn, at a time of its own."""
    made = model_call(call.pop("usage", USAGE), **call)
    store.run(ledger.book, current.lease.conversation, current.id, current.sender, [made])
    if at is not None:
        newest = max(row.id for row in store.rows(table))
        store.run(lambda conn: conn.execute(table.update().where(table.c.id == newest), {"at": at}))


def finish(store: Store, current: Turn, outcome: str) -> None:
    end = TurnEnd(outcome, model_call(USAGE))
    store.run(endings.commit, current, [assistant_message("ok")], parts(current), end)


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn of telegram:42 that has not asked a model yet."""
    return store.run(turn_of, "What is it?")


def test_sums_add_up_every_kind_of_token(store: Store, current: Turn) -> None:
    """Calls without a report count as calls of unknown cost."""
    book(store, current, cost_usd=0.25)
    book(store, current, cost_usd=0.5, purpose="summary")
    book(store, current, usage=None)
    found = store.run(costs.of_last_turn, current.lease.conversation)
    assert found == Spent(3, USAGE + USAGE, Money(0.75, unknown_calls=1))


def test_a_sum_is_estimated_if_any_part_of_it_is(store: Store, current: Turn) -> None:
    """What has no price makes no amount an estimate."""
    book(store, current, cost_usd=0.25)
    book(store, current, cost_usd=None, estimated=True)
    assert not store.run(rollup.of_sender, ADA, 0.0).money.estimated
    book(store, current, cost_usd=0.25, estimated=True, purpose="lost")
    found = store.run(rollup.of_sender, ADA, 0.0).money
    assert found == Money(0.5, unknown_calls=1, estimated=True)


def test_the_hit_ratio_is_the_share_that_was_read_from_the_cache() -> None:
    """Of all that was read; nothing read is no ratio, not 0."""
    assert Spent(1, USAGE).hit_ratio == 300 / 445
    assert Spent(1, Usage(output_tokens=9)).hit_ratio is None


def test_a_sender_is_counted_in_all_conversations(store: Store, current: Turn) -> None:
    """From a quarter of an hour on; nobody else is."""
    book(store, current, at=900)
    book(store, current, at=1800)
    book(store, store.run(turn_of, "hi", chat="43"), at=1800)
    assert store.run(rollup.of_sender, ADA, 900.0).calls == 2
    assert store.run(rollup.of_sender, ADA, 1800.0).calls == 1
    assert store.run(rollup.of_sender, "telegram:44", 0.0) == Spent()


def test_a_conversation_is_told_by_model(store: Store, current: Turn) -> None:
    """The dearest first, since a point in time."""
    book(store, current, at=100, model="old", cost_usd=9.0)
    book(store, current, at=200, model="small", cost_usd=0.1)
    book(store, current, at=200, model="large", cost_usd=1.0)
    book(store, store.run(turn_of, "hi", chat="43"), at=200, model="other")
    found = store.run(costs.of_conversation, current.lease.conversation, 150.0)
    assert [(group.name, group.spent.money.usd) for group in found] == [
        ("large", 1.0),
        ("small", 0.1),
    ]
    assert len(store.run(costs.of_conversation, current.lease.conversation)) == 3


def test_turns_are_told_by_how_they_ended(store: Store, current: Turn) -> None:
    """The most frequent first, with what they took; a turn that runs is one that is running."""
    for outcome in ("final_text", "partial", "final_text"):
        book(store, current)
        finish(store, current, outcome)
        store.run(admit, inbound("And then?"))
        current = store.run(begin_turn, current.lease)
    found = store.run(costs.by_outcome, 0.0)
    assert [(group.name, group.turns, group.spent.calls) for group in found] == [
        ("final_text", 2, 4),
        ("partial", 1, 2),
        ("running", 1, 0),
    ]
    assert found[0] == Group("final_text", found[0].spent, turns=2)


def test_what_no_turn_has_done_is_told_last(store: Store, current: Turn) -> None:
    """So that sums are the same whatever calls are grouped by."""
    book(store, current, at=200)
    for call in (model_call(USAGE), model_call(USAGE)):
        store.run(ledger.book, current.lease.conversation, None, ADA, [call])
    found = store.run(costs.by_outcome, 100.0)
    assert [(group.name, group.turns, group.spent.calls) for group in found] == [
        ("running", 1, 1),
        (costs.BACKGROUND, 0, 2),
    ]
    assert costs.total(found) == store.run(rollup.total, 0.0, lambda _: None)


def test_a_turn_counts_with_its_calls_since(store: Store, current: Turn) -> None:
    """One that began before and went on is told by what it did then."""
    store.run(lambda conn: conn.execute(turn.update().values(started_at=100)))
    book(store, current, at=150)
    book(store, current, at=250)
    [group] = store.run(costs.by_outcome, 200.0)
    assert (group.turns, group.spent.calls) == (1, 1)


def test_turns_of_before_and_since_count_once_each(store: Store, current: Turn) -> None:
    """However many calls they made; they share a line where they ended the same way."""
    store.run(lambda conn: conn.execute(turn.update().values(started_at=100)))
    for at in (250, 260):
        book(store, current, at=at)
    book(store, store.run(turn_of, "hi", chat="43"), at=270)
    [group] = store.run(costs.by_outcome, 200.0)
    assert (group.name, group.turns, group.spent.calls) == ("running", 2, 3)


def test_outcomes_of_before_do_not_count(store: Store, current: Turn) -> None:
    """By when a turn began."""
    store.run(lambda conn: conn.execute(turn.update().values(started_at=100)))
    assert store.run(costs.by_outcome, 101.0) == []
    assert len(store.run(costs.by_outcome, datetime.fromtimestamp(100, UTC).timestamp())) == 1
