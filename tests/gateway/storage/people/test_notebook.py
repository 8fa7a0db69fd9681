"""Lists and notes: whose they are, and what a change leaves, also one that is made again."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from adapters.messages import Address
from agent.errors import ToolError
from agent.ports import TodoItem
from gateway.errors import NotFound, TurnCancelled
from gateway.storage.conversation import sessions
from gateway.storage.conversation.turns import Turn
from gateway.storage.people import notebook
from gateway.storage.people.notebook import Change, changed
from gateway.storage.schema import alias, conversation, memory, todo
from tests.support.storage import Store, admit, forget, inbound, turn_of

ITEMS = [TodoItem("buy bread", "done"), TodoItem("bake a cake")]


def change(remove: str | None = None, add: str | None = None, **more: Any) -> Change:
    values = {"scope": "telegram:42", "target": "memory", "max_chars": 30}
    return Change(remove=remove, add=add, **(values | more))  # type: ignore[arg-type]


def noted(store: Store, *texts: str, **more: Any) -> Turn:
    """Begin a turn and have it make notes."""
    turn = store.run(turn_of, "hello")
    for text in texts:
        store.run(notebook.change_notes, turn, change(add=text, **more))
    return turn


@pytest.mark.parametrize(
    ("message", "scope"),
    [
        ({"sender": "7"}, "telegram:7"),
        ({"sender": "7", "address": Address("telegram", "default", "c", "t")}, "telegram:7"),
        ({"sender": "7", "chat_kind": "group"}, None),
        ({"sender": "7", "chat_kind": "thread"}, None),
    ],
)
def test_only_direct_chats_share_a_memory(
    store: Store, message: dict[str, Any], scope: str | None
) -> None:
    """A group's is its own, also where each sender has a conversation in it."""
    found, _ = store.run(admit, inbound(**message))
    assert store.run(notebook.scope_of, found) == (scope or f"conversation:{found}")


def test_a_direct_chat_stays_one_beside_other_keys(store: Store) -> None:
    """A conversation may have several; one without any is nobody's chat."""
    found, _ = store.run(admit, inbound(sender="7"))
    other = alias.insert().values(session_key="telegram:default:older:key:x", conversation=found)
    store.run(lambda conn: conn.execute(other))
    assert store.run(notebook.scope_of, found) == "telegram:7"
    store.run(lambda conn: conn.execute(alias.delete()))
    assert store.run(notebook.scope_of, found) == f"conversation:{found}"


def test_a_list_is_stored_as_a_whole(store: Store) -> None:
    """The newest one counts; written twice it is there once."""
    turn = noted(store)
    here = turn.lease.conversation
    assert store.run(notebook.todo_of, here, 1) == []
    for items in ([TodoItem("old")], ITEMS, ITEMS):
        store.run(notebook.set_todo, turn, items)
    assert store.run(notebook.todo_of, here, 1) == ITEMS
    assert len(store.rows(todo)) == 1


def test_a_list_ends_with_its_root(store: Store) -> None:
    """What begins anew has no list; what was compacted still has it."""
    turn = noted(store)
    here = turn.lease.conversation
    store.run(notebook.set_todo, turn, ITEMS)
    split = store.run(sessions.split, turn.session, "compression", turn.session.plan)
    assert store.run(notebook.todo_of, here, split.plan.first_seq) == ITEMS
    assert store.run(notebook.todo_of, here, 9) == []


def test_notes_are_added_replaced_and_removed(store: Store) -> None:
    """A new one comes last; letter case does not count."""
    turn = noted(store, "likes tea", "has a cat", target="user")
    for _ in range(2):
        change_ = change("TEA", "likes coffee", target="user")
        notes, _ = store.run(notebook.change_notes, turn, change_)
        assert notes == ["has a cat", "likes coffee"]
    store.run(notebook.change_notes, turn, change("a cat", target="user"))
    assert store.run(notebook.notes_of, "telegram:42", "user") == ["likes coffee"]
    assert store.run(notebook.notes_of, "telegram:42", "memory") == []
    assert store.run(notebook.notes_of, "telegram:4", "user") == []


def test_a_stopped_turn_notes_nothing(store: Store) -> None:
    """Neither a note nor a list."""
    turn = noted(store)
    stop = update(conversation).values(cancel_upto_seq=turn.upto_seq)
    store.run(lambda conn: conn.execute(stop))
    for write in (
        lambda conn: notebook.change_notes(conn, turn, change(add="x")),
        lambda conn: notebook.set_todo(conn, turn, ITEMS),
    ):
        with pytest.raises(TurnCancelled):
            store.run(write)
    assert store.rows(memory) == store.rows(todo) == []


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (change("tea"), "2 notes hold 'tea'.*\n- green tea\n- tea pots"),
        (change("milk", "x"), "no note holds 'milk'.*\n- green tea\n- tea pots"),
        (change(None, "a note of 18 chars"), "17 of 30 characters.*have 35.*\n- green tea"),
        (change("pots", "much longer than the old one"), "no room"),
    ],
)
def test_what_cannot_be_done_lists_what_is_there(wanted: Change, told: str) -> None:
    """So that the next attempt can be right."""
    with pytest.raises(ToolError, match=f"(?s){told}"):
        changed(["green tea", "tea pots"], wanted)


def test_notes_can_shrink_under_a_limit_that_was_lowered() -> None:
    """Also where they stay above it; the empty list is told, too."""
    assert changed(["a long note"], change("long", "short", max_chars=3)) == ["short"]
    with pytest.raises(ToolError, match=r"\(no notes\)"):
        changed([], change("x", "y"))


NOTES = st.lists(st.text("abc ", min_size=1, max_size=5), max_size=5, unique=True)
WORDS = st.none() | st.text("abc ", min_size=1, max_size=4)


@settings(max_examples=100)
@given(NOTES, WORDS, WORDS)
def test_a_change_that_is_made_again_changes_nothing(
    notes: list[str], remove: str | None, add: str | None
) -> None:
    """It succeeds with the same notes; none is there twice, and at most one went."""
    wanted = change(remove, add)
    try:
        after = changed(notes, wanted)
    except ToolError:
        return
    assert changed(after, wanted) == after
    assert len(set(after)) == len(after)
    assert len(set(notes) - set(after)) <= 1
    assert sum(map(len, after)) <= max(30, sum(map(len, notes)))
    if add is not None:
        assert add in after


def test_an_operator_sees_and_erases_notes(store: Store) -> None:
    """One by its id, or all of a scope."""
    noted(store, "one", "two")
    second, first = store.run(notebook.all_notes)
    assert (first.scope, first.target, first.text) == ("telegram:42", "memory", "one")
    assert store.run(notebook.all_notes, "telegram:4") == []
    assert store.run(notebook.remove_notes, str(second.id)) == 1
    assert store.run(notebook.all_notes, "telegram:42") == [first]
    assert store.run(notebook.remove_notes, "telegram:42") == 1
    with pytest.raises(NotFound, match="no note 'telegram:42'"):
        store.run(notebook.remove_notes, "telegram:42")


def test_forgetting_a_conversation_erases_its_notes_and_its_list(store: Store) -> None:
    """Those of its sender belong to other chats as well, and stay."""
    turn = noted(store, "of the sender")
    here = turn.lease.conversation
    store.run(notebook.change_notes, turn, change(add="its own", scope=f"conversation:{here}"))
    store.run(notebook.set_todo, turn, ITEMS)
    store.run(forget, here)
    assert [row.text for row in store.rows(memory)] == ["of the sender"]
    assert store.rows(todo) == []
