"""Adapter leases: one replica receives for an account, and the fence keeps the older one out."""

import pytest

from gateway.errors import LeaseLost
from gateway.storage.queue import adapter_leases, leases
from gateway.storage.queue.leases import Receiving, ReceivingFence
from gateway.storage.schema import adapter_lease, replica
from tests.support.storage import Store

HERE = Receiving("telegram", "default")


@pytest.fixture
def me(store: Store) -> int:
    """A replica that lives."""
    store.run(adapter_leases.offer, [HERE])
    return store.run(leases.register, "me")


def fence(replica_id: int, *epochs: int) -> ReceivingFence:
    return ReceivingFence(replica_id, "telegram", "default", epochs)


def test_what_is_offered_is_nobodys_and_known_once(store: Store, me: int) -> None:
    """A second start changes nothing about it."""
    assert store.run(adapter_leases.take, me, HERE) == 1
    store.run(adapter_leases.offer, [Receiving("slack", "work"), HERE])
    rows = [(row.platform, row.account, row.owner, row.epoch) for row in store.rows(adapter_lease)]
    assert rows == [("slack", "work", None, 0), ("telegram", "default", me, 1)]


def test_one_takes_it(store: Store, me: int) -> None:
    """The other one gets it once it was given back, under a new epoch."""
    other = store.run(leases.register, "other")
    assert store.run(adapter_leases.take, me, HERE) == 1
    assert store.run(adapter_leases.take, other, HERE) is None
    store.run(adapter_leases.give_back, other, HERE)
    assert store.run(adapter_leases.take, other, HERE) is None
    store.run(adapter_leases.give_back, me, HERE)
    assert store.run(adapter_leases.take, other, HERE) == 3


def test_a_shard_has_a_lease_of_its_own(store: Store, me: int) -> None:
    """Two replicas receive for one bot, each over its connection."""
    second = HERE._replace(shard=1)
    store.run(adapter_leases.offer, [second])
    other = store.run(leases.register, "other")
    assert store.run(adapter_leases.take, me, HERE) == 1
    assert store.run(adapter_leases.take, other, second) == 1
    store.run(leases.fence_receiving, fence(other, 1))


def test_who_was_reaped_takes_nothing(store: Store, me: int) -> None:
    """Its row is gone."""
    store.run(lambda conn: conn.execute(replica.delete()))
    assert store.run(adapter_leases.take, me, HERE) is None


def test_the_fence_refuses_the_older_of_two_that_receive(store: Store, me: int) -> None:
    """It believes to hold the lease, which has gone to another one meanwhile."""
    epoch = store.run(adapter_leases.take, me, HERE)
    assert epoch is not None
    store.run(leases.fence_receiving, fence(me, epoch))
    other = store.run(leases.register, "other")
    store.run(leases.reap, me)
    newer = store.run(adapter_leases.take, other, HERE)
    assert newer is not None
    store.run(leases.fence_receiving, fence(other, newer))
    for stale in (fence(me, epoch), fence(other, epoch), fence(other)):
        with pytest.raises(LeaseLost):
            store.run(leases.fence_receiving, stale)
