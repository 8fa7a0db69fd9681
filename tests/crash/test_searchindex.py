"""Kill who feeds the search index, at any moment: rows, terms and watermark stay one."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.storage.schema import search_row
from gateway.storage.search import index
from tests.support.searching import chat, feed, said, tell
from tests.support.storage import Store

MESSAGES = 200


@pytest.fixture
def waiting(database_file: Path) -> Path:
    """A database with a transcript that is not in the index."""
    store = Store(database_file)
    store.run(index.clear)
    store.run(tell, chat(store), [said(f"a zebra {n}") for n in range(MESSAGES)])
    store.close()
    return database_file


@pytest.fixture
def older(database_file: Path) -> Path:
    """A database whose whole index is one of an older version."""
    store = Store(database_file)
    store.run(tell, chat(store), [said(f"a zebra {n}") for n in range(MESSAGES)])
    feed(store)
    for statement in (
        "INSERT INTO search_index (search_index) VALUES ('delete-all')",
        "INSERT INTO search_index (rowid, terms) VALUES (0, '=v3')",
    ):
        store.run(lambda conn, said=statement: conn.execute(text(said)))
    store.close()
    return database_file


def feed_until_killed(path: Path, after_s: float) -> None:
    """Feed in another process, a few messages at a time, and kill that."""
    child = os.fork()
    if child == 0:
        try:
            index.BATCH_ROWS = 3
            feed(Store(path))
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def check(store: Store) -> int:
    """Check that the index holds what its watermark says; returns that."""
    fed = store.conversation(1).searched_seq
    assert [row.seq for row in store.rows(search_row)] == list(range(1, fed + 1))
    zebras = text("SELECT rowid FROM search_index WHERE search_index MATCH 'zebra'")
    ids = store.run(lambda conn: conn.execute(zebras).scalars().all())
    assert ids == [index.row_id(1, seq) for seq in range(1, fed + 1)]
    return int(fed)


def test_a_kill_leaves_index_and_watermark_one(waiting: Path) -> None:
    """The next feeder goes on there, and what was emptied for good is fed whole."""
    chance = random.Random(6)  # noqa: S311 - the same moments in every run
    for _ in range(6):
        feed_until_killed(waiting, chance.uniform(0.005, 0.06))
        store = Store(waiting)
        if check(store) == MESSAGES:
            store.run(index.clear)
        store.close()
    store = Store(waiting)
    feed(store)
    assert check(store) == MESSAGES
    store.close()


@pytest.mark.thorough
def test_a_kill_while_an_older_index_is_built_anew_loses_no_step(older: Path) -> None:
    """It is emptied once; each feeder goes on where the one before was killed."""
    reached = [0]
    for _ in range(40):
        feed_until_killed(older, 0.03)
        store = Store(older)
        if store.run(index.is_current):
            reached.append(check(store))
        store.close()
        if reached[-1] == MESSAGES:
            break
    assert reached == sorted(reached)
    store = Store(older)
    feed(store)
    assert check(store) == MESSAGES
    store.close()
