"""Which conversations the console lists, in which order, and by which filters."""

from typing import Any

from sqlalchemy import Connection, update

from agent.messages import assistant_message
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.reports import conversation_list
from gateway.storage.reports.conversation_list import (
    DayTurns,
    Listed,
    Period,
    Wanted,
    first_turn_since,
)
from gateway.storage.schema import conversation, inbox, outbox, turn
from gateway.storage.search import index
from tests.support.storage import Store, admit, inbound, model_call, parts, turn_of


def answered(store: Store, chat: str, text: str = "hello", *, at: float = 0.0) -> int:
    """Have a chat's message be answered; returns the turn's id."""
    current = store.run(turn_of, text, chat=chat)
    store.run(end, current)
    if at:
        store.run(set_rows, turn, turn.c.id == current.id, started_at=at)
    return current.id


def end(conn: Connection, current: Turn) -> None:
    """Commit a turn's answer, and give its conversation back."""
    ended = TurnEnd("final_text", model_call())
    said = [assistant_message("Yes.")]
    turn_journal.commit(conn, current, said, parts(current), ended, releases=True)


def set_rows(conn: Connection, table: Any, where: Any, **values: Any) -> None:
    conn.execute(update(table).where(where).values(**values))


def chats(rows: list[Listed]) -> list[str]:
    return [row.overview.chat for row in rows]


def listed(
    store: Store, after: Listed | None = None, limit: int = 50, **wanted: Any
) -> list[Listed]:
    place = None if after is None else (after.turn_id, after.overview.id)
    return store.run(conversation_list.listed, Wanted(**wanted), limit, place)


def test_a_conversation_stands_where_its_newest_turn_is(store: Store) -> None:
    """Not where it began; each once, page by page."""
    for chat in ("a", "b", "c", "a", "d", "b"):
        answered(store, chat)
    assert chats(listed(store)) == ["b", "d", "a", "c"]
    first = listed(store, limit=3)
    assert chats(first) == ["b", "d", "a"]
    assert chats(listed(store, after=first[-1], limit=3)) == ["c"]
    [newest, *_] = first
    assert (newest.outcome, newest.person, newest.overview.messages) == ("final_text", "Ada", 4)


def test_a_rare_platform_is_found_behind_many_turns_of_others(store: Store) -> None:
    """On the first page."""
    answered(store, "rare")
    store.run(set_rows, conversation, conversation.c.chat == "rare", platform="slack")
    for chat in ("a", "b", "c"):
        answered(store, chat)
    assert chats(listed(store, platform="slack", limit=2)) == ["rare"]


def test_the_time_is_that_of_turns(store: Store) -> None:
    """The first day is included, the last second is not; ids grow with time."""
    ids = [answered(store, chat, at=at) for chat, at in (("a", 100.0), ("b", 200.0), ("a", 300.0))]
    assert chats(listed(store, since=200.0)) == ["a", "b"]
    assert chats(listed(store, until=300.0)) == ["b", "a"]
    assert chats(listed(store, since=101.0, until=200.0)) == []
    assert [store.run(first_turn_since, at) for at in (0.0, 100.0, 250.0, 301.0)] == [
        ids[0],
        ids[0],
        ids[2],
        ids[2] + 1,
    ]


def test_states_and_persons_are_looked_up(store: Store) -> None:
    """Also where the turn is long ago, or there is none."""
    answered(store, "done")
    answered(store, "failed")
    store.run(turn_of, "wait", chat="running")
    store.run(admit, inbound("and?", chat="waiting"))
    dead = turn.c.id == 2
    store.run(set_rows, turn, dead, state="dead", outcome="failed", finished_at=1.0)
    store.run(set_rows, outbox, outbox.c.turn_id == 1, state="sent")
    assert chats(listed(store, state="running")) == ["running"]
    waiting = listed(store, state="waiting")
    assert chats(waiting) == ["running", "waiting"]
    assert chats(listed(store, waiting[0], state="waiting")) == ["waiting"]
    assert chats(listed(store, waiting[1], state="waiting")) == []
    assert chats(listed(store, state="failed")) == ["failed"]
    assert chats(listed(store, state="unsent")) == ["failed"]
    assert chats(listed(store, state="asking")) == []
    assert chats(listed(store, person="done")) == ["done"]
    assert chats(listed(store, person="waiting", state="waiting")) == ["waiting"]
    assert chats(listed(store, person="waiting", state="running")) == []
    assert chats(listed(store, person="waiting", platform="discord")) == []
    assert chats(listed(store, person="waiting", since=1.0)) == []


def test_what_was_said_is_found_within_the_filters(store: Store) -> None:
    """Best first, with the place where it was said."""
    answered(store, "a", "the zebra eats oats")
    answered(store, "b", "a zebra in the garden, a zebra in the house")
    store.run(set_rows, conversation, conversation.c.chat == "b", platform="slack")
    for number in (1, 2):
        store.run(feed, number)
    found = store.run(conversation_list.said, Wanted(), "zebra")
    assert {each.platform for each in found} == {"telegram", "slack"}
    [only] = store.run(conversation_list.said, Wanted(platform="slack"), "zebra")
    assert (only.conversation, only.message.role, only.message.seq) == (2, "user", 1)
    assert store.run(conversation_list.said, Wanted(person="a"), "garden") == []
    assert store.run(conversation_list.said, Wanted(until=1.0), "zebra") == []


def feed(conn: Connection, number: int) -> None:
    """Put a conversation into the search index."""
    index.feed(conn, index.prepared(index.waiting(conn, number)))


def test_senders_names_are_those_of_the_newest_message(store: Store) -> None:
    """As they call themselves now."""
    answered(store, "a")
    answered(store, "a")
    store.run(set_rows, inbox, inbox.c.seq == 2, sender_name="Ada L.")
    row = store.run(conversation_list.one, 1)
    assert (row.person, row.account, row.turn_id) == ("Ada L.", "default", 2)


def test_turns_are_counted_where_they_began(store: Store) -> None:
    """Those that were given up or have no answer are told apart; a day without any is there."""
    for at in (90.0, 100.0, 150.0, 310.0, 320.0):
        answered(store, "a", at=at)
    store.run(set_rows, turn, turn.c.started_at == 150.0, state="dead")
    store.run(set_rows, turn, turn.c.started_at == 320.0, outcome="provider_failed")
    spans = [
        Period("one", 100.0, 200.0),
        Period("two", 200.0, 300.0),
        Period("three", 300.0, 400.0),
    ]
    assert store.run(conversation_list.turns_by_day, spans) == [
        DayTurns("one", 2, 1, 0),
        DayTurns("two", 0, 0, 0),
        DayTurns("three", 2, 0, 1),
    ]
