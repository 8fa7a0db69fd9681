"""Real SQLite files for tests, and factories for what is entered in them."""

import itertools
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, TypeVar

from alembic import command
from sqlalchemy import Connection, Row, Table, event, select
from typing_extensions import override

from adapters.messages import Address, InboundMessage, Receipt
from agent.messages import ChatMessage, Content, Usage
from agent.ports import Compaction, ModelCall, PlannerState
from agent.prompt.system import SystemPrompt
from agent.view.view import ViewPlan, render
from gateway.commands.registry import parse
from gateway.session_keys import session_key, sole_sender
from gateway.storage import maintenance, migrations
from gateway.storage.conversation import compactions, conversations, sessions, transcript, turns
from gateway.storage.conversation.sessions import PromptBase, Session
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Location
from gateway.storage.migrations import prepare_schema
from gateway.storage.postgres import driver_of
from gateway.storage.queue import inbox, leases, outbox
from gateway.storage.queue.inbox import InboxEntry, InboxKind, InboxState
from gateway.storage.queue.leases import Lease
from gateway.storage.queue.outbox import OutboxPart
from gateway.storage.schema import SEARCH_INDEX, conversation, message
from gateway.storage.search import index
from gateway.storage.sqlite_file import connect, connected, hold_file
from tests.support.postgres import server_at

P = ParamSpec("P")
T = TypeVar("T")

ACCOUNTS = (("telegram", "default"),)
RECEIPT = Receipt("shown-1")


def fixed_base(text: str, tools: str = "[]", **inputs: str) -> PromptBase:
    """Return what requests begin with where the system prompt is this text."""
    written = SystemPrompt(text, (("identity", len(text)),))
    return PromptBase(tools, inputs, lambda _conn, _session: written)


BASE = fixed_base("You are a test.", instructions="0f", model="model-1")
_keys = itertools.count(1)


class _Undo(Exception):
    """Rolls a transaction back."""


