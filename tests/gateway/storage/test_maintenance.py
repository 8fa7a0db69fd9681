"""Backup, and erasing a conversation for good."""

import asyncio
import random
import sqlite3
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import psycopg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from sqlalchemy import Connection

from adapters.messages import Poison
from agent.context_engine import Node
from agent.messages import Usage, assistant_message
from agent.ports import Inquiry, TodoItem
from agent.view.view import Summary, ViewPlan
from gateway.errors import LeaseLost, NotFound, StorageUnavailable
from gateway.http import control
from gateway.reload.operator import Operator, routes
from gateway.storage import maintenance, postgres
from gateway.storage.conversation import (
    attachments,
    compactions,
    questions,
    transcript,
    turn_journal,
    turns,
)
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.people import members, notebook
from gateway.storage.queue import inbox, leases
from gateway.storage.schema import (
    audit_rows,
    conversation,
    message,
    metadata,
    quarantine,
    replica,
)
from gateway.storage.search import index, query
from tests.support.postgres import PostgresServer, server_at
from tests.support.scripted_model import tool_call
from tests.support.searching import feed
from tests.support.storage import (
    PostgresStore,
    Store,
    admit,
    begin_turn,
    compact,
    dump,
    forget,
    inbound,
    model_call,
    parts,
    raw_bytes,
    turn_of,
)

SECRET = "xylophone-4711"
WORD = b"xyloph"
"""As the search index has it."""
USAGE = Usage(10, 5)


def talk(store: Store, words: str, *, chat: str, hide: bool = True) -> int:
    """Hold a conversation that uses every table; returns its id."""
    current = store.run(turn_of, words, chat=chat)
    call = tool_call("look", {"what": words}, f"call {words}")
    said = {"role": "assistant", "content": words, "tool_calls": [call]}
    store.run(turn_journal.record_message, current, said, model_call(USAGE))  # type: ignore[arg-type]
    store.run(turn_journal.start_tool, current, call, "read")
    store.run(turn_journal.store_output, current, f"output {words}")
    store.run(turn_journal.set_preview, current, f"preview {words}")
    store.run(attachments.offer, current, f"{words}.txt", "text/plain", words.encode() * 9, 1)
    plan = ViewPlan(summaries=(Summary(words, 1, 1),), tail_from=2)
    nodes = (Node(1, 0, 1, 1, words, "model", 1, 1),)
    current = store.run(compact, current, plan, failure=words, nodes=nodes)
    conversation_id, prepared = current.lease.conversation, Summary(words, 2, 2)
    store.run(members.enter_request, inbound(sender=words), words, words, conversation_id)
    store.run(compactions.put_candidate, current.session.id, conversation_id, prepared)
    store.run(compactions.put_part, conversation_id, "k", words, (), "telegram:u1")
    asked = Inquiry("approval", "call", "look", words)
    store.run(questions.enter, conversation_id, current.id, "call", asked, 60)
    store.run(notebook.set_todo, current, [TodoItem(words)])
    noted = notebook.Change(f"conversation:{conversation_id}", "memory", None, words, 100)
    store.run(notebook.change_notes, current, noted)
    end = TurnEnd("final_text", model_call(USAGE, reported_name="m"), error=words)
    store.run(turn_journal.commit, current, [assistant_message(words)], parts(current, words), end)
    if hide:
        store.run(turns.hide_newest, conversation_id)
    store.run(leases.release, current.lease)
    feed(store)
    lacking = store.run(query.lacking, "space", (index.END, index.END), query.TEXTS)
    assert lacking is not None
    store.run(query.enter_vectors, lacking[0], "space", dict.fromkeys(lacking[1], b"direction"))
    return current.lease.conversation


def is_on_disk(path: Path) -> bool:
    return SECRET.encode() in raw_bytes(path)


def checkpoint(store: Store) -> None:
    store.connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.usefixtures("sqlite_alone")
def test_forget_erases_every_row_of_a_conversation(store: Store) -> None:
    """Other conversations keep all of theirs."""
    kept = talk(store, "kept", chat="1")
    checkpoint(store)
    before = dump(store.path)
    gone = talk(store, SECRET, chat="2")
    assert store.run(forget, gone) == 3
    # The search index holds the same in other pages: tests/gateway/storage/search/test_index.py.
    # The audit log says that it was forgotten: tests/gateway/storage/test_audit_log.py.
    others = ("sqlite_sequence", "replica", "search_index", "audit_")
    after = [line for line in dump(store.path) if not any(name in line for name in others)]
    assert after == [line for line in before if not any(name in line for name in others)]
    assert store.conversation(kept).message_head == 3


