"""What SQLite is given to plan: it plans once, and finds what waits without reading the rest.

What is kept runs without SQLAlchemy, and means the same.
"""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    NullPool,
    Table,
    Text,
    bindparam,
    create_engine,
    event,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, MultipleResultsFound, NoResultFound

from agent.messages import assistant_message
from gateway.storage import statements
from gateway.storage.conversation import conversations, turn_journal
from gateway.storage.queue import inbox, leases
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import outbox, step
from gateway.storage.statements import PreparedConnection, Rows, built_once, kept
from tests.support.storage import ACCOUNTS, Store, admit, begin_turn, inbound, parts, turn_of
from tests.support.turns import ANSWERED

pytestmark = pytest.mark.usefixtures("sqlite_alone")


def answer_one(store: Store) -> None:
    """Take a message from its admission to its answer, as the gateway does."""
    replica = store.run(leases.register, "test")
    conversation_id, _ = store.run(admit, inbound("hello"))
    (lease,) = store.run(leases.claim, replica, 1, ACCOUNTS)
    current = store.run(begin_turn, lease)
    store.run(turn_journal.commit, current, [assistant_message("hi")], parts(current), ANSWERED)
    store.run(leases.release, current.lease)
    assert store.run(inbox.queued, conversation_id) == []


def test_the_statements_of_a_turn_are_planned_once(store: Store) -> None:
    """A parameter in place of a word has them planned anew with each message (0.5 ms of them)."""
    raw = cast("sqlite3.Connection", store.connection.connection.driver_connection)
    planned: list[int] = []

    def note(action: int, *_: object) -> int:
        planned.append(action)
        return sqlite3.SQLITE_OK

    raw.set_authorizer(note)
    answer_one(store)
    answer_one(store)
    planned.clear()
    answer_one(store)
    # The driver has a COMMIT planned each time; what is read or written would be here too.
    assert set(planned) == {sqlite3.SQLITE_TRANSACTION}


def test_what_waits_is_found_without_the_rest_of_the_inbox(store: Store) -> None:
    """However much a conversation has been through."""
    current = store.run(turn_of, "hello")
    conversation_id = current.lease.conversation
    for how in (
        store.plans(inbox.queued, conversation_id),
        store.plans(inbox.finish_turn, conversation_id, current.id, "done"),
        store.plans(conversations.locked, conversation_id),
    ):
        found = [each for each in how if each.startswith("SEARCH inbox")]
        assert found
        assert not [each for each in found if "ix_inbox_conversation_message_ref" in each]


def test_words_are_compared_as_literals() -> None:
    """One, several, and the unequal."""
    assert str(step.c.kind == "tool") == "step.kind = 'tool'"
    assert str(outbox.c.state != "sent") == "outbox.state != 'sent'"
    assert str(inbox_table.c.state.in_(("done", "dead"))) == "inbox.state IN ('done', 'dead')"
    query = select(inbox_table.c.seq).where(inbox_table.c.state == inbox_table.c.kind)
    assert "inbox.state = inbox.kind" in str(query)


@pytest.mark.parametrize("value", ["", "it's", "two words", "x; --"])
def test_what_is_no_word_is_refused(value: str) -> None:
    """It would become part of the statement."""
    with pytest.raises(ValueError, match="is not a word"):
        inbox_table.c.state == value  # noqa: B015 - the comparison itself is refused
    with pytest.raises(ValueError, match="is not a word"):
        inbox_table.c.state.in_(["done", value])


metadata = MetaData()
thing = Table(
    "thing",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, unique=True),
    Column("is_red", Boolean),
    Column("body", LargeBinary),
    Column("colour", Text, default=lambda: "none"),
)
other = Table("other", metadata, Column("id", Integer, primary_key=True), Column("thing", Integer))

_INSERT = kept(thing.insert().values(colour="blue"))
_COUNT_UP = kept(
    update(thing)
    .where(thing.c.id == bindparam("this"))
    .values(id=thing.c.id + 10)
    .returning(thing.c.id, thing.c.is_red)
)


@built_once
def _all() -> Any:
    return select(thing).order_by(thing.c.id)


@built_once
def _by_name(name: str) -> Any:
    return select(thing.c.id, thing.c.is_red).where(thing.c.name == name)


@built_once
def _among(names: list[str]) -> Any:
    return select(thing.c.id).where(thing.c.name.in_(names)).order_by(thing.c.id)


