"""Rows in all tables of a database, with every kind of value that the schema has."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    LargeBinary,
    Table,
    insert,
    select,
    update,
)

from agent.messages import encode, user_message
from gateway.storage.copying import LEFT_OUT
from gateway.storage.schema import conversation, message, metadata
from gateway.storage.search import index

SEEDED = {"identity", "search_row"}
"""Of which something is there already, or which fill themselves."""
SENTENCES = ("the cat sat on the mat", "naïve 漢字 % \\ ' \"\t\n", "a nul: \0 .", "")
BIG = 2**62
"""A whole number that needs 64 bits."""
BYTES = bytes(range(256)) * 3


def fill(conn: Connection, count: int = 12) -> None:
    """Enter so many rows in each table; every third value that may be missing is."""
    for table in metadata.sorted_tables:
        if table.name not in SEEDED:
            conn.execute(insert(table), [_row(table, n) for n in range(1, count + 1)])
    conn.execute(update(conversation).values(message_head=count, searched_seq=0))
    index.clear(conn)
    feed_all(conn)


def feed_all(conn: Connection) -> None:
    """Feed the search index with all that it lacks."""
    for conversation_id in conn.scalars(select(conversation.c.id)).all():
        while waiting := index.waiting(conn, conversation_id):
            index.feed(conn, index.prepared(waiting))


def _row(table: Table, n: int) -> dict[str, Any]:
    row = {column.name: _value(column, n) for column in table.columns}
    if table is message:
        row["body"] = encode(user_message(f"{SENTENCES[n % len(SENTENCES)]} word{n}"))
    return row


def _value(column: Column[Any], n: int) -> Any:
    if column.nullable and n % 3 == 0:
        return None
    if column.name == "usd":
        return n / 1000
    if column.foreign_keys:
        (reference,) = column.foreign_keys
        # Rows that refer to their own table refer to one that is there by then.
        return n - 1 or None if reference.column.table is column.table else n
    values: dict[type, Any] = {
        Boolean: n % 2 == 0,
        Double: 1_700_000_000 + n / 7,
        LargeBinary: BYTES[n % 256 :][:300],
        BigInteger: BIG + n if column.nullable else n,
    }
    words = f"{column.name} {n}: {SENTENCES[n % len(SENTENCES)]}"
    return values.get(type(column.type), words)


def everything(conn: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables, in an order that does not depend on the engine."""
    found = {}
    for table in metadata.sorted_tables:
        if table.name not in LEFT_OUT:
            rows = [tuple(map(_plain, row)) for row in conn.execute(select(table))]
            found[table.name] = sorted(rows, key=repr)
    return found


def _plain(value: Any) -> Any:
    """Return a value as PostgreSQL can hold it."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
