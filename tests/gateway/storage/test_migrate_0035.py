"""Migration 0035: what version 0.5 has stored stays, and is where 0.6 looks for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.messages import assistant_message
from agent.prompt.system import OWN_LAYER, SEPARATOR, SystemPrompt
from gateway.storage import maintenance, sqlite_file
from gateway.storage.conversation import sessions, turn_journal
from gateway.storage.conversation.sessions import PromptBase
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.migrations import open_database
from gateway.storage.queue import blame, leases
from gateway.storage.queue.blame import Death
from gateway.storage.schema import inbox, metadata, prompt_base, prompt_text, session, turn
from tests.support.storage import (
    BASE,
    OF_BASES,
    Store,
    admit,
    begin_anew,
    claim_one,
    dump,
    find_running,
    inbound,
    outdated_copy,
    parts,
    rows_without,
    turn_of,
)

pytestmark = pytest.mark.usefixtures("sqlite_alone")

SHARED = "You are a tést."
WRITTEN = {
    "/new": "new",
    " /Compact@parley_bot  the\nschema": "compress",
    "/start ABCD2345": "help",
    "/pair list": "pair",
    "/stauts": None,
    "ABCD2345": None,
}
"""Commands and what 0.6 calls them."""


def base_of(root: str) -> PromptBase:
    """Return what a root begins with: shared but for its end."""
    layers = (("identity", len(SHARED)), (OWN_LAYER, len(root)))
    text = SHARED + SEPARATOR + root
    return PromptBase('["look"]', {"model": "m"}, lambda *_: SystemPrompt(text, layers))


@pytest.fixture
def lived(store: Store) -> Store:
    """Conversations of which one was split, one has begun anew, and one has never been asked."""
    for chat in "abc":
        current = store.run(turn_of, f"Hello {chat}", chat=chat)
        root = store.run(sessions.get, current.session.id)
        settled = store.run(sessions.settle_base, replace(root, tools="x"), base_of(f"root {chat}"))
        answer = [assistant_message("Well.")]
        store.run(turn_journal.commit, current, answer, parts(current), TurnEnd("final_text"))
        store.run(sessions.split, settled, "compression", settled.plan)
    for text in WRITTEN:
        store.run(admit, inbound(text), kind="command")
    store.run(begin_anew, 2)
    store.run(admit, inbound("waits", chat="d"))
    return store


@pytest.fixture
def old_file(lived: Store, tmp_path: Path) -> Path:
    """The same as of revision 0005, which is what version 0.5 writes."""
    return outdated_copy(lived.path, tmp_path / "old.db", "0005")


def test_the_0005_schema_has_each_prompt_in_each_segment(old_file: Path) -> None:
    """What the tests below migrate is what Parley 0.5 has left behind."""
    assert maintenance.current(old_file) == "0005"
    text = "\n".join(dump(old_file))
    assert "TABLE prompt_base" not in text
    assert text.count(SHARED) == 6
    assert text.count(f"{SHARED}{SEPARATOR}root a") == 2


def test_every_segment_reads_as_before(lived: Store, migrated: Store) -> None:
    """Prompt, layers, tools and inputs, byte for byte; all other rows are as they were."""
    assert maintenance.check(migrated.path) == []
    for table in set(metadata.sorted_tables) - {prompt_base, prompt_text}:
        assert rows_without(OF_BASES, migrated, table) == rows_without(OF_BASES, lived, table)
    for row in lived.rows(session):
        before = lived.run(sessions.get, row.id)
        after = migrated.run(sessions.get, row.id)
        assert after == replace(before, base_id=after.base_id)


def test_each_text_is_there_once(migrated: Store) -> None:
    """However many segments had it; the next root with the same prompt refers to it, too."""
    assert [row.body for row in migrated.rows(prompt_text)] == [SHARED, '["look"]']
    root = migrated.run(begin_anew, 1)
    settled = migrated.run(sessions.settle_base, root, base_of("root 9"))
    assert [row.id for row in migrated.rows(prompt_base)] == [settled.base_id]


def test_a_conversation_keeps_its_prompt(migrated: Store) -> None:
    """What would be written today moves no prefix of a conversation that is under way."""
    for conversation_id in (1, 3):
        before = migrated.run(sessions.active, conversation_id)
        assert migrated.run(sessions.settle_base, before, base_of("another root")) == before
    assert before.system_prompt == f"{SHARED}{SEPARATOR}root c"


def test_migrated_tables_have_the_columns_of_new_ones(migrated: Store, store: Store) -> None:
    """With types, NOT NULL and defaults, which alembic does not compare."""
    for table in metadata.sorted_tables:
        query = f'PRAGMA table_info("{table.name}")'
        described = [
            each.run(lambda conn, query=query: list(conn.exec_driver_sql(query)))
            for each in (migrated, store)
        ]
        assert described[0] == described[1]


def test_what_waits_is_still_carried_out(migrated: Store) -> None:
    """Each command of the inbox gets its name, each message none."""
    named = {row.text: row.command for row in migrated.rows(inbox) if row.kind == "command"}
    assert named == WRITTEN
    assert {row.command for row in migrated.rows(inbox) if row.kind != "command"} == {None}


def test_older_turns_are_suspected_of_nothing(migrated: Store) -> None:
    """What is recorded of deaths is empty."""
    assert {(row.deaths, row.blamed, row.quiet_s) for row in migrated.rows(turn)} == {(0, 0, 0.0)}
    begun = {(row.attempt_at, row.troubled_at, row.retries) for row in migrated.rows(turn)}
    assert begun == {(None, None, None)}


async def test_an_older_turn_that_was_killed_goes_on(store: Store, tmp_path: Path) -> None:
    """When it was taken up is not known: that counts from its beginning."""
    store.run(turn_of, "three")
    old = outdated_copy(store.path, tmp_path / "killed.db", "0005")
    async with open_database(old) as database:
        heir = await database.write(leases.register, "newer")
        inherited = await database.write(blame.take_over, heir, Death())
        assert (inherited.ran, inherited.trials) == (1, {})
        lease = await database.write(claim_one, 1, heir)
        running = await database.write(find_running, lease, BASE)
        assert running is not None
        assert (running.attempt, running.deaths) == (1, 1)


async def test_an_older_database_is_watched_from_its_first_opening_on(old_file: Path) -> None:
    """It has no mark yet, which is no reason to refuse it."""
    async with open_database(old_file) as database:
        await database.write(admit, inbound("And the weather?"))
    seen = sqlite_file.read_mark(sqlite_file.mark_of(old_file))
    assert seen is not None
    assert seen.commits == 1