class Store:
    """A migrated SQLite file and its writing connection; each `run` is one transaction."""

    locks: tuple[str, ...] = ()
    """The statements that lock a conversation before others decide by other tables' rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location: Location = path
        self.connection = connect(path)

    def run(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a transaction function as the gateway would, and commit it."""
        with self._transaction():
            return fn(self.connection, *args, **kwargs)

    def _transaction(self) -> AbstractContextManager[Any]:
        return self.connection.begin()

    @contextmanager
    def undoing(self) -> Iterator[Connection]:
        """Have what is done meanwhile be rolled back at the end."""
        with suppress(_Undo), self._transaction():
            yield self.connection
            raise _Undo

    def undone(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a transaction function, and roll it back."""
        found: list[T] = []

        def run_and_fail(conn: Connection) -> None:
            found.append(fn(conn, *args, **kwargs))
            raise _Undo

        with suppress(_Undo):
            self.run(run_and_fail)
        return found[0]

    def plans(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[str]:
        """Run a function; return how SQLite does its statements ("SEARCH inbox USING …")."""
        with self.explained() as found:
            self.run(fn, *args, **kwargs)
        return found

    @contextmanager
    def explained(self) -> Iterator[list[str]]:
        """Collect how SQLite does the statements of everything that runs meanwhile."""
        found: list[str] = []

        def explain(conn: Connection, _: object, statement: str, values: Any, *__: object) -> None:
            if statement.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
                rows = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                found.extend(str(row.detail) for row in rows)

        with _listening(self.connection, explain):
            yield found

    def statements(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[str]:
        """Run a function; return its statements as `statements_of` has them."""
        with statements_of(self.connection) as found:
            self.run(fn, *args, **kwargs)
        return found

    def rows(self, table: Table, **where: Any) -> list[Row[Any]]:
        """Return a table's rows in the order of its key, those with these values."""
        query = select(table).order_by(*table.primary_key.columns)
        for name, value in where.items():
            query = query.where(table.c[name] == value)
        return list(self.run(lambda conn: conn.execute(query).all()))

    def one(self, table: Table, **where: Any) -> Row[Any]:
        """Return the only row with these values."""
        (row,) = self.rows(table, **where)
        return row

    def conversation(self, conversation_id: int) -> Row[Any]:
        """Return a conversation's row."""
        return self.one(conversation, id=conversation_id)

    def bodies(self, conversation_id: int) -> list[str]:
        """Return the stored bytes of a transcript, in order."""
        return [row.body for row in self.rows(message, conversation=conversation_id)]

    def without_sync(self) -> None:
        """Trade durability, which the test does not look at, for speed."""
        self.connection.connection.cursor().execute("PRAGMA synchronous=OFF")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()
        self.connection.engine.dispose()


class PostgresStore(Store):
    """A PostgreSQL database that was migrated, and that is emptied for the test.

    Making one takes 0.15 s of the processor, emptying it 5 ms.
    """

    locks = ("SELECT conversation",)

    def __init__(self, connection: Connection, *, is_emptied: bool = True) -> None:
        self.connection: Connection = connection
        stand_still(connection)
        self.location: Location = server_at(driver_of(connection).info.dsn)
        if is_emptied:
            with connection.begin():
                driver_of(connection).execute(_EMPTY)

    @override
    def without_sync(self) -> None:
        """Do nothing: the tests' server never syncs."""


def stand_still(connection: Connection) -> None:
    """Let a test's transactions stand still, as on a busy machine, longer than a replica's may."""
    with connection.begin():
        connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")


class ServerSession(Store):
    """A session with a database of PostgreSQL that is not emptied: one of several."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection = connection
        stand_still(connection)

    @override
    def close(self) -> None:
        """End it as the end of its process does."""
        self.connection.close()


_EMPTY = """
DO $$ DECLARE each text; BEGIN
  SET LOCAL session_replication_role = replica;
  FOR each IN SELECT tablename FROM pg_tables
    WHERE schemaname = 'public' AND tablename <> 'alembic_version'
  LOOP EXECUTE format('DELETE FROM %I', each); END LOOP;
  FOR each IN SELECT sequencename FROM pg_sequences
    WHERE schemaname = 'public' AND last_value IS NOT NULL
  LOOP PERFORM setval(quote_ident(each), 1, false); END LOOP;
END $$
"""
"""Without triggers and foreign keys, which would ask for an order."""


@contextmanager
def statements_of(connection: Connection) -> Iterator[list[str]]:
    """Collect the statements of a connection, each with its table ("SELECT conversation")."""
    found: list[str] = []

    def note(_conn: Connection, _: object, statement: str, *__: object) -> None:
        if (table := re.search(r"\b[a-z]\w*", statement)) is not None:
            found.append(f"{statement.split()[0]} {table[0]}")

    with _listening(connection, note):
        yield found


@contextmanager
def _listening(connection: Connection, before: Callable[..., None]) -> Iterator[None]:
    event.listen(connection, "before_cursor_execute", before)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", before)


def migrated_file(path: Path) -> Path:
    """Create a database with the newest schema, without a write-ahead log beside it."""
    store = Store(path)
    prepare_schema(store.connection)
    store.close()
    return path


def made_newer(conn: Connection) -> None:
    """Have the database be that of a later version, on which none before it runs."""
    conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("COMMENT ON TABLE alembic_version IS '9999'")


def copy_database(source: Path, target: Path) -> Path:
    """Copy a database file."""
    target.write_bytes(source.read_bytes())
    return target


def connecting_to_copies(template: Path) -> Callable[[Path], AbstractContextManager[Connection]]:
    """Return a `connected` that opens a copy of the migrated database instead of a new one."""
    migrated = template.read_bytes()

    @contextmanager
    def connected_to_copy(path: Path) -> Iterator[Connection]:
        with ExitStack() as until_closed:
            # If no file can be made, the real function must report it.
            with suppress(OSError), path.open("xb") as file:
                file.write(migrated)
                until_closed.enter_context(hold_file(path))
            yield until_closed.enter_context(connected(path))

    return connected_to_copy


def raw_bytes(path: Path) -> bytes:
    """Return everything that lies on the disk for a database: the file and its log."""
    files = sorted(path.parent.glob(path.name + "*"))
    return b"".join(file.read_bytes() for file in files if not file.name.endswith(".lock"))


def dump(path: Path) -> list[str]:
    """Return a database's whole content as SQL; of the search index the tables it consists of."""
    with closing(sqlite3.connect(path)) as raw, closing(sqlite3.connect(":memory:")) as copy:
        raw.backup(copy)
        copy.execute("PRAGMA writable_schema = ON")
        copy.execute("DELETE FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'")
        return list(copy.iterdump())


def inbound(text: str = "hello", *, chat: str = "42", **changes: Any) -> InboundMessage:
    """Return a direct message with a dedupe key of its own."""
    values: dict[str, Any] = {
        "address": Address("telegram", "default", chat, changes.pop("thread", None)),
        "chat_kind": "dm",
        "sender": chat,
        "sender_name": "Ada",
        "text": text,
        "dedupe_key": f"update-{next(_keys)}",
        "raw": f'{{"text": "{text}"}}',
    }
    return InboundMessage(**(values | changes))


def admit(
    conn: Connection,
    incoming: InboundMessage,
    *,
    kind: InboxKind = "message",
    state: InboxState = "queued",
) -> tuple[int, int]:
    """Enter a message as the intake does; returns (conversation, seq)."""
    command = parse(incoming.text).command if kind == "command" else None
    name = command.name if command else None
    key, user = session_key(incoming, "per_user"), sole_sender(incoming, "per_user")
    row = inbox.find_or_create(conn, key, incoming, user)
    seq = inbox.append(conn, row.id, incoming, kind=kind, state=state, command=name)
    conversations.make_ready(conn, row.id)
    return row.id, seq


def claim_one(conn: Connection, conversation_id: int, replica: int | None = None) -> Lease:
    """Return a lease on a conversation that has work."""
    if replica is None:
        replica = leases.register(conn, "test")
    held = leases.claim(conn, replica, 100, ACCOUNTS)
    (lease,) = [lease for lease in held if lease.conversation == conversation_id]
    return lease


def begin_turn(conn: Connection, lease: Lease) -> Turn:
    """Freeze everything that waits in a conversation into a turn."""
    entries = inbox.queued(conn, lease.conversation)
    text = "\n".join(entry.text for entry in entries)
    return begin(conn, lease, entries, text)


def begin(
    conn: Connection,
    lease: Lease,
    entries: Sequence[InboxEntry],
    asked: Content | None,
    base: PromptBase = BASE,
    others: Sequence[str] = (),
) -> Turn:
    """Freeze these entries into a turn."""
    question = turns.AskedQuestion(asked, others)
    return turns.begin(conn, leases.look(conn, lease), entries, question, base)


def find_running(conn: Connection, lease: Lease, base: PromptBase = BASE) -> Turn | None:
    """Return the turn that runs in a conversation."""
    return turns.find_running(conn, leases.look(conn, lease), base)


def turn_of(conn: Connection, *texts: str, chat: str = "42") -> Turn:
    """Admit texts, claim their conversation and begin the turn that answers them."""
    admitted = [admit(conn, inbound(text, chat=chat, message_ref=f"ref-{text}")) for text in texts]
    return begin_turn(conn, claim_one(conn, admitted[-1][0]))


def model_call(usage: Usage | None = None, **changes: Any) -> ModelCall:
    """Return a call of a model that cost half a dollar."""
    values: dict[str, Any] = {"provider": "anthropic", "model": "model-1", "cost_usd": 0.5}
    return ModelCall(**(values | {"usage": usage} | changes))


def part(source_key: str, text: str = "an answer") -> OutboxPart:
    """Return one outbox row to be."""
    return OutboxPart(source_key, text, text)


def parts(current: Turn, text: str = "an answer", kind: str = "answer") -> list[OutboxPart]:
    """Return the rows of a turn's answer."""
    return outbox.parts_of(lambda markdown: [markdown], f"turn:{current.id}:{kind}", text)


def seqs(rows: Sequence[Row[Any]]) -> list[int]:
    """Return the seq of each row."""
    return [row.seq for row in rows]


def begin_anew(conn: Connection, conversation_id: int, reason: str = "new") -> Session:
    """End the lineage and begin another one behind the newest message, as `/new` does."""
    sessions.end(conn, sessions.active(conn, conversation_id).id, reason)
    head = conn.scalar(
        select(conversation.c.message_head).where(conversation.c.id == conversation_id)
    )
    return sessions.start_root(conn, conversation_id, reason, first_seq=int(head or 0) + 1)


def forget(conn: Connection, conversation_id: int) -> int:
    """Erase a conversation in one transaction, and merge the search index; see `withdraw`."""
    messages = maintenance.withdraw(conn, conversation_id)
    while maintenance.erase_some(conn, conversation_id):
        pass
    is_first = True
    while index.merge_some(conn, is_first=is_first):
        is_first = False
    return messages


def compaction(plan: ViewPlan, **changes: Any) -> Compaction:
    """Return what the planner commits, with figures of which each is another one."""
    values: dict[str, Any] = {
        "plan": plan,
        "trigger": "threshold",
        "engine": "compressor",
        "level": "summary",
        "messages_before": 400,
        "messages_after": 30,
        "tokens_before": 100_000,
        "tokens_after": 20_000,
        "duration_ms": 1_200,
        "cache_tokens_lost": 90_000,
    }
    return Compaction(**(values | changes))


def compact(conn: Connection, current: Turn, plan: ViewPlan, **changes: Any) -> Turn:
    """Commit a compaction to this plan; returns the turn as it goes on."""
    state = changes.pop("state", PlannerState())
    child = compactions.compact(conn, current, compaction(plan, **changes), state)
    return replace(current, session=child)


def outdated_file(path: Path, revision: str) -> Path:
    """Create a database with the schema of an earlier revision."""
    path.write_bytes(_outdated(revision))
    return path


@cache
def _outdated(revision: str) -> bytes:
    """Return an empty database of an earlier revision; migrating takes long."""
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "outdated.db")
        with store.connection.begin():
            command.upgrade(migrations._config(store.connection), revision)
        store.close()
        return store.path.read_bytes()


