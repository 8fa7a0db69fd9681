"""Alerts: one open row for a trouble, whoever sees it, and what a webhook is still to be told."""

from typing import Any

import pytest
from sqlalchemy import update

from gateway.storage.queue import alerts
from gateway.storage.schema import alert
from tests.support.storage import Store


def note(store: Store, subject: str = "telegram:main", kind: str = "adapter-stopped") -> Any:
    return store.run(alerts.note, kind, subject, f"{subject} has stopped", 1_000.0)


def set_all(store: Store, **values: Any) -> None:
    store.run(lambda conn: conn.execute(update(alert).values(values)))


def test_a_trouble_is_noted_once(store: Store) -> None:
    """Another subject and another kind are troubles of their own."""
    first = note(store)
    assert note(store) is None
    assert len({first, note(store, "slack:main"), note(store, kind="adapter-silent")}) == 3
    assert [each.id for each in store.run(alerts.found)][-1] == first


def test_it_is_over_once_nobody_has_seen_it_for_a_while(store: Store) -> None:
    """Who sees it again begins the while anew; it ends once."""
    here = note(store)
    assert not store.run(alerts.end, here, 60.0)
    set_all(store, seen_at=1.0)
    note(store)
    assert not store.run(alerts.end, here, 60.0)
    set_all(store, seen_at=1.0)
    assert store.run(alerts.end, here, 60.0)
    assert not store.run(alerts.end, here, 60.0)
    assert store.run(alerts.found) == []
    assert [each.id for each in store.run(alerts.found, with_past=True)] == [here]


def test_after_its_end_it_is_a_new_one(store: Store) -> None:
    """How often it came lately is known."""
    here = note(store)
    store.run(alerts.end, here, 0.0)
    assert note(store) not in {None, here}
    assert store.run(alerts.ended_lately, "adapter-stopped", "telegram:main", 60.0) == 1
    assert store.run(alerts.ended_lately, "adapter-stopped", "slack:main", 60.0) == 0


def test_what_was_told_lately_is_counted(store: Store) -> None:
    """Begins and ends both; what was told long ago is not."""
    first, second = note(store), note(store, "slack:main")
    for here, over in ((first, False), (first, True), (second, False)):
        store.run(alerts.mark_told, here, over=over)
    assert store.run(alerts.told_lately, 3600.0) == 3
    set_all(store, told_at=1.0)
    assert store.run(alerts.told_lately, 3600.0) == 1


def test_a_post_is_one_replicas_until_it_is_late(store: Store) -> None:
    """Once its begin is posted, its end is left."""
    here = note(store)
    assert [each.id for each in store.run(alerts.to_post)] == [here]
    assert store.run(alerts.claim_post, here, 60.0)
    assert not store.run(alerts.claim_post, here, 60.0)
    assert store.run(alerts.to_post) == []
    set_all(store, post_at=1.0)
    assert store.run(alerts.claim_post, here, 60.0)
    store.run(alerts.mark_posted, here, 1)
    assert store.run(alerts.to_post) == []
    store.run(alerts.end, here, 0.0)
    assert [each.posted for each in store.run(alerts.to_post)] == [1]
    store.run(alerts.mark_posted, here, 2)
    assert store.run(alerts.to_post) == []


@pytest.mark.parametrize("stage", [0, 1])
def test_a_webhook_is_not_tried_for_ever(store: Store, stage: int) -> None:
    """After a day nobody is told what was not heard."""
    here = note(store)
    store.run(alerts.mark_posted, here, stage)
    store.run(alerts.end, here, 0.0)
    set_all(store, at=1.0, over_at=2.0)
    assert store.run(alerts.to_post) == []
    assert store.run(alerts.noticed_s, here) > 1_000


def test_what_has_been_over_for_long_is_erased(store: Store) -> None:
    """What is open stays, however old it is."""
    old, here = note(store), note(store, "slack:main")
    store.run(alerts.end, old, 0.0)
    set_all(store, at=1.0)
    store.run(lambda conn: conn.execute(update(alert).where(alert.c.id == old).values(over_at=2.0)))
    store.run(alerts.prune)
    assert [each.id for each in store.run(alerts.found, with_past=True)] == [here]
    assert store.run(alerts.get, here).told_at is None
