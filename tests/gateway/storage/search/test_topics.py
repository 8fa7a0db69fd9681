"""The timeline of topics: where one begins, what it holds, that it goes with what it tells of."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from agent.messages import ChatMessage
from gateway.storage.conversation import conversations
from gateway.storage.schema import conversation, message, topic
from gateway.storage.search import index, topics
from gateway.storage.search.topics import LABEL_CHARS, PAUSE_S, Topic
from tests.support.searching import chat, feed, said, talk, tell
from tests.support.storage import Store

FLASK = "Thanks! How do I set up a login page with Flask sessions?"
COOKIE = "Use a signed cookie, and keep the secret key in the environment."
LIMITS = (
    "Now the session limits: count requests of each address per minute, answer 429 above sixty,"
    " write rejected ones into a log file, rotate that weekly, and cover everything by unit tests."
)
BREAD = "Which flour makes the best sourdough bread at home?"


def timeline(store: Store, *where: int) -> list[Topic]:
    """Return the topics of conversations."""
    return store.run(topics.of_conversations, where)


def begun(store: Store, *where: int) -> list[tuple[int, int, str]]:
    """Return where topics begin and end, and their words."""
    return [(each.first_seq, each.last_seq, each.text) for each in timeline(store, *where)]


def test_a_topic_goes_on_while_words_come_again(store: Store) -> None:
    """The agent's words count as well; a short message never begins one."""
    here = talk(
        store,
        FLASK,
        COOKIE,
        "When does such a signed cookie expire by itself?",
        "Soon.",
        "ok, why?",
    )
    assert begun(store, here) == [(1, 5, "How do I set up a login page with Flask sessions?")]
    [only] = timeline(store, here)
    assert only.messages == 3


def test_other_words_begin_another_topic(store: Store) -> None:
    """In the order in which they came up; one that comes again is another stretch."""
    here = talk(store, FLASK, COOKIE, BREAD, "Rye.", "By the way, what is a session?", "A visit.")
    assert [first for first, _, _ in begun(store, here)] == [1, 3, 5]
    [_, bread, _] = timeline(store, here)
    assert (bread.first_seq, bread.last_seq, bread.text) == (3, 4, BREAD)


def test_much_that_is_new_begins_another_topic(store: Store) -> None:
    """Though some words are shared, as in one project; not where as much is known already."""
    here = talk(store, FLASK, COOKIE, LIMITS, "Done.", f"{LIMITS} Keep the key in Redis.")
    assert [first for first, _, _ in begun(store, here)] == [1, 3]


def test_pairs_of_signs_are_not_many_words(store: Store) -> None:
    """Where nothing stands between words, a sentence has a pair for each sign."""
    more = "那么明天去上海的火车票什么时候开始卖呢我想坐早班车"
    here = talk(store, "火车票怎么买?", "在网上买。", more)
    assert [first for first, _, _ in begun(store, here)] == [1]


def test_a_pause_begins_another_topic(store: Store) -> None:
    """Whatever is said behind it."""
    here = chat(store)
    store.run(tell, here, [said(FLASK), said(COOKIE, "assistant"), said("And Flask sessions?")])
    later = update(message).where(message.c.seq == 3).values(at=message.c.at + PAUSE_S + 1)
    store.run(lambda conn: conn.execute(later))
    feed(store)
    assert [first for first, _, _ in begun(store, here)] == [1, 3]


def test_only_what_people_say_makes_topics(store: Store) -> None:
    """Not what Parley wrote itself, what tools returned, or an answer to nobody."""
    here = chat(store)
    rows: list[ChatMessage] = [
        said("Summary of what was said before now", synthetic=True),
        said(COOKIE, "assistant"),
        said("result of a tool with many words", "tool", tool_call_id="1", name="look"),
    ]
    store.run(tell, here, rows)
    feed(store)
    assert begun(store, here) == []


def test_a_label_is_short(store: Store) -> None:
    """Of a long message the first sentence that tells anything, cut."""
    here = talk(store, "Hi! " + "word " * 60)
    [only] = timeline(store, here)
    assert len(only.text) <= LABEL_CHARS


def test_topics_of_several_conversations_are_one_timeline(store: Store) -> None:
    """By time."""
    one, two = talk(store, FLASK), talk(store, BREAD, account="other")
    assert [each.conversation for each in timeline(store, two, one)] == [one, two]


def test_topics_go_with_their_messages(store: Store) -> None:
    """With a conversation, with its oldest messages, and with the index."""
    here = talk(store, FLASK, COOKIE, BREAD, "Rye.")
    terms = {1: frozenset({"flask"})}
    store.run(index.take_out, here, terms)
    assert [first for first, _, _ in begun(store, here)] == [3]
    store.run(index.forget, here)
    assert store.rows(topic) == []
    store.run(index.clear)
    feed(store)
    assert [first for first, _, _ in begun(store, here)] == [1, 3]


def test_what_is_found_and_what_is_long_is_shown(store: Store) -> None:
    """In order of time."""
    here = talk(store, FLASK, COOKIE, BREAD, "Rye.", "ok", "yes", "By the way, who is Ada Byron?")
    all_ = timeline(store, here)
    assert [each.first_seq for each in topics.holding(all_, [(here, 7), (here, 2)])] == [1, 7]
    assert topics.holding(all_, [(here + 1, 2)]) == []
    assert [each.first_seq for each in topics.longest(all_, 2)] == [3, 7]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=st.lists(st.sampled_from([FLASK, COOKIE, BREAD, "ok", "", "Übrigens, was ist das?"])))
def test_any_steps_give_the_same_timeline(store: Store, texts: list[str]) -> None:
    """Fed one by one or all at once; each message is in at most one topic."""
    known = [row.id for row in store.rows(conversation)]
    one, two = known or (chat(store), chat(store, account="other"))
    messages = [topics.said_in(n, float(n), said(text)) for n, text in enumerate(texts, 1)]
    brought = [each for each in messages if each is not None]
    with store.undoing() as conn:
        topics.note(conn, one, brought)
        for each in brought:
            topics.note(conn, two, [each])
        at_once, in_steps = (topics.of_conversations(conn, [each]) for each in (one, two))
    assert at_once == [replace(each, conversation=one) for each in in_steps]
    ends = [seq for each in at_once for seq in (each.first_seq, each.last_seq)]
    assert ends == sorted(ends)


def test_a_conversation_that_is_fed_anew_has_its_topics_once(store: Store) -> None:
    """As after a change of the terms."""
    here = talk(store, FLASK, COOKIE)
    store.run(index.clear)
    assert store.run(conversations.search_progress, here)[0] == 0
    feed(store)
    assert len(store.rows(topic)) == 1


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_row_of_the_version_before_goes_on(store: Store, is_shared: bool) -> None:
    """It holds stems; behind marks where a replica of each version has fed it."""
    here = talk(store, FLASK, COOKIE)
    marks = orjson.loads(store.one(topic).terms) if is_shared else []
    words = topics.content_words(f"{FLASK} expire {COOKIE}")
    terms = orjson.dumps([*marks, *{each[: topics.STEM_CHARS] for each in words}]).decode()
    store.run(lambda conn: conn.execute(update(topic).values(terms=terms)) and None)
    more = ["ok", "When will it expire within five minutes?", "Is sixty seconds possible, signed?"]
    store.run(tell, here, [said(text) for text in more])
    feed(store)
    assert [first for first, _, _ in begun(store, here)] == [1]