def outdated_copy(source: Path, target: Path, revision: str) -> Path:
    """Write what is in a database as an earlier version would have: in the schema it had."""
    outdated_file(target, revision)
    with closing(sqlite3.connect(target)) as raw, raw:
        raw.execute("ATTACH ? AS newer", (str(source),))
        tables = raw.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            own = not table.startswith(("alembic_version", "sqlite_sequence", SEARCH_INDEX))
            if own:
                names = [row[1] for row in raw.execute(f'PRAGMA main.table_info("{table}")')]
                newer = {row[1] for row in raw.execute(f'PRAGMA newer.table_info("{table}")')}
                columns = ", ".join(f'"{name}"' if name in newer else _GONE[name] for name in names)
                source_rows = f'SELECT {columns} FROM newer."{table}"'  # noqa: S608 - own schema
                raw.execute(f'INSERT INTO main."{table}" {source_rows}')
        raw.execute("DELETE FROM main.sqlite_sequence")
        raw.execute("INSERT INTO main.sqlite_sequence SELECT * FROM newer.sqlite_sequence")
    return target


_OF_BASE = "FROM newer.prompt_base AS base WHERE base.id = base_id"
_OF_TEXT = "FROM newer.prompt_text AS stored JOIN newer.prompt_base AS base ON base.id = base_id"
_OWN_LAYER = "json_array('session', length(own_prompt) - 2)"
_GONE = {
    "view_plan": "(SELECT body FROM newer.view_plan WHERE session_id = id)",
    "system_prompt": f"(SELECT body || own_prompt {_OF_TEXT} WHERE stored.id = prompt_id)",
    "tools": f"(SELECT body {_OF_TEXT} WHERE stored.id = tools_id)",
    "prompt_inputs": f"(SELECT inputs {_OF_BASE})",
    "prompt_layers": (
        "(SELECT CASE own_prompt WHEN '' THEN layers"
        f" ELSE json_insert(layers, '$[#]', {_OWN_LAYER}) END {_OF_BASE})"
    ),
}
"""How earlier versions had what is stored otherwise today."""
OF_BASES = {"base_id", "own_prompt"}
"""Columns of a segment that a migration fills, and that may be numbered otherwise then."""


def rows_without(columns: Collection[str], store: Store, table: Table) -> list[list[object]]:
    """Return a table's rows in the order of its key, without these columns."""
    names = [column.name for column in table.c if column.name not in columns]
    return [[getattr(row, name) for name in names] for row in store.rows(table)]


def load_view(conn: Connection, conversation_id: int, plan: ViewPlan) -> list[ChatMessage]:
    """Return what the plan shows of a transcript, as the model sees it."""
    return render(plan, transcript.decoded(transcript.load_rows(conn, conversation_id, plan)))