@pytest.mark.usefixtures("sqlite_alone")
def test_forget_leaves_no_byte_in_the_file(store: Store) -> None:
    """Neither the database nor its log holds the words after a checkpoint."""
    talk(store, "kept", chat="1")
    gone = talk(store, SECRET, chat="2")
    assert is_on_disk(store.path)
    store.run(forget, gone)
    checkpoint(store)
    assert not is_on_disk(store.path)


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize("seed", [6, 8, 18])
async def test_forget_leaves_no_byte_after_pages_were_split(
    database_file: Path, tmp_path: Path, seed: int
) -> None:
    """`parley forget` overwrites also the copies that splitting pages has left behind."""
    store = Store(database_file)
    store.without_sync()
    gone = mix(store, random.Random(seed))  # noqa: S311 - repeatable, guards nothing
    store.close()
    await control.act(tmp_path, database_file, "forget", str(gone))
    assert not is_on_disk(database_file)
    assert maintenance.check(database_file) == []


def mix(store: Store, dice: random.Random) -> int:
    """Interleave one secret conversation with others; returns its id."""
    starts = [inbound("start", chat=chat, dedupe_key=chat) for chat in "abcd"]
    ids = [store.run(admit, start)[0] for start in starts]
    for n in range(400):
        secret = dice.random() < 0.5
        words = (SECRET if secret else "ordinary") * dice.randint(1, 60)
        chat = 0 if secret else dice.randint(1, 3)
        place = transcript.MessagePlace(ids[chat], 1, None)
        store.run(transcript.append, place, [assistant_message(f"{n} {words}")])
        store.run(admit, inbound(words, chat="abcd"[chat], dedupe_key=f"key-{n}"))
    return ids[0]


@pytest.mark.usefixtures("sqlite_alone")
async def test_forget_in_a_running_gateway_leaves_no_byte(database_file: Path) -> None:
    """What `parley forget` asks the gateway for is complete once it has answered."""
    store = Store(database_file)
    gone = talk(store, SECRET, chat="2")
    store.close()
    async with open_database(database_file) as database:
        app = web.Application()
        reloading = Mock()
        reloading.parts.shared.database = database
        app.add_routes(routes(Operator(reloading)))
        async with TestClient(TestServer(app)) as client:
            response = await client.post("/control/forget", json={"target": str(gone)})
            assert response.status == 200
        assert not await asyncio.to_thread(is_on_disk, database_file)


