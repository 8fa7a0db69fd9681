"""Databases of the unreleased 0.6: `parley db convert` makes of them what migration 0006 makes.

Between 0.5 and 0.6 main had the revisions 0006 to 0034; none was released, and 0.6 has one in their
place. This file and its command go when 0.6 is out.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from alembic.autogenerate import produce_migrations
from alembic.operations import Operations
from sqlalchemy import Connection

from gateway.errors import StorageUnavailable
from gateway.storage import migrations
from gateway.storage.database import DatabaseServer, Location
from gateway.storage.engine import connected, lock_database
from gateway.storage.schema import REVISION, metadata


def convert(location: Location) -> list[str]:
    """Give a database of revision 0034 this version's schema; no gateway may run on it.

    Returns:
        What was done, a line each, in order.

    Raises:
        StorageUnavailable: It has another revision; nothing is changed.
    """
    if isinstance(location, DatabaseServer):
        from gateway.storage import postgres  # noqa: PLC0415

        with closing(postgres.connect(location, direct=True)) as server, server.begin():
            return _converted(server)
    migrations.require_database(location)
    with lock_database(location), connected(location) as file, file.begin():
        return _converted(file)


def _converted(conn: Connection) -> list[str]:
    found = migrations.schema_revision(conn)
    if found != migrations.OF_DEVELOPMENT:
        raise StorageUnavailable(
            f"the database has schema revision {found}: only {migrations.OF_DEVELOPMENT} of the"
            " unreleased 0.6 is converted; `parley db migrate` migrates released ones"
        )
    done = _notes_of_rules(conn)
    # Its rows have no space; they are made anew.
    conn.exec_driver_sql("DROP TABLE vector")
    # They keep sums of the ledger, whose tables go.
    for name in ("ledger_insert", "ledger_delete", "ledger_update"):
        trigger = f"TRIGGER {name}" if conn.dialect.name == "sqlite" else f"FUNCTION {name} CASCADE"
        conn.exec_driver_sql(f"DROP {trigger}")
    context = migrations.comparison(conn)
    steps: Any = produce_migrations(context, metadata)
    operations = Operations(context)
    for step in _flat(steps.upgrade_ops.ops):
        operations.invoke(step)
        done.append(_said(step))
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("ALTER INDEX search_index_terms SET (fastupdate = off)")
        conn.exec_driver_sql("SELECT gin_clean_pending_list('search_index_terms')")
    conn.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{REVISION}'")  # noqa: S608
    migrations.state_floor(conn)
    return [*done, f"schema revision {found} is {REVISION} now"]


def _notes_of_rules(conn: Connection) -> list[str]:
    """Have notes that rules of main found wait for a yes, but for those that others replaced."""
    conn.exec_driver_sql("DELETE FROM memory WHERE ended_at IS NOT NULL")
    waiting = (
        "UPDATE memory SET target = 'offer', value = NULL WHERE target IN ('instruction', 'fact')"
    )
    count = conn.exec_driver_sql(waiting).rowcount
    return [f"{count} notes found by rules are offers now"] if count else []


def _flat(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield the steps of all tables, which come in a list for each table."""
    for step in steps:
        yield from _flat(step.ops) if hasattr(step, "ops") else (step,)


def _said(step: Any) -> str:
    """Name a step: "remove column memory.subject"."""
    names = ("table_name", "column_name", "index_name")
    of = [getattr(step, name) for name in names if hasattr(step, name)]
    return f"{step.to_diff_tuple()[0].replace('_', ' ')} {'.'.join(map(str, of))}"
