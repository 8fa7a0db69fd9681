"""`parley db convert`: a database of the unreleased 0.6 becomes one of this version."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.errors import StorageUnavailable
from gateway.storage import development, maintenance, migrations, postgres
from gateway.storage.database import DatabaseServer, Location
from gateway.storage.migrations import open_database
from gateway.storage.queue import inbox
from gateway.storage.schema import FLOOR, REVISION
from tests.support.postgres import PostgresServer, server_at
from tests.support.storage import Store, admit, inbound

SCHEMAS = Path(__file__).parent / "unreleased"
"""The schema of revision 0034 in both dialects."""
LIVED = """
INSERT INTO cursor (source, position) VALUES ('telegram:a', 41);
INSERT INTO conversation (id, platform, account, chat, created_at) VALUES (7, 'web', '', 'c', 1);
INSERT INTO ledger (conversation, provider, model, purpose, usd, at)
    VALUES (7, 'openai', 'gpt-5', 'answer', 0.25, 1);
INSERT INTO memory (scope, target, text, value, at, ended_at) VALUES
    ('telegram:42', 'user', 'likes tea', 'likes milk', 1, NULL),
    ('telegram:42', 'instruction', 'Call me Jo.', NULL, 1, 2),
    ('telegram:42', 'fact', 'The rent is 900.', '900', 1, NULL)
"""
FIRST = "UPDATE alembic_version SET version_num = '0006'"
"""Commit 9adc5e72 made no more of a database of 0034: the tables stayed."""
LATER = """
DELETE FROM memory WHERE ended_at IS NOT NULL;
UPDATE memory SET target = 'offer', value = NULL WHERE target IN ('instruction', 'fact');
DROP TABLE vector;
CREATE TABLE vector (
    conversation {whole} NOT NULL,
    seq {whole} NOT NULL,
    space TEXT NOT NULL,
    body {bytes} NOT NULL,
    CONSTRAINT pk_vector PRIMARY KEY (conversation, seq),
    CONSTRAINT fk_vector_conversation_conversation FOREIGN KEY(conversation)
        REFERENCES conversation (id) ON DELETE CASCADE
) {kind};
DROP TABLE model_window;
DROP TABLE topic;
DROP TABLE memory_progress;
DROP TABLE vector_progress;
ALTER TABLE memory DROP COLUMN ended_at;
ALTER TABLE memory DROP COLUMN ended_by;
ALTER TABLE memory DROP COLUMN subject;
ALTER TABLE memory DROP COLUMN told_at;
UPDATE alembic_version SET version_num = '0006';
INSERT INTO vector VALUES (7, 1, 'paid for', 'body')
"""
"""What commit c911eaad made of a database of 0034."""
WORDS = {
    "sqlite": {"whole": "INTEGER", "bytes": "BLOB", "kind": "WITHOUT ROWID"},
    "postgresql": {"whole": "BIGINT", "bytes": "BYTEA", "kind": ""},
}
HOMES = {"0034": "SELECT 1", "9adc5e72": FIRST, "c911eaad": LATER}
"""Databases of main, by their revision or by the commit that called its schema 0006."""


@pytest.fixture(params=["sqlite", "postgresql"])
def unreleased(request: pytest.FixtureRequest, home: str, tmp_path: Path) -> Iterator[Location]:
    """A database of main, on either engine."""
    is_file = request.param == "sqlite"
    schema = (SCHEMAS / f"{request.param}.sql").read_text()
    since = HOMES[home].format(**WORDS[request.param])
    script = f"{schema}; {LIVED}; {since};"
    if is_file:
        path = tmp_path / "parley.db"
        with closing(sqlite3.connect(path)) as raw:
            raw.executescript(script)
        yield path
        return
    server: PostgresServer = request.getfixturevalue("postgres_worker")
    name = server.create()
    location = server_at(server.url(name))
    with postgres.open_direct(location) as raw:
        raw.execute(script)
        raw.execute(f"COMMENT ON TABLE alembic_version IS '{revision_of(home)}'")
    yield location
    server.drop(name)


def revision_of(home: str) -> str:
    return "0034" if home == "0034" else "0006"


@pytest.mark.parametrize("home", HOMES)
async def test_it_is_this_versions_then(unreleased: Location, home: str) -> None:
    """What was stored is there, the schema is the code's, and it starts and stores."""
    *changes, last = development.convert(unreleased)
    by_rules = {"1 notes found by rules are offers now", "remove column memory.ended_at"}
    assert by_rules & {*changes} == (set() if home == "c911eaad" else by_rules)
    assert {"remove table spent_by", "add index ledger.ix_ledger_at_usd"} <= {*changes}
    assert last == f"schema revision {revision_of(home)} is {REVISION} now"
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
        assert conn.exec_driver_sql("SELECT usd FROM ledger").scalar() == 0.25
        vectors = conn.exec_driver_sql("SELECT count(*) FROM vector").scalar()
        assert vectors == (home == "c911eaad")
        if conn.dialect.name == "postgresql":
            floor = "SELECT obj_description('alembic_version'::regclass)"
            assert conn.exec_driver_sql(floor).scalar() == FLOOR
    async with open_database(unreleased) as database:
        conversation, _ = await database.write(admit, inbound("hello"))
        waiting = await database.read(inbox.queued, conversation)
        assert [each.text for each in waiting] == ["hello"]


