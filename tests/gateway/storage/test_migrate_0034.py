"""Migration 0034: all files lie in the database."""

import pytest
from sqlalchemy import Connection

from gateway.errors import GatewayError
from gateway.storage import maintenance
from gateway.storage.conversation import attachments
from gateway.storage.schema import REVISION
from tests.support.storage import Store, admit, inbound


def _enter_file(conn: Connection, place: int, elsewhere: str) -> None:
    names = "id, conversation, turn_id, name, kind, mime, size_bytes, ref, state, at, object"
    conn.exec_driver_sql(
        f"INSERT INTO attachment ({names})"  # noqa: S608 - words of this test
        f" VALUES (1, {place}, 1, 'a', 'file', 'text/plain', 2, '', 'stored', 1.0, {elsewhere})"
    )
    body = "x'6869'" if conn.dialect.name == "sqlite" else "'hi'::bytea"
    conn.exec_driver_sql(f"INSERT INTO attachment_part VALUES (1, 0, {body})")  # noqa: S608


def test_files_of_the_database_stay(outdated: Store) -> None:
    """With their bytes."""
    place, _ = outdated.run(admit, inbound())
    outdated.run(_enter_file, place, "NULL")
    assert maintenance.upgrade(outdated.location) == REVISION
    assert maintenance.check(outdated.location) == []
    assert outdated.run(attachments.outgoing, 1).content == b"hi"


def test_a_database_with_files_elsewhere_is_refused(outdated: Store) -> None:
    """In one line; the version that moved them can go on with it."""
    place, _ = outdated.run(admit, inbound())
    outdated.run(_enter_file, place, "7")
    with pytest.raises(GatewayError, match="1 files lie in an object store"):
        maintenance.upgrade(outdated.location)
    assert maintenance.current(outdated.location) != REVISION
    moved = "SELECT object FROM attachment"
    assert outdated.run(lambda conn: conn.exec_driver_sql(moved).scalar()) == 7
