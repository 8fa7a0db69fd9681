"""The feeder: wakes for a hint, goes on after trouble, builds anew what is of another version."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import delete, text
from structlog.testing import capture_logs

from gateway import indexing
from gateway.errors import StorageUnavailable
from gateway.indexing import Indexer
from gateway.storage import searchindex
from gateway.storage.engine import Database
from gateway.storage.models import message
from tests.support.searching import chat, found, said, tell
from tests.support.storage import Store


@asynccontextmanager
async def running(indexer: Indexer) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(indexer.run())
        yield
        task.cancel()


async def until_fed(database: Database) -> None:
    while await database.read(searchindex.unindexed, None):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "GATHER_S", 0)


async def test_what_waits_is_fed_at_the_start_and_after_a_hint(
    store: Store, database: Database
) -> None:
    """The hint names no rows: they are read."""
    here, indexer = chat(store), Indexer(database)
    store.run(tell, here, [said("a zebra")])
    async with running(indexer):
        await until_fed(database)
        store.run(tell, here, [said("a horse")])
        indexer.notify(here)
        await until_fed(database)


async def test_a_lost_hint_costs_a_while(
    store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for again all the same."""
    monkeypatch.setattr(indexing, "POLL_S", 0.01)
    async with running(Indexer(database)):
        await until_fed(database)
        store.run(tell, chat(store), [said("a zebra")])
        await until_fed(database)


async def test_an_index_without_a_mark_is_built_anew(store: Store, database: Database) -> None:
    """Once; the next start finds it in order."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    with capture_logs() as logs:
        assert await Indexer(database).feed_all() == 1
        assert await Indexer(database).feed_all() == 0
        assert logs == []
        empty = text("INSERT INTO search_index (search_index) VALUES ('delete-all')")
        store.run(lambda conn: conn.execute(empty))
        assert await Indexer(database).feed_all() == 1
    assert [line["event"] for line in logs] == ["search_index_cleared"]


async def test_a_conversation_whose_messages_are_gone_is_passed_over(
    store: Store, database: Database
) -> None:
    """Retention has erased them; an index that is built anew has nothing to wait for there."""
    emptied, cut, whole = chat(store, "1"), chat(store, "2"), chat(store, "3")
    for here in (emptied, cut, whole):
        store.run(tell, here, [said("a zebra"), said("a horse")])
    await Indexer(database).feed_all()
    gone = (message.c.conversation == emptied) | (message.c.conversation == cut) & (
        message.c.seq == 2
    )
    store.run(lambda conn: conn.execute(delete(message).where(gone)))
    store.run(searchindex.clear)
    assert await Indexer(database).feed_all() == 3
    assert store.run(searchindex.behind, 9) == []
    store.run(tell, emptied, [said("a giraffe")])
    assert await Indexer(database).feed_all() == 1
    assert found(store, [emptied], "giraffe") == [3]


async def test_a_message_that_breaks_the_feeder_holds_up_nobody_else(
    store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its conversation is left out for this time."""
    broken, sound = chat(store, "1"), chat(store, "2")
    store.run(tell, broken, [said("a zebra")])
    store.run(tell, sound, [said("a horse")])
    prepared = searchindex.prepared

    def failing(found: searchindex.Waiting) -> searchindex.Batch:
        if found.conversation == broken:
            raise ValueError("odd")
        return prepared(found)

    monkeypatch.setattr(searchindex, "prepared", failing)
    with capture_logs() as logs:
        assert await Indexer(database).feed_all() == 1
    assert [(line["event"], line["conversation"]) for line in logs] == [
        ("conversation_not_indexed", broken)
    ]
    assert store.run(searchindex.behind, 9) == [broken]


@pytest.mark.parametrize(
    ("trouble", "event"),
    [
        (StorageUnavailable("full"), "search_index_not_fed"),
        (ValueError("odd"), "search_index_feeding_failed"),
    ],
)
async def test_trouble_is_logged_and_passes(
    store: Store,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception,
    event: str,
) -> None:
    """The feeder lives on and tries again later."""
    monkeypatch.setattr(indexing, "POLL_S", 0.01)
    store.run(tell, chat(store), [said("a zebra")])
    feed_all, failures = Indexer.feed_all, [trouble]

    async def failing(indexer: Indexer) -> int:
        if failures:
            raise failures.pop()
        return await feed_all(indexer)

    monkeypatch.setattr(Indexer, "feed_all", failing)
    with capture_logs() as logs:
        async with running(Indexer(database)):
            await until_fed(database)
    assert event in [line["event"] for line in logs]


async def test_what_another_feeder_fed_counts_once(store: Store, database: Database) -> None:
    """Both read it, one enters it."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    await database.write(searchindex.clear)
    feeders = [Indexer(database).catch_up([here]) for _ in range(2)]
    assert sum(await asyncio.gather(*feeders)) == 1