@pytest.mark.parametrize("home", HOMES)
async def test_a_start_refuses_it_and_names_the_command(unreleased: Location, home: str) -> None:
    """In one line; nothing is changed, whether the start migrates or waits for that."""
    revision = revision_of(home)
    waits = unreleased
    if isinstance(waits, DatabaseServer):
        waits = replace(waits, migrates=False)
    for location in (unreleased, waits):
        with pytest.raises(
            StorageUnavailable, match=rf"^the .*{revision} of the unreleased.*`parley db convert`"
        ):
            async with open_database(location):
                pass
    assert maintenance.current(unreleased) == revision


@pytest.mark.usefixtures("sqlite_alone")
def test_what_has_this_schema_gets_its_number(database_file: Path) -> None:
    """The last commits that called it 0006 had all of it."""
    with closing(sqlite3.connect(database_file)) as raw, raw:
        raw.execute(FIRST)
    assert development.convert(database_file) == [f"schema revision 0006 is {REVISION} now"]
    assert maintenance.check(database_file) == []


@pytest.mark.parametrize("revision", ["0006", "0007", "0033"])
async def test_what_must_be_0034_first_is_refused(outdated: Store, revision: str) -> None:
    """By a start and by the command, in one line that says how; also where the floor is lower."""
    outdated.run(
        lambda conn: conn.execute(
            text("UPDATE alembic_version SET version_num = :now"), {"now": revision}
        )
    )
    if isinstance(outdated.location, DatabaseServer):
        outdated.run(lambda conn: conn.execute(text("COMMENT ON TABLE alembic_version IS '0006'")))
    with pytest.raises(
        StorageUnavailable, match=rf"^the .*{revision} .*db convert`.*docs/upgrade\.md\)$"
    ):
        async with open_database(outdated.location):
            pass
    with pytest.raises(
        StorageUnavailable, match=rf"^the .*{revision}: .*db migrate.*e6822b78.*docs/upgrade\.md\)$"
    ):
        development.convert(outdated.location)
    assert maintenance.current(outdated.location) == revision


@pytest.mark.usefixtures("sqlite_alone")
def test_another_database_is_not_converted(database_file: Path, tmp_path: Path) -> None:
    """Not one of this version, and a missing one is not created."""
    with pytest.raises(StorageUnavailable, match=rf"revision {REVISION}: only 0034"):
        development.convert(database_file)
    with pytest.raises(StorageUnavailable, match="no database"):
        development.convert(tmp_path / "missing.db")
    assert not (tmp_path / "missing.db").exists()
