"""Erasing beside the traffic, and from the command line with and without a gateway."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update
from structlog.testing import capture_logs

from gateway.app import _repeated
from gateway.backup.pruning import Pruner
from gateway.errors import StorageUnavailable
from gateway.settings.tree import RetentionSettings
from gateway.storage import retention, schema
from gateway.storage.database import Database
from gateway.storage.search import index
from gateway.storage.sqlite_file import lock_database
from tests.support.command_line import Run as Parley
from tests.support.command_line import one_line
from tests.support.gateway import change, running, serving
from tests.support.searching import talk as fill
from tests.support.storage import Store, admit, inbound

LIMITS = {"transcript_days": 30}
TABLES = (schema.message, schema.inbox, schema.outbox, schema.step)


def age(home: Path, days: int) -> None:
    """Let days go by for a database that nobody has open."""

    def go_by(conn: Connection) -> None:
        for table in TABLES:
            conn.execute(update(table).values(at=table.c.at - days * 86_400.0))

    asyncio.run(change(home, go_by))


def talk(home: Path, *texts: str) -> None:
    """Have one conversation, with its words in the index."""

    async def ask() -> None:
        async with running(home) as chat:
            for each in texts:
                await chat.ask(each)
            await chat.gateway.beside.indexer.feed_all()
            await chat.gateway.delivery.wait_idle()

    asyncio.run(ask())


def clear_index(home: Path) -> None:
    """Have no message be in the index of a database that nobody has open."""
    asyncio.run(change(home, index.clear))


def configure(home: Path) -> None:
    """Have retention be limited."""
    (home / "parley.yaml").write_text(json.dumps({"retention": LIMITS, "logging": {"file": False}}))


def test_a_dry_run_prints_each_class_and_changes_nothing(parley: Parley, tmp_path: Path) -> None:
    """Rows and bytes, not characters; only of what is limited."""
    talk(tmp_path, "öne", "two")
    age(tmp_path, 31)
    configure(tmp_path)
    told = json.loads(parley("db", "prune", "--dry-run", "--json").out)
    assert set(told) == {"raw", *(name.removesuffix("_days") for name in LIMITS)}
    # Four messages, two steps and two answers as they were sent.
    assert told["transcript"]["rows"] == 8
    assert "transcript: 8 rows" in parley("db", "prune", "--dry-run").out


@pytest.mark.thorough
def test_pruning_without_a_gateway(parley: Parley, tmp_path: Path) -> None:
    """It does what the dry run says, commands and what is not indexed included."""
    talk(tmp_path, "one", "/retry", "/new two", "/model")
    clear_index(tmp_path)
    age(tmp_path, 31)
    configure(tmp_path)
    counted = parley("db", "prune", "--dry-run").out
    assert parley("db", "prune").out == counted.replace("would be erased", "erased") != counted
    assert "transcript: 0 rows" in parley("db", "prune").out
    assert "sound" in parley("db", "check").out
    assert "retention" in parley("sessions", "lineage", "1").out
    talk(tmp_path, "three")


async def test_pruning_through_the_running_gateway(
    home: Path, parley: Parley, tmp_path: Path
) -> None:
    """The gateway is the only writer."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        await chat.gateway.beside.indexer.feed_all()
        await chat.gateway.delivery.wait_idle()
    await asyncio.to_thread(age, tmp_path, 31)
    configure(tmp_path)
    async with serving(tmp_path) as gateway:
        told = await asyncio.to_thread(parley, "db", "prune", "--json")
        assert json.loads(told.out)["transcript"]["rows"] == 4
        assert await gateway.chat.rows(schema.message) == []


