"""Databases of the unreleased 0.6: `parley db convert` makes of them what migration 0035 makes.

Between 0.5 and 0.6 main had the revisions 0006 to 0034, then one in their place, which was called
0006, too, until it was finished. None was released. This file and its command go when 0.6 is out.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from alembic.autogenerate import produce_migrations
from alembic.operations import Operations
from sqlalchemy import Connection, inspect

from gateway.errors import StorageUnavailable
from gateway.storage import migrations
from gateway.storage.database import DatabaseServer, Location
from gateway.storage.engine import connected, lock_database
from gateway.storage.schema import REVISION, metadata


def convert(location: Location) -> list[str]:
    """Give a database of the unreleased 0.6 this version's schema; no gateway may run on it.

    Returns:
        What was done, a line each, in order.

    Raises:
        StorageUnavailable: It has neither 0034 nor the later 0006; nothing is changed.
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
    # Main's first 0006 was followed by 0007, and lacks what the later one has.
    if found not in {"0006", "0034"} or not inspect(conn).has_table("audit_row"):
        raise StorageUnavailable(
            f"the database has schema revision {found}: only 0034 and the later 0006 of the"
            " unreleased 0.6 are converted; `parley db migrate` migrates released ones here, and"
            " those before 0034 with commit e6822b78 (docs/upgrade.md)"
        )
    done = _notes_of_rules(conn)
    if not _has(conn, "vector", "space"):
        # Its rows are made anew.
        conn.exec_driver_sql("DROP TABLE vector")
    # They keep sums of the ledger, whose tables go.
    on_file, on_server = "TRIGGER IF EXISTS {}", "FUNCTION IF EXISTS {} CASCADE"
    drop = f"DROP {on_file if conn.dialect.name == 'sqlite' else on_server}"
    for name in ("ledger_insert", "ledger_delete", "ledger_update"):
        conn.exec_driver_sql(drop.format(name))
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
    if _has(conn, "memory", "ended_at"):
        conn.exec_driver_sql("DELETE FROM memory WHERE ended_at IS NOT NULL")
    count = conn.exec_driver_sql(
        "UPDATE memory SET target = 'offer', value = NULL WHERE target IN ('instruction', 'fact')"
    ).rowcount
    return [f"{count} notes found by rules are offers now"] if count else []


def _has(conn: Connection, table: str, column: str) -> bool:
    return any(each["name"] == column for each in inspect(conn).get_columns(table))


def _flat(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield the steps of all tables, which come in a list for each table."""
    for step in steps:
        yield from _flat(step.ops) if hasattr(step, "ops") else (step,)


def _said(step: Any) -> str:
    """Name a step: "remove column memory.subject"."""
    names = ("table_name", "column_name", "index_name")
    of = [getattr(step, name) for name in names if hasattr(step, name)]
    return f"{step.to_diff_tuple()[0].replace('_', ' ')} {'.'.join(map(str, of))}"