@pytest.mark.thorough
async def test_forget_on_a_server_leaves_no_word(
    postgres_worker: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """No row, no word in the search index's own file, nothing in a dump that is made afterwards."""
    server = server_at(postgres_url)
    with closing(postgres.connect(server)) as connection:
        gone = talk(PostgresStore(connection), SECRET, chat="2")
    assert SECRET in dumped(postgres_worker, postgres_url)
    async with open_database(server) as database:
        assert WORD in await asyncio.to_thread(index_file, postgres_worker, postgres_url)
        forget = control.ACTIONS["forget"]
        assert await control.carry_out(database, forget, str(gone)) == 3
    assert WORD not in index_file(postgres_worker, postgres_url)
    assert SECRET not in dumped(postgres_worker, postgres_url)
    assert maintenance.check(server) == []


def dumped(server: PostgresServer, url: str) -> str:
    """Return what a backup holds."""
    command = [server._programs / "pg_dump", "--dbname", url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def index_file(server: PostgresServer, url: str) -> bytes:
    """Return the bytes of the index of words as they are on the disk."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SELECT gin_clean_pending_list('search_index_terms')")
        conn.execute("CHECKPOINT")
        query = "SELECT pg_relation_filepath('search_index_terms')"
        (path,) = conn.execute(query).fetchone() or ("",)
    return (server.data / path).read_bytes()


def test_forget_of_an_unknown_conversation_is_an_error(store: Store) -> None:
    """The operator named something that is not there."""
    with pytest.raises(NotFound, match="no conversation 4711"):
        store.run(forget, 4711)


def test_forget_covers_every_table_that_names_a_conversation(store: Store) -> None:
    """A table that is added later must be erased too; the audit log's rows are emptied."""
    gone = talk(store, SECRET, chat="2", hide=False)
    tables = set(metadata.sorted_tables) - {audit_rows}
    named = [table for table in tables if "conversation" in table.c]
    assert all(store.rows(table) for table in named)
    store.run(forget, gone)
    for table in named:
        assert store.rows(table) == [], table.name
    assert store.rows(metadata.tables["step"]) == []
    assert store.rows(metadata.tables["attachment_part"]) == []


def test_a_running_turn_of_a_forgotten_conversation_writes_nothing(store: Store) -> None:
    """Its lease is lost with the conversation."""
    current = store.run(turn_of, SECRET)
    store.run(forget, current.lease.conversation)
    with pytest.raises(LeaseLost):
        store.run(
            turn_journal.commit, current, [assistant_message("x")], parts(current), TurnEnd("x")
        )
    assert store.rows(message) == []


def test_a_forgotten_chat_begins_anew(store: Store) -> None:
    """The next message of the same chat opens another conversation, with a new id."""
    gone = talk(store, SECRET, chat="2")
    store.run(forget, gone)
    fresh, seq = store.run(admit, inbound("hello again", chat="2"))
    assert (fresh > gone, seq) == (True, 1)


@pytest.mark.usefixtures("sqlite_alone")
def test_a_backup_holds_everything(store: Store, tmp_path: Path) -> None:
    """The copy is a database of its own, sound and equal to the original."""
    talk(store, "words", chat="1")
    target = tmp_path / "copy.db"
    size = maintenance.backup(store.path, target)
    assert size == target.stat().st_size
    assert maintenance.check(target) == []
    assert dump(target) == dump(store.path)
    assert not target.with_name("copy.db.partial").exists()


async def test_a_backup_while_writing_is_consistent(database: Database, tmp_path: Path) -> None:
    """Rows that were written together are in the copy together, and it can be opened."""
    source = Path(database._connection.engine.url.database or "")
    stop = threading.Event()

    def add_pair(conn: Connection) -> None:
        for name in ("left", "right"):
            conn.execute(replica.insert().values(name=name, heartbeat_until=0))

    async def write() -> None:
        while not stop.is_set():
            await database.write(add_pair)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        for n in range(5):
            await asyncio.to_thread(maintenance.backup, source, tmp_path / f"copy{n}.db")
        stop.set()
    async with open_database(tmp_path / "copy4.db") as restored:
        counts = await restored.read(
            lambda conn: conn.exec_driver_sql("SELECT name, count(*) FROM replica GROUP BY 1").all()
        )
    assert len({count for _, count in counts}) == 1
    assert maintenance.check(tmp_path / "copy4.db") == []


@pytest.mark.usefixtures("sqlite_alone")
def test_a_backup_in_portions_is_of_one_moment(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others write between two portions is not in it, and does not make it begin anew."""
    talk(store, "words", chat="1")
    before, target = dump(store.path), tmp_path / "copy.db"
    pages = store.path.stat().st_size // 4096
    pauses = 0

    def write(_seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        assert pauses <= pages
        store.run(admit, inbound("meanwhile", chat="2", dedupe_key=f"key-{pauses}"))

    checkpoint(store)
    monkeypatch.setattr(maintenance, "COPIED_PAGES", 8)
    monkeypatch.setattr(time, "sleep", write)
    maintenance.backup(store.path, target)
    assert pauses > 4
    assert dump(target) == before
    assert dump(store.path) != before


@pytest.mark.usefixtures("sqlite_alone")
def test_a_backup_replaces_an_older_one_as_a_whole(store: Store, tmp_path: Path) -> None:
    """Leftovers of a backup that was interrupted do no harm."""
    target = tmp_path / "copy.db"
    target.write_bytes(b"an older backup")
    target.with_name("copy.db.partial").write_bytes(b"")
    maintenance.backup(store.path, target)
    assert maintenance.check(target) == []


@pytest.mark.usefixtures("sqlite_alone")
def test_a_damaged_database_does_not_replace_a_backup(store: Store, tmp_path: Path) -> None:
    """The older one is all that is left then; no half copy stays beside it."""
    store.run(turn_of, "hello")
    store.close()
    damaged = bytearray(store.path.read_bytes())
    damaged[4096:8192] = bytes(4096)
    store.path.write_bytes(damaged)
    target = tmp_path / "backup.db"
    target.write_bytes(b"an older backup")
    with pytest.raises(StorageUnavailable, match=r"cannot back up .*(damaged|malformed)"):
        maintenance.backup(store.path, target)
    assert target.read_bytes() == b"an older backup"
    assert not target.with_name("backup.db.partial").exists()


@pytest.mark.usefixtures("sqlite_alone")
def test_a_stop_ends_reading_a_copy(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is checked, before it has its name and later on: of gigabytes that is minutes."""
    monkeypatch.setattr(maintenance, "LOOK_EVERY", 1)
    target = tmp_path / "copy.db"
    maintenance.backup(store.path, target)
    with pytest.raises(StorageUnavailable, match="interrupted"):
        maintenance.opened_revision(target, lambda: True)
    target.unlink()
    monkeypatch.setattr(maintenance, "_copy", lambda source, copy, *_: source.backup(copy))
    with pytest.raises(StorageUnavailable, match="interrupted"):
        maintenance.backup(store.path, target, lambda: True)
    assert list(tmp_path.glob("copy.db*")) == []


def test_a_backup_of_nothing_is_an_error(tmp_path: Path) -> None:
    """A wrong path does not make an empty backup."""
    with pytest.raises(StorageUnavailable, match="no database"):
        maintenance.backup(tmp_path / "missing.db", tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("sqlite_alone")
def test_a_backup_that_cannot_be_written_is_an_error(store: Store, tmp_path: Path) -> None:
    """The folder is missing, or a folder is in the place of the file; nothing is left behind."""
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    for target in (tmp_path / "missing" / "copy.db", tmp_path / "folder"):
        with pytest.raises(StorageUnavailable, match=r"cannot back up to [^']*: \w[\w ]*$"):
            maintenance.backup(store.path, target)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("sqlite_alone")
def test_a_backup_onto_the_database_itself_is_refused(store: Store) -> None:
    """The file that a gateway has open must not be replaced."""
    inode = store.path.stat().st_ino
    with pytest.raises(StorageUnavailable):
        maintenance.backup(store.path, store.path.parent / "." / store.path.name)
    assert store.path.stat().st_ino == inode


@pytest.mark.usefixtures("sqlite_alone")
def test_a_backup_of_any_folder_name(database_file: Path, tmp_path: Path) -> None:
    """Characters that mean something in a URL are part of the name, and nothing else."""
    (tmp_path / "what?#1%20").mkdir()
    source = database_file.rename(tmp_path / "what?#1%20" / "parley.db")
    maintenance.backup(source, tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as raw:
        assert raw.execute("SELECT count(*) FROM conversation").fetchone() == (0,)


def test_ids_are_not_given_again(store: Store) -> None:
    """A forgotten conversation's id never names another one."""
    gone = talk(store, SECRET, chat="2")
    store.run(forget, gone)
    assert store.rows(conversation) == []
    current = store.run(turn_of, "fresh")
    assert current.lease.conversation > gone
    store.run(turn_journal.commit, current, [], [], TurnEnd("empty"))
    store.run(admit, inbound("next"))
    assert store.run(begin_turn, current.lease).id > current.id


def test_forget_empties_what_strangers_wrote_in_the_chat(store: Store) -> None:
    """Whatever the keys of its platform are; other chats, and what has no chat, stay."""
    gone = talk(store, "words", chat="2")
    for key, chat in (("1290", "2"), ("cb:7", "2"), ("2:5", "3"), ("x", None)):
        store.run(inbox.set_aside, [Poison("telegram:default", key, SECRET, "stranger")], chat)
    store.run(forget, gone)
    kept = [(row.dedupe_key, row.raw) for row in store.rows(quarantine)]
    assert kept == [("1290", ""), ("cb:7", ""), ("2:5", SECRET), ("x", SECRET)]


@pytest.mark.usefixtures("sqlite_alone")
def test_forget_reads_no_turns_of_other_conversations(store: Store) -> None:
    """SQLite makes sure that none is left in a segment that goes."""
    gone = talk(store, "words", chat="2")
    assert "SCAN turn" not in store.plans(forget, gone)
