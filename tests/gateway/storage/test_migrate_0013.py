"""Migration 0013: the commands of an earlier version have their names."""

from pathlib import Path

import pytest

from gateway.storage import maintenance
from gateway.storage.schema import inbox
from tests.support.storage import Store, admit, inbound, outdated_copy

pytestmark = pytest.mark.usefixtures("sqlite_alone")

WRITTEN = {
    "/new": "new",
    " /Compact@parley_bot  the\nschema": "compress",
    "/start ABCD2345": "help",
    "/pair list": "pair",
    "/stauts": None,
    "ABCD2345": None,
}


@pytest.fixture
def old_file(store: Store, tmp_path: Path) -> Path:
    """Commands that wait, and a message, in the schema before."""
    for text in WRITTEN:
        store.run(admit, inbound(text), kind="command")
    store.run(admit, inbound("/model is a word here"))
    return outdated_copy(store.path, tmp_path / "old.db", "0012")


def test_what_waits_is_still_carried_out(migrated: Store) -> None:
    """Each command of the inbox gets its name, each other row none."""
    assert maintenance.check(migrated.path) == []
    assert {row.text: row.command for row in migrated.rows(inbox)} == {
        **WRITTEN,
        "/model is a word here": None,
    }
