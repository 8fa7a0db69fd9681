"""Migration 0007: a database that has none is given a name and counted from then on."""

from pathlib import Path

import pytest

from gateway.storage import identity, maintenance
from gateway.storage.migrations import open_database
from gateway.storage.schema import metadata
from tests.support.storage import Store, admit, inbound, outdated_copy, turn_of

pytestmark = pytest.mark.usefixtures("sqlite_alone")


@pytest.fixture
def old_file(store: Store, tmp_path: Path) -> Path:
    """A turn that runs, as an earlier version has left it behind."""
    store.run(turn_of, "How are you?")
    return outdated_copy(store.path, tmp_path / "old.db", "0006")


@pytest.mark.thorough
def test_an_older_database_keeps_everything(store: Store, migrated: Store) -> None:
    """Every row is there after the migration."""
    assert maintenance.check(migrated.path) == []
    for table in metadata.sorted_tables:
        assert migrated.rows(table) == store.rows(table)


async def test_an_older_database_is_watched_from_its_first_opening_on(old_file: Path) -> None:
    """It has no mark yet, which is no reason to refuse it."""
    async with open_database(old_file) as database:
        await database.write(admit, inbound("And the weather?"))
    seen = identity.read_mark(identity.mark_of(old_file))
    assert seen is not None
    assert seen.commits == 1
