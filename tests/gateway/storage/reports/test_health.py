"""How the database stands: what waits, what was given up, and how much of it there is."""

from pathlib import Path

import pytest

from gateway.metrics import instruments
from gateway.settings.tree import Settings
from gateway.storage.queue import leases
from gateway.storage.reports import health, spending
from gateway.storage.schema import replica
from tests.gateway.storage.reports.test_conversation_list import set_rows
from tests.support.gateway import HeldModel, echo, running
from tests.support.storage import Store


async def test_what_waits_is_counted_with_its_age(tmp_path: Path) -> None:
    """A message that is being answered waits; its conversation is leased."""
    held = HeldModel(echo)
    held.hold("hello")
    async with running(tmp_path, held) as chat:
        await chat.say("hello")
        await chat.until(lambda: held.waiting)
        read = chat.gateway.database.read
        unanswered = await read(health.waiting, "unanswered")
        assert unanswered.count == 1
        assert 0 <= unanswered.oldest_s < 60
        for what in ("asked", "strangers"):
            assert (await read(health.waiting, what)).count == 0
        counts = await read(health.counts)
        assert (counts["leases"], counts["replicas_alive"]) == (1, 1)
        assert await read(health.unsent_by_account) == {}
        held.held["hello"].set()
        await chat.logged("message_sent")


async def test_what_is_still_to_be_shown_is_told_by_account(tmp_path: Path) -> None:
    """Nobody sends it where delivery does not run."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        await chat.logged("message_sent")
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/help")
        read = chat.gateway.database.read
        unsent, counts = await read(health.unsent_by_account), await read(health.counts)
        spent_usd = await read(spending.spent_usd, 0.0)
    assert unsent["telegram", "default"].count >= 1
    # Fed beside the path, and here nobody does.
    assert counts["unsearched_in"] == 1
    assert counts["unsearched"] >= 2
    assert spent_usd == 0


@pytest.mark.usefixtures("sqlite_alone")
def test_a_scrape_reads_no_table_from_end_to_end(store: Store) -> None:
    """With a million messages it takes no longer: all that is unfinished has an index."""
    found = store.plans(lambda conn: [*instruments._samples(conn, Settings(home=Path()), 0.0)])
    large = {"inbox", "outbox", "turn", "conversation", "message", "ledger", "step"}
    scanned = [
        line
        for line in found
        if line.split()[0] == "SCAN" and line.split()[1] in large and "INDEX" not in line
    ]
    assert scanned == []


def test_a_replica_that_says_nothing_is_late(store: Store) -> None:
    """By the time since its heartbeat was due."""
    late, fine = (store.run(leases.register, name) for name in ("one", "two"))
    store.run(set_rows, replica, replica.c.id == late, heartbeat_until=1.0)
    found = {row.id: row for row in store.run(health.replicas)}
    assert (found[late].name, found[late].late_s > 1e6, found[fine].late_s) == ("one", True, 0.0)
