"""Migration 0010: turns of an earlier version are suspected of nothing, and go on."""

from pathlib import Path

import pytest

from gateway.storage import maintenance
from gateway.storage.conversation import turn_journal
from gateway.storage.migrations import open_database
from gateway.storage.queue import blame, leases
from gateway.storage.queue.blame import Death
from gateway.storage.schema import metadata, turn
from tests.support.storage import (
    BASE,
    Store,
    claim_one,
    find_running,
    outdated_copy,
    parts,
    turn_of,
)
from tests.support.turns import ANSWERED

pytestmark = pytest.mark.usefixtures("sqlite_alone")


@pytest.fixture
def old_file(store: Store, tmp_path: Path) -> Path:
    """A turn that was answered, one that was given up and one that runs, in the schema before."""
    answered = store.run(turn_of, "one")
    store.run(turn_journal.commit, answered, [], parts(answered), ANSWERED)
    dead = store.run(turn_of, "two", chat="43")
    store.run(turn_journal.bury, dead, [], turn_journal.TurnEnd("gave_up"))
    store.run(turn_of, "three", chat="44")
    return outdated_copy(store.path, tmp_path / "old.db", "0009")


@pytest.mark.thorough
def test_an_older_database_keeps_everything(store: Store, migrated: Store) -> None:
    """Every row is there after the migration; what is new is empty."""
    assert maintenance.check(migrated.path) == []
    for table in metadata.sorted_tables:
        assert migrated.rows(table) == store.rows(table)
    assert {(row.deaths, row.blamed, row.quiet_s) for row in migrated.rows(turn)} == {(0, 0, 0.0)}
    assert {(row.attempt_at, row.troubled_at, row.retries) for row in migrated.rows(turn)} == {
        (None, None, None)
    }


async def test_an_older_turn_that_was_killed_goes_on(old_file: Path) -> None:
    """When it was taken up is not known: that counts from its beginning."""
    async with open_database(old_file) as database:
        heir = await database.write(leases.register, "newer")
        inherited = await database.write(blame.take_over, heir, Death(), 3600.0)
        assert (inherited.ran, inherited.trials) == (1, {})
        lease = await database.write(claim_one, 3, heir)
        running = await database.write(find_running, lease, BASE)
        assert running is not None
        assert (running.attempt, running.deaths) == (1, 1)
