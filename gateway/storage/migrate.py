"""Migrations: run at start under the database's file lock, inside one transaction.

Imported only when there is something to migrate: alembic costs 10 MB.
"""

from pathlib import Path

from alembic import autogenerate, command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import migrations
from gateway.errors import DatabaseTooNew
from gateway.storage.models import SEARCH_INDEX, metadata


def upgrade(conn: Connection) -> None:
    """Bring the schema to the newest revision; atomic with the caller's transaction.

    Raises:
        DatabaseTooNew: The database's revision is not one of this version's; nothing is changed.
    """
    refuse_newer(conn)
    command.upgrade(_config(conn), "head")


def refuse_newer(conn: Connection) -> None:
    """Raise DatabaseTooNew where the database's revision is unknown to this code."""
    revision = current(conn)
    if revision is not None and revision not in known_revisions():
        raise DatabaseTooNew(
            f"the database has schema revision {revision}, which this version of Parley does not"
            f" know (newest here: {head()}); install the version that wrote it, or restore a backup"
        )


def current(conn: Connection) -> str | None:
    """Return the database's revision, None for an empty one."""
    return MigrationContext.configure(conn).get_current_revision()


def differences(conn: Connection) -> list[str]:
    """Return what differs between the tables in the database and in the code, in words."""
    context = MigrationContext.configure(conn, opts={"include_name": _is_compared})
    found = autogenerate.compare_metadata(context, metadata)
    return [str(difference) for difference in found]


def _is_compared(name: str | None, kind: str, _: object) -> bool:
    """Whether a table is the code's: not the search index, nor what SQLite keeps it in."""
    return kind != "table" or not (name or "").startswith(SEARCH_INDEX)


def head() -> str | None:
    """Return the newest revision that this code has."""
    return _scripts().get_current_head()


def known_revisions() -> set[str]:
    """Return every revision that this code has."""
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(migrations.__file__).parent))


def _config(conn: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = conn
    return config
