"""Migration 0031: notes made by rules wait, and rows ended by a newer one are deleted."""

import pytest

from gateway.storage import maintenance
from gateway.storage.people import notebook
from gateway.storage.schema import REVISION, memory
from tests.support.storage import Store

SCOPE = "telegram:42"
ROWS = (
    ("memory", "likes tea", None),
    ("instruction", "Call me Jo.", 2.0),
    ("instruction", "Call me Ann.", None),
    ("fact", "The rent is 900.", None),
)


@pytest.fixture
def migrated(outdated: Store) -> Store:
    """A migrated notebook of the previous version."""
    for target, text, ended_at in ROWS:
        values = {"scope": SCOPE, "target": target, "text": text, "at": 1.0, "ended_at": ended_at}
        outdated.run(lambda conn, row: conn.execute(memory.insert(), row), values)
    assert maintenance.upgrade(outdated.location) == REVISION
    return outdated


def test_notes_of_rules_are_in_no_prompt(migrated: Store) -> None:
    """They are listed as waiting, and their people are not informed yet."""
    assert maintenance.check(migrated.location) == []
    assert [note.text for note in migrated.run(notebook.pinned, SCOPE)] == ["likes tea"]
    rows = migrated.run(notebook.of_scope, SCOPE)
    assert [note.text for note in rows if note.waits] == ["Call me Ann.", "The rent is 900."]
    [untold] = migrated.run(notebook.unconfirmed)
    assert (untold.scope, untold.notes) == (SCOPE, 2)
    assert len(migrated.rows(memory)) == 3
