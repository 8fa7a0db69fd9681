"""Conversations: two files write to their table, and few others read its columns."""

import ast
import re
from pathlib import Path

import pytest
from sqlalchemy import func, select

from adapters.messages import Address
from gateway.errors import LeaseLost
from gateway.storage.conversation import conversations
from gateway.storage.queue import leases
from gateway.storage.schema import conversation, outbox
from tests.support.storage import Store, admit, inbound, turn_of

STORAGE = Path(__file__).resolve().parents[4] / "gateway"
OWNERS = {"storage/conversation/conversations.py", "storage/queue/leases.py"}
"""The second one writes who works on a conversation, and what that one takes of it at once."""
SCHEMA = {"gateway.storage.schema", "gateway.storage.schema.conversations"}
READ_IN_JOINS = {
    "storage/conversation/attachments.py",
    "storage/maintenance.py",
    "storage/queue/blame.py",
    "storage/conversation/questions.py",
    "storage/queue/dead_letters.py",
    "storage/queue/overheard.py",
    "storage/queue/sending.py",
    "storage/people/members.py",
    "storage/reports/conversation_list.py",
    "storage/reports/health.py",
    "storage/reports/history.py",
    "storage/retention.py",
    "storage/search/query.py",
    "storage/queue/replicas.py",
}
"""They select other tables' rows by what a conversation is; a split would be a statement more."""


WRITES = re.compile(r"\b(?:update|insert|delete)\b")
"""What a file has that is worth parsing."""


def _named(path: Path) -> str:
    return path.relative_to(STORAGE).as_posix()


def _uses(path: Path) -> list[ast.expr]:
    """Return where a module uses the table, by the name under which it imports it."""
    text = path.read_text()
    # Most files do not name it, and need not be parsed.
    tree = ast.parse(text if any(module in text for module in SCHEMA) else "")
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in SCHEMA
        for alias in node.names
        if alias.name == "conversation"
    }
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]


def test_only_its_owners_and_joins_use_the_table() -> None:
    """Another file has to ask these; who is listed here and does so leaves the list."""
    users = {_named(path) for path in STORAGE.rglob("*.py") if _uses(path)}
    assert users - OWNERS == READ_IN_JOINS


def test_only_its_owners_write_to_the_table() -> None:
    """No other file has an `update`, `insert` or `delete` of it."""
    written = [
        _named(path)
        for path in STORAGE.rglob("*.py")
        if _named(path) not in OWNERS and WRITES.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _is_write(node)
    ]
    assert written == []


def _is_write(call: ast.Call) -> bool:
    fn, given = call.func, call.args[:1]
    if isinstance(fn, ast.Name) and fn.id in {"update", "delete", "insert"}:
        return any(isinstance(arg, ast.Name) and arg.id == "conversation" for arg in given)
    return (
        isinstance(fn, ast.Attribute)
        and fn.attr in {"update", "delete", "insert"}
        and isinstance(fn.value, ast.Name)
        and fn.value.id == "conversation"
    )


def test_a_conversation_is_found_as_it_was_entered(store: Store) -> None:
    """By its id, by its key, and among those of its user."""
    place = Address("telegram", "default", "c1", None)
    made = store.run(conversations.add, "key", place, "u1", "  Plan a\ntrip ")
    here = store.run(conversations.get, made)
    assert (here.address, here.user, here.title) == (place, "u1", "Plan a trip")
    assert store.run(conversations.locked_by_key, "key") == here
    assert store.run(conversations.find, "key") == made
    theirs = store.run(conversations.all_of_user, "telegram", "u1")
    assert theirs == [here._replace(session_key="key")]
    assert store.run(conversations.locked_by_key, "other") is None
    assert store.run(conversations.find, "other") is None


def test_all_conversations_of_somebody_are_found(store: Store) -> None:
    """Each once; those of others are not."""
    for n in range(5):
        user = "u1" if n else "u2"
        store.run(conversations.add, f"key{n}", Address("telegram", "x", f"c{n}"), user, "")
    found = store.run(conversations.all_of_user, "telegram", "u1")
    assert sorted(each.session_key for each in found) == ["key1", "key2", "key3", "key4"]


def test_a_place_in_the_outbox_is_taken_once(store: Store) -> None:
    """A cause that has a row gets no second one, and no seq is lost by asking."""
    current = store.run(turn_of, "hello")
    here = current.lease.conversation
    first = store.run(conversations.take_outbox_seq, here, "a")
    assert first == store.run(conversations.get, here).outbox_head
    row = {"conversation": here, "seq": first, "source_key": "a", "inbox_seq": 1, "payload": "x"}
    store.run(lambda conn: conn.execute(outbox.insert().values(**row, state="sent", at=0.0)))
    assert store.run(conversations.take_outbox_seq, here, "a") is None
    assert store.run(conversations.take_outbox_seq, here, "b") == (first or 0) + 1


@pytest.mark.parametrize(("stopped_at", "expected"), [(5, 5), (2, 3)])
def test_a_stop_never_goes_back(store: Store, stopped_at: int, expected: int) -> None:
    """An older one that is told late changes nothing."""
    here, _ = store.run(admit, inbound("x"))
    store.run(conversations.stop_upto, here, 3)
    store.run(conversations.stop_upto, here, stopped_at)
    assert store.run(conversations.get, here).cancel_upto_seq == expected


@pytest.mark.thorough
def test_a_withdrawn_conversation_is_neither_leased_nor_indexed(store: Store) -> None:
    """Who has leased it loses the lease, and no message of it waits for the index."""
    current = store.run(turn_of, "hello")
    lease = current.lease
    assert store.run(leases.fence, lease).id == lease.conversation
    assert store.run(conversations.count_unsearched, None) > 0
    store.run(conversations.withdraw, lease.conversation)
    for looking in (leases.fence, leases.look):
        with pytest.raises(LeaseLost):
            store.run(looking, lease)
    assert store.run(conversations.count_unsearched, None) == 0
    store.run(conversations.note_searched, lease.conversation, 0, 1)
    indexed = select(func.max(conversation.c.searched_seq))
    assert store.run(lambda conn: conn.scalar(indexed)) > 1
