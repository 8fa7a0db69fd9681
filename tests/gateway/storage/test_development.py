"""`parley db convert`: a database of the unreleased 0.6 becomes one of this version."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import StorageUnavailable
from gateway.storage import development, maintenance, migrations, postgres
from gateway.storage.database import Location
from gateway.storage.migrations import open_database
from gateway.storage.queue import inbox
from gateway.storage.schema import FLOOR, REVISION
from tests.support.postgres import PostgresServer, server_at
from tests.support.storage import admit, inbound

SCHEMAS = Path(__file__).parent / "unreleased"
"""The schema of revision 0034 in both dialects."""
LIVED = """
INSERT INTO cursor (source, position) VALUES ('telegram:a', 41);
INSERT INTO memory (scope, target, text, value, at, ended_at) VALUES
    ('telegram:42', 'user', 'likes tea', 'likes milk', 1, NULL),
    ('telegram:42', 'instruction', 'Call me Jo.', NULL, 1, 2),
    ('telegram:42', 'fact', 'The rent is 900.', '900', 1, NULL)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def unreleased(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    """A database as the last commit with revision 0034 made it, on either engine."""
    schema = (SCHEMAS / f"{request.param}.sql").read_text()
    if request.param == "sqlite":
        path = tmp_path / "parley.db"
        with closing(sqlite3.connect(path)) as raw:
            raw.executescript(f"{schema}; {LIVED};")
        yield path
        return
    server: PostgresServer = request.getfixturevalue("postgres_worker")
    name = server.create()
    location = server_at(server.url(name))
    with postgres.open_direct(location) as raw:
        raw.execute(f"{schema}; {LIVED};")
    yield location
    server.drop(name)


async def test_it_is_this_versions_then(unreleased: Location) -> None:
    """What was stored is there, the schema is the code's, and it starts and stores."""
    *changes, last = development.convert(unreleased)
    assert "1 notes found by rules are offers now" in changes
    assert "remove column memory.ended_at" in changes
    assert last == f"schema revision 0034 is {REVISION} now"
    assert len(changes) == len(set(changes))
    assert maintenance.check(unreleased) == []
    with maintenance.reading(unreleased) as conn:
        assert migrations.differences(conn) == []
        assert conn.exec_driver_sql("SELECT position FROM cursor").scalar() == 41
        notes = conn.exec_driver_sql("SELECT target, text, value FROM memory ORDER BY id").all()
        assert [tuple(note) for note in notes] == [
            ("user", "likes tea", "likes milk"),
            ("offer", "The rent is 900.", None),
        ]
        if conn.dialect.name == "postgresql":
            floor = "SELECT obj_description('alembic_version'::regclass)"
            assert conn.exec_driver_sql(floor).scalar() == FLOOR
    async with open_database(unreleased) as database:
        conversation, _ = await database.write(admit, inbound("hello"))
        waiting = await database.read(inbox.queued, conversation)
        assert [each.text for each in waiting] == ["hello"]


async def test_a_start_refuses_it_and_names_the_command(unreleased: Location) -> None:
    """In one line; nothing is changed."""
    with pytest.raises(StorageUnavailable, match=r"0034 of the unreleased.*`parley db convert`"):
        async with open_database(unreleased):
            pass
    assert maintenance.current(unreleased) == "0034"


@pytest.mark.usefixtures("sqlite_alone")
def test_another_database_is_not_converted(database_file: Path, tmp_path: Path) -> None:
    """Not one of this version, and a missing one is not created."""
    with pytest.raises(StorageUnavailable, match=rf"revision {REVISION}.*only 0034"):
        development.convert(database_file)
    with pytest.raises(StorageUnavailable, match="no database"):
        development.convert(tmp_path / "missing.db")
    assert not (tmp_path / "missing.db").exists()
