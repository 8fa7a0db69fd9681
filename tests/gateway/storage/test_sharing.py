"""What replicas tell each other by rows, on both engines."""

import pytest
from sqlalchemy import update

from gateway.storage import maintenance, schema, sharing
from gateway.storage.conversation import conversations
from gateway.storage.sharing import SharedChat
from tests.support.storage import Store, admit, claim_one, inbound

KEY = "telegram:default:c1"
OTHER = "web:default:c2"
"""Of a chat in which nobody has written."""


@pytest.fixture
def here(store: Store) -> int:
    """A replica that works on the conversation of `KEY`."""
    conversation, _ = store.run(admit, inbound(chat="c1"))
    assert conversation == store.run(conversations.find, KEY)
    return store.run(claim_one, conversation).replica


def test_news_are_counted(store: Store) -> None:
    """Who knows the number of before knows whether there is something new."""
    assert store.run(sharing.told) == {}
    assert store.run(sharing.announce, "forgotten") == 1
    assert store.run(sharing.announce, "secrets") == 1
    assert store.run(sharing.announce, "forgotten") == 2
    assert store.run(sharing.told) == {"forgotten": 2, "secrets": 1}


def test_who_looks_at_a_chat_elsewhere_is_known(store: Store) -> None:
    """Until they look away; a replica does not count for itself."""
    store.run(sharing.watch, 1, [KEY, OTHER])
    store.run(sharing.watch, 2, [KEY])
    store.run(sharing.watch, 2, [KEY])
    assert all(store.run(sharing.is_watched, replica) for replica in (1, 2, 3))
    store.run(sharing.unwatch, 2, [KEY])
    assert store.run(sharing.is_watched, 2)
    assert not store.run(sharing.is_watched, 1)


def test_who_has_not_said_so_for_long_looks_no_more(store: Store) -> None:
    """Its process may be gone; the next one who says something takes the row away."""
    store.run(sharing.watch, 1, [KEY])
    store.run(lambda conn: conn.execute(update(schema.chat_watch).values(until=1.0)))
    assert not store.run(sharing.is_watched, 2)
    store.run(sharing.watch, 2, [])
    assert store.rows(schema.chat_watch) == []


def test_a_growing_answer_is_stored_where_somebody_looks(store: Store, here: int) -> None:
    """Each state has a name of its own, which changes also where the text does not."""
    assert store.run(sharing.show, here, {KEY: "He"}) == []
    assert store.rows(schema.chat_preview) == []
    store.run(sharing.watch, here, [KEY])
    store.run(sharing.watch, here + 1, [OTHER])
    assert store.run(sharing.show, here, {KEY: "He"}) == []
    store.run(sharing.watch, here + 1, [KEY])
    assert store.run(sharing.show, here, {KEY: "He"}) == [KEY]
    [first] = store.run(sharing.chats, [KEY, OTHER])
    assert first == SharedChat(KEY, (1, 0), first.shown_at, "He")
    store.run(sharing.show, here, {KEY: "He"})
    [second] = store.run(sharing.chats, [KEY])
    assert (second.text, second.shown_at != first.shown_at) == ("He", True)


def test_only_who_works_on_a_conversation_shows_its_answer(store: Store, here: int) -> None:
    """Who was reaped in its sleep may still have a turn at work."""
    store.run(sharing.watch, here + 1, [KEY])
    assert store.run(sharing.show, here + 7, {KEY: "of a zombie", OTHER: "of nobody"}) == []
    assert store.rows(schema.chat_preview) == []


def test_an_answer_that_has_ended_is_taken_away(store: Store, here: int) -> None:
    """Whoever has shown it."""
    store.run(sharing.watch, here + 1, [KEY])
    store.run(sharing.show, here, {KEY: "Hello"})
    store.run(sharing.end_previews, [KEY])
    assert store.run(sharing.chats, [KEY]) == [SharedChat(KEY, (1, 0), None, "")]


def test_what_nobody_has_shown_for_long_does_not_grow(store: Store, here: int) -> None:
    """Its turn is over, or goes on elsewhere."""
    store.run(sharing.watch, here + 1, [KEY])
    store.run(sharing.show, here, {KEY: "Hello"})
    stale = schema.chat_preview.c.at - sharing.STALE_S - 1
    store.run(lambda conn: conn.execute(update(schema.chat_preview).values(at=stale)))
    assert store.run(sharing.chats, [KEY]) == [SharedChat(KEY, (1, 0), None, "")]


def test_a_long_answer_is_stored_as_far_as_pages_show_it(store: Store, here: int) -> None:
    """It may be of any length, and is stored three times a second."""
    store.run(sharing.watch, here + 1, [KEY])
    store.run(sharing.show, here, {KEY: "x" * 100_000})
    assert len(store.rows(schema.chat_preview)[0].text) == sharing.PREVIEW_CHARS


@pytest.mark.usefixtures("here")
def test_stops_are_found(store: Store) -> None:
    """Of conversations that were never stopped, or are not there, nothing is said."""
    [conversation] = store.rows(schema.conversation)
    assert store.run(sharing.stops, [conversation.id, 99]) == []
    store.run(conversations.stop_upto, conversation.id, 1)
    assert store.run(sharing.stops, [conversation.id, 99]) == [(conversation.id, 1)]


def test_what_was_forgotten_does_not_grow(store: Store, here: int) -> None:
    """The words of an answer go with its conversation."""
    store.run(sharing.watch, here + 1, [KEY])
    store.run(sharing.show, here, {KEY: "of a secret"})
    store.run(maintenance.withdraw, store.rows(schema.conversation)[0].id)
    assert store.rows(schema.chat_preview) == []


def test_one_look_finds_all_that_is_asked_for(store: Store, here: int) -> None:
    """The chats, the stops, the news, and whether anybody looks elsewhere."""
    [conversation] = store.rows(schema.conversation)
    store.run(conversations.stop_upto, conversation.id, 1)
    store.run(sharing.announce, "secrets")
    store.run(sharing.watch, here + 1, [KEY])
    found = store.run(sharing.look, [KEY], {conversation.id}, here)
    assert [chat.session_key for chat in found.chats] == [KEY]
    assert (list(found.stops), found.news) == ([(conversation.id, 1)], {"secrets": 1})
    assert found.is_watched
    nothing = store.run(sharing.look, [], set(), here)
    assert (nothing.chats, list(nothing.stops)) == ((), [])