@built_once
def _with_other() -> Any:
    return select(thing, other).join(other, other.c.thing == thing.c.id)


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[PreparedConnection]:
    """A connection to a file with three things."""
    engine = create_engine(
        f"sqlite:///{tmp_path / 'things.db'}", poolclass=NullPool, hide_parameters=True
    )
    with PreparedConnection(engine) as conn:
        metadata.create_all(conn)
        rows = [
            {"id": n, "name": name, "is_red": n == 2, "body": bytes([n])}
            for n, name in enumerate("abc", start=1)
        ]
        conn.execute(_INSERT, rows)
        yield conn
    engine.dispose()


def _plain(found: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in found]


def test_rows_are_those_of_sqlalchemy(conn: PreparedConnection) -> None:
    """Values have the types of their columns, and names."""
    found = conn.execute(*_all())
    assert isinstance(found, Rows)
    rows = found.all()
    assert _plain(rows) == _plain(conn.execute(select(thing).order_by(thing.c.id)))
    assert [row.is_red for row in rows] == [False, True, False]
    assert rows[2].body == b"\x03"
    assert rows[0].colour == "blue"


def test_values_are_bound_by_their_names(conn: PreparedConnection) -> None:
    """One value, none, several: each gets to its place."""
    assert conn.execute(*_by_name("b")).one() == (2, True)
    assert conn.execute(*_by_name("x")).first() is None
    assert conn.scalar(*_by_name(name="c")) == 3
    assert conn.scalars(*_all()).all() == [1, 2, 3]
    assert conn.execute(_COUNT_UP, {"this": 2}).one() == (12, True)


def test_one_of_many_and_of_none_is_refused(conn: PreparedConnection) -> None:
    """What expects one row does not take the first of several."""
    with pytest.raises(MultipleResultsFound):
        conn.execute(*_all()).one()
    with pytest.raises(MultipleResultsFound):
        conn.execute(*_all()).one_or_none()
    with pytest.raises(NoResultFound):
        conn.execute(*_by_name("x")).scalar_one()


def test_changes_are_counted(conn: PreparedConnection) -> None:
    """`rowcount` tells how many rows a change has met."""
    rename = kept(update(thing).where(thing.c.id >= bindparam("low")).values(colour="red"))
    assert conn.execute(rename, {"low": 2}).rowcount == 2
    assert conn.execute(rename, {"low": 9}).rowcount == 0


def test_two_columns_of_one_name(conn: PreparedConnection) -> None:
    """The first table's column has the name."""
    conn.execute(kept(other.insert()), {"id": 7, "thing": 1})
    row = conn.execute(*_with_other()).one()
    assert (row.id, row.thing, row[-2]) == (1, 1, 7)


def test_a_list_of_values_goes_by_sqlalchemy(conn: PreparedConnection) -> None:
    """Its length is part of the statement's text."""
    assert conn.scalars(*_among(["a", "c"])).all() == [1, 3]
    assert conn.scalars(*_among(["b"])).all() == [2]


def test_a_default_of_python_goes_by_sqlalchemy(conn: PreparedConnection) -> None:
    """It is asked for every row."""
    conn.execute(kept(thing.insert()), {"id": 8, "name": "h"})
    assert conn.scalar(select(thing.c.colour).where(thing.c.id == 8)) == "none"


def test_errors_are_those_of_sqlalchemy(conn: PreparedConnection) -> None:
    """They name the statement, and do not quote what people wrote."""
    with pytest.raises(IntegrityError, match="UNIQUE") as refused:
        conn.execute(_INSERT, {"id": 9, "name": "a", "is_red": False, "body": b"secret"})
    assert "secret" not in str(refused.value)
    with pytest.raises(IntegrityError):
        conn.execute(_INSERT, [{"id": n, "name": "z", "is_red": 0, "body": b""} for n in (8, 9)])


def test_who_listens_hears_of_what_is_kept(conn: PreparedConnection) -> None:
    """Listeners to SQLAlchemy's events miss nothing."""
    heard: list[str] = []
    event.listen(conn, "before_cursor_execute", lambda *args: heard.append(args[2]))
    assert not isinstance(conn.execute(*_all()), Rows)
    assert len(heard) == 1
    assert re.match("SELECT thing.id", heard[0])


def test_a_statement_is_compiled_once(
    conn: PreparedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has to go by SQLAlchemy is looked at once."""
    compiled: list[object] = []
    compiling = statements.compiled_once

    def counted(*args: Any) -> Any:
        compiled.append(args[0])
        return compiling(*args)

    monkeypatch.setattr(statements, "compiled_once", counted)
    statement = kept(select(thing.c.id).where(thing.c.id.in_(bindparam("ids", expanding=True))))
    newest = kept(select(thing.c.id).where(thing.c.name == bindparam("name")))
    for _ in range(3):
        assert conn.scalars(statement, {"ids": [1]}).all() == [1]
        assert conn.scalar(newest, {"name": "a"}) == 1
    assert len(compiled) == 2
