"""Messages about the notebook: lines with buttons, and unconfirmed notes once."""

import asyncio

import pytest
from sqlalchemy import insert, select

from gateway.access.policy import Access, Owners
from gateway.agent_ports.told_notes import lines_of, removal_of, tell_unconfirmed
from gateway.settings.tree import AccessSettings
from gateway.storage.migrations import open_database
from gateway.storage.people.notebook import Note
from gateway.storage.schema import memory, outbox
from tests.support.postgres import server_at
from tests.support.storage import Store, admit, inbound

NOTE = Note(17, "telegram:42", "user", "likes `tea`", "2026-03-01T08:00:00Z")
ON = {("telegram", "default"): lambda text: [text]}


def owners(*accounts: tuple[str, str]) -> Owners:
    """Return the owners, reachable through these accounts."""
    access = Access(AccessSettings(mode="open", owners=["telegram:7"]))
    return Owners(access, dict.fromkeys(accounts, ON["telegram", "default"]))


def found(store: Store, scope: str = "telegram:42", target: str = "instruction") -> None:
    """Store a note that rules of an earlier version found."""
    values = {"scope": scope, "target": target, "text": "Call me Jo.", "at": 1.0}
    store.run(lambda conn: conn.execute(insert(memory).values(values)))


def shown(store: Store) -> list[str]:
    """Return the keys of the outbox rows."""
    return [row.source_key for row in store.rows(outbox)]


@pytest.mark.parametrize(
    ("target", "before", "text", "buttons"),
    [
        ("user", "", "Remembered: `likes 'tea'`. `/memory undo 17`", ["/memory undo 17"]),
        (
            *("user", "likes milk"),
            "Remembered: `likes 'tea'` instead of `likes milk`. `/memory undo 17`",
            ["/memory undo 17"],
        ),
        (
            *("offer", ""),
            "Shall I remember: `likes 'tea'`? `/memory keep #17` or `/memory forget #17`",
            ["/memory keep #17", "/memory forget #17"],
        ),
    ],
)
def test_a_note_is_one_line(target: str, before: str, text: str, buttons: list[str]) -> None:
    """Its text is data; each possible action is a button and a command."""
    note = Note(NOTE.id, NOTE.scope, target, NOTE.text, NOTE.at, before)
    [part] = lines_of(ON["telegram", "default"], [note])
    assert part.markdown == text
    assert [each.text for each in part.choices] == buttons
    [gone] = removal_of(ON["telegram", "default"], note)
    assert "likes 'tea'" in gone.markdown


def test_people_and_owners_are_told_once(store: Store) -> None:
    """A person in their chat, a group in its own, and each owner; not about notes of models."""
    store.run(admit, inbound("hello", sender="42"))
    store.run(admit, inbound("hello", sender="7", chat="7"))
    group, _ = store.run(admit, inbound("hello", sender="9", chat="g", chat_kind="group"))
    found(store, target="user")
    assert store.run(tell_unconfirmed, owners(*ON)) == set()
    for scope in ("telegram:42", f"conversation:{group}"):
        found(store, scope)
    assert len(store.run(tell_unconfirmed, owners(*ON))) == 3
    assert store.run(tell_unconfirmed, owners(*ON)) == set()
    assert len(shown(store)) == 3


def test_whose_account_is_off_is_told_later(store: Store) -> None:
    """At the next start with the account; also about rows that an older replica adds."""
    store.run(admit, inbound("hello", sender="42"))
    found(store)
    assert store.run(tell_unconfirmed, owners()) == set()
    for _ in range(2):
        assert len(store.run(tell_unconfirmed, owners(*ON))) == 1
        found(store, target="fact")
    assert len(shown(store)) == 2


async def test_replicas_that_start_together_tell_it_once(postgres_url: str) -> None:
    """The second replica finds the message already stored."""
    async with (
        open_database(server_at(postgres_url)) as one,
        open_database(server_at(postgres_url)) as other,
    ):
        await one.write(admit, inbound("hello", sender="42"))
        await one.write(admit, inbound("hello", sender="7", chat="7"))
        values = {"scope": "telegram:42", "target": "fact", "text": "The rent is 900.", "at": 1.0}
        await one.write(lambda conn: conn.execute(insert(memory).values(values)) and None)
        replicas = (one, other, one, other)
        await asyncio.gather(*(each.write(tell_unconfirmed, owners(*ON)) for each in replicas))
        keys = await other.read(lambda conn: [*conn.scalars(select(outbox.c.source_key))])
        assert len(keys) == len(set(keys)) == 2