async def test_a_gateway_prunes_by_itself(tmp_path: Path) -> None:
    """At its start, and once an hour; one line of its log tells what went."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        await chat.gateway.beside.indexer.feed_all()
        await chat.gateway.delivery.wait_idle()
    await asyncio.to_thread(age, tmp_path, 31)
    async with serving(tmp_path, retention=LIMITS) as gateway:
        line = await gateway.chat.logged("storage_pruned")
        assert line["rows"] == {"raw": 1, "transcript": 4}
        assert await gateway.chat.ask("two") == "re: two"


@pytest.mark.parametrize(
    ("trouble", "level"), [(StorageUnavailable("full"), "warning"), (ValueError("odd"), "error")]
)
async def test_trouble_is_logged_and_passes(
    database: Database, monkeypatch: pytest.MonkeyPatch, trouble: Exception, level: str
) -> None:
    """The gateway lives on, and it is tried again later."""
    failures, passed = [trouble], asyncio.Event()

    def failing(*_: Any) -> retention.Pruned:
        if failures:
            raise failures.pop()
        passed.set()
        return retention.Pruned()

    monkeypatch.setattr(retention, "count_raw", failing)
    with capture_logs() as logs:
        running_ = asyncio.create_task(
            _repeated("prune", Pruner(database, RetentionSettings(), 30).prune, 0.0)()
        )
        await passed.wait()
        running_.cancel()
    failed = [(line["work"], line["log_level"]) for line in logs if line["event"] == "work_failed"]
    assert failed == [("prune", level)]


@pytest.mark.usefixtures("sqlite_alone")
async def test_many_rows_go_in_short_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer in between waits for no more than one step."""
    monkeypatch.setattr(retention, "FOUND_ROWS", 450)
    await database.write(_many_calls, 1_000)
    sizes: list[int] = []
    erase = retention.erase

    def counting(*args: Any) -> retention.Pruned:
        gone = erase(*args)
        sizes.append(gone.rows)
        return gone

    monkeypatch.setattr(retention, "erase", counting)
    gone = await Pruner(database, RetentionSettings(ledger_days=2), 30).prune()
    assert gone["ledger"].rows == 1_000
    assert sizes == [200, 200, 50, 200, 200, 50, 100]


def _many_calls(conn: Connection, count: int) -> None:
    conversation_id, _ = admit(conn, inbound())
    call = {"provider": "p", "model": "m", "purpose": "answer", "sender": "s", "at": 1.0}
    rows = [{"conversation": conversation_id, **call} for _ in range(count)]
    conn.execute(schema.ledger.insert(), rows)


def test_messages_go_in_steps_of_fifty(store: Store) -> None:
    """Messages with their words are the dearest."""
    words = [f"order {n} left warehouse {n % 17} for street {n * 7} today" for n in range(400)]
    conversation_id = fill(store, *words)
    store.run(lambda conn: conn.execute(update(schema.message).values(at=1.0)))
    store.run(lambda conn: conn.execute(update(schema.inbox).values(state="done")))
    store.run(retention.begin_anew, conversation_id, 30 * 86_400.0)
    gone = [store.run(retention.take_out, conversation_id, 1.0).rows for _ in range(9)]
    assert gone == [50] * 8 + [0]


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
def test_compacting_gives_the_room_back(parley: Parley, tmp_path: Path) -> None:
    """Free pages are used for what comes; without them the file is smaller, and the same."""
    talk(tmp_path, "one")
    with closing(sqlite3.connect(tmp_path / "parley.db")) as raw, raw:
        raw.execute("CREATE TABLE large AS SELECT zeroblob(4000000)")
        raw.execute("DROP TABLE large")
    before = (tmp_path / "parley.db").stat().st_size
    assert parley("db", "compact").out.startswith(f"{before:,} bytes before, ")
    assert (tmp_path / "parley.db").stat().st_size < before / 3
    assert "sound" in parley("db", "check").out
    talk(tmp_path, "two")


@pytest.mark.usefixtures("sqlite_alone")
def test_compacting_what_is_not_there_or_in_use(parley: Parley, tmp_path: Path) -> None:
    """One line says so."""
    assert "there is no database" in one_line(parley("db", "compact"))
    talk(tmp_path, "one")
    with lock_database(tmp_path / "parley.db"):
        assert "is in use" in one_line(parley("db", "compact"))
