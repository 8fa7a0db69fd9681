"""Migration 0031: notes made by rules wait, and rows ended by a newer one are deleted."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.storage import maintenance
from gateway.storage.people import notebook
from gateway.storage.schema import memory
from tests.support.storage import Store, outdated_file

pytestmark = pytest.mark.usefixtures("sqlite_alone")

SCOPE = "telegram:42"
ROWS = (
    ("memory", "likes tea", None),
    ("instruction", "Call me Jo.", 2.0),
    ("instruction", "Call me Ann.", None),
    ("fact", "The rent is 900.", None),
)


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A notebook of the previous version."""
    path = outdated_file(tmp_path / "old.db", "0030")
    with closing(sqlite3.connect(path)) as raw, raw:
        insert = "INSERT INTO memory (scope, target, text, at, ended_at) VALUES (?, ?, ?, 1.0, ?)"
        raw.executemany(insert, [(SCOPE, *row) for row in ROWS])
    return path


def test_notes_of_rules_are_in_no_prompt(migrated: Store) -> None:
    """They are listed as waiting, and their people are not informed yet."""
    assert maintenance.check(migrated.path) == []
    assert [note.text for note in migrated.run(notebook.pinned, SCOPE)] == ["likes tea"]
    rows = migrated.run(notebook.of_scope, SCOPE)
    assert [note.text for note in rows if note.waits] == ["Call me Ann.", "The rent is 900."]
    [untold] = migrated.run(notebook.unconfirmed)
    assert (untold.scope, untold.notes) == (SCOPE, 2)
    assert len(migrated.rows(memory)) == 3
