"""Many conversations in a PostgreSQL database, each a copy of one that has talked."""

import psycopg
from sqlalchemy import Table

from gateway.storage.schema import metadata

COPIED = (
    "conversation",
    "alias",
    "session",
    "view_plan",
    "turn",
    "step",
    "inbox",
    "message",
    "outbox",
    "ledger",
)
FIRST = 1_000_000
"""Id of the first copy of a conversation."""
APART = 1_000_000
"""Ids of a copy's segments and turns lie so far behind those of the one before."""
_MOVED = {"session_id", "parent_session_id", "active_session_id", "turn_id"}
_OWN_TEXT = {"session_key", "dedupe_key", "source_key", "chat", "sender", "user"}
_FOUND = {
    "view_plan": "session_id IN (SELECT id FROM session WHERE conversation = {template})",
    "step": "turn_id IN (SELECT id FROM turn WHERE conversation = {template})",
    "conversation": "id = {template}",
}


def copy_conversations(url: str, count: int) -> None:
    """Copy the oldest conversation with its rows until there are so many more."""
    with psycopg.connect(url) as connection:
        [template] = connection.execute("SELECT min(id) FROM conversation").fetchone() or [0]
        # Neither references nor sums are looked at: they are as right as those of the template.
        connection.execute("SET session_replication_role = replica")
        for name in COPIED:
            connection.execute(_copying(metadata.tables[name], int(template), count))  # type: ignore[arg-type]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _copying(table: Table, template: int, count: int) -> str:
    columns = [each.name for each in table.columns if (table.name, each.name) != ("ledger", "id")]
    values = ", ".join(_value(table.name, each) for each in columns)
    names = ", ".join(f'"{each}"' for each in columns)
    which = _FOUND.get(table.name, "conversation = {template}").format(template=template)
    return (
        f"INSERT INTO {table.name} ({names}) SELECT {values}"  # noqa: S608 - names of the schema
        f" FROM {table.name}, generate_series(1, {count}) AS copies(copy) WHERE {which}"
    )


def _value(table: str, column: str) -> str:
    """Return what a copy has in a column."""
    if column == "conversation" or (table, column) == ("conversation", "id"):
        return f"{FIRST} + copies.copy"
    if column in _MOVED or column == "id":
        return f'"{column}" + copies.copy::bigint * {APART}'
    # The sender of a row of the outbox is a replica.
    is_own = (column in _OWN_TEXT and table != "outbox") or column == "source_key"
    return f"\"{column}\" || '-' || copies.copy" if is_own else f'"{column}"'
