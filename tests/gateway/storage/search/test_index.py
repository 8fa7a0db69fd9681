"""The index: fed beside the transcript, one with it at any moment, erased with it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text, update

from agent.engines.lcm import tools
from agent.messages import ChatMessage, storable, tool_message, user_message
from agent.tools.catalog import BUILTIN
from gateway.storage.conversation import conversations
from gateway.storage.schema import conversation, message, search_row
from gateway.storage.search import index, query
from gateway.storage.search.index import (
    COPYING,
    MAX_QUERY_TERMS,
    TOOL_CHARS,
    asked_words,
    folded,
    stop_words_of,
    term_of,
    terms_of,
)
from tests.support.searching import chat, feed, found, said, talk, tell
from tests.support.storage import Store, forget, raw_bytes


class Killed(Exception):
    """The process ends here."""


HELD = {
    "sqlite": "SELECT rowid AS id FROM search_index WHERE search_index MATCH 'zebra'",
    "postgresql": "SELECT id FROM search_index WHERE terms @@ 'zebra' ORDER BY id",
}
CLEARED = {
    "sqlite": "INSERT INTO search_index (search_index) VALUES ('delete-all')",
    "postgresql": "DELETE FROM search_index",
}


def held(conn: Connection) -> list[int]:
    """Return the ids in the index."""
    return [row.id for row in conn.execute(text(HELD[conn.dialect.name]))]


def waiting(store: Store, conversation_id: int) -> index.Unindexed:
    read = store.run(index.waiting, conversation_id)
    assert read is not None
    return read


def test_what_was_said_can_be_found_once_it_is_fed(store: Store) -> None:
    """And the watermark says so."""
    here = chat(store)
    store.run(tell, here, [said("a zebra"), said("a horse", "assistant")])
    assert (
        store.run(conversations.count_unsearched, [here])
        == store.run(conversations.count_unsearched, None)
        == 2
    )
    feed(store)
    assert found(store, [here], "zebra")[:1] == [1]
    assert store.run(conversations.count_unsearched, [here]) == 0
    assert store.run(index.waiting, here) is None
    assert store.run(index.waiting, 4711) is None


def test_what_parley_wrote_is_passed_over(store: Store) -> None:
    """The watermark moves past it, and it supports nobody."""
    here = chat(store)
    hidden = said("a zebra", synthetic=True, ephemeral=True)
    store.run(tell, here, [hidden, said("a zebra", "system"), said("a horse")])
    feed(store)
    assert found(store, [here], "zebra") == []
    assert [row.seq for row in store.rows(search_row)] == [3]


def test_a_kill_in_the_middle_leaves_rows_and_watermark_one(store: Store) -> None:
    """Both or neither; the next feeder goes on there."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    batch = index.prepared(waiting(store, here))

    def killed(conn: Connection) -> None:
        index.feed(conn, batch)
        raise Killed

    with pytest.raises(Killed):
        store.run(killed)
    assert store.run(held) == store.rows(search_row) == []
    assert store.conversation(here).searched_seq == 0
    feed(store)
    assert store.run(held) == [index.row_id(here, 1)]


def test_two_feeders_feed_once(store: Store) -> None:
    """The second finds that the index has moved."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    batch = index.prepared(waiting(store, here))
    assert store.run(index.feed, batch)
    assert not store.run(index.feed, batch)
    assert len(store.run(held)) == 1


def test_a_batch_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")] * 3)
    monkeypatch.setattr(index, "BATCH_ROWS", 2)
    assert len(waiting(store, here).rows) == 2


def test_an_emptied_index_is_fed_the_same(store: Store) -> None:
    """`parley search reindex`: nothing of the old one stays, nothing is lost."""
    here = talk(store, "a zebra", "a horse", "a zebra and a horse")
    before = store.run(query.find, [here], "zebra")
    store.run(index.clear)
    assert found(store, [here], "zebra") == []
    feed(store)
    assert store.run(query.find, [here], "zebra") == before
    assert len(store.run(held)) == 2


def test_an_index_of_other_terms_is_known(store: Store) -> None:
    """By the mark that it bears; a new database has none."""
    assert not store.run(index.is_current)
    feed(store)
    assert store.run(index.is_current)


@pytest.mark.usefixtures("sqlite_alone")
def test_the_index_survives_a_vacuum(store: Store) -> None:
    """Its ids are given by Parley, so no rewriting renumbers them."""
    here = talk(store, "a zebra", "a horse")
    store.connection.connection.cursor().execute("VACUUM")
    assert found(store, [here], "zebra") == [1, 2]


@pytest.mark.usefixtures("sqlite_alone")
def test_a_forgotten_conversation_leaves_no_word(store: Store) -> None:
    """Neither a row nor a byte of its terms; others stay."""
    gone, kept = talk(store, "a zebra okapiphant"), talk(store, "a zebra", user="8")
    store.run(forget, gone)
    store.connection.connection.cursor().execute("VACUUM")
    store.connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.run(held) == [index.row_id(kept, 1)]
    assert b"okapiph" not in raw_bytes(Path(store.path))


def test_forgetting_with_an_index_of_other_terms_empties_it(store: Store) -> None:
    """What it holds cannot be told to it; it is fed anew."""
    gone, kept = talk(store, "a zebra"), talk(store, "a zebra", user="8")
    store.run(lambda conn: conn.execute(text("DELETE FROM search_row")))
    clear_mark = CLEARED[store.connection.dialect.name]
    store.run(lambda conn: conn.execute(text(clear_mark)))
    store.run(forget, gone)
    assert store.conversation(kept).searched_seq == 0
    feed(store)
    assert found(store, None, "zebra") == [1]


def test_forgetting_what_was_never_fed(store: Store) -> None:
    """There is nothing to take out."""
    talk(store, "a zebra", user="8")
    gone = chat(store)
    store.run(tell, gone, [said("a zebra")])
    store.run(forget, gone)
    assert len(store.run(held)) == 1


def test_a_conversation_that_moves_keeps_its_index(store: Store) -> None:
    """It goes by the conversation, whatever its chat is called."""
    here = talk(store, "a zebra")
    store.run(lambda conn: conn.execute(update(conversation).values(chat="other")))
    assert found(store, [here], "zebra") == [1]
    assert store.run(lambda conn: conn.execute(message.select()).all())[0].conversation == here


def test_case_accents_and_widths_do_not_count() -> None:
    """As people write in a hurry."""
    written = user_message("CAFÉ \uff21\uff22\uff23 snake_case")
    assert terms_of(written) == {"cafe", "abc", "snake", "case"}


@pytest.mark.parametrize(
    ("written", "asked_for"),
    [
        ("IŞIK \u0131ş\u0131k İ", "isik isik i"),
        ("Łódź sjøen", "lodz sjoen"),
        ("Größe", "grosse"),
        ("чей", "чеи"),
    ],
)
def test_what_is_the_same_to_a_reader_is_one_text(written: str, asked_for: str) -> None:
    """Whatever marks its letters have, also those that Unicode does not take apart."""
    assert folded(written) == asked_for


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("東京都", {"东京", "京都", "都"}),
        ("私のPython入門", {"私の", "の", "python", "入门", "门"}),
        ("안녕하세요", {"안녕", "녕하", "하세", "세요", "요"}),
        ("がぎ", {"がぎ", "ぎ"}),
    ],
)
def test_scripts_without_spaces_are_pairs(text: str, terms: set[str]) -> None:
    """The last character stands alone, so that each can be found by its beginning."""
    assert terms_of(user_message(text)) == terms


def asked(question: str) -> list[str]:
    """Return the terms of a question's words."""
    return list(asked_words(question))


def test_what_is_asked_in_them() -> None:
    """All pairs; a single character is the beginning of one."""
    assert asked("东京都 猫") == ["东京", "京都", "猫*"]


@pytest.mark.parametrize(
    ("one", "other"), [("電腦", "电脑"), ("圖書館", "图书馆"), ("頭髮", "头发"), ("東京", "东京")]
)
def test_traditional_characters_are_the_simplified_ones(one: str, other: str) -> None:
    """Whichever a person writes, in what was said and in what is asked."""
    assert terms_of(user_message(one)) == terms_of(user_message(other))
    assert asked(one) == asked(other)


def test_a_question_is_its_subject() -> None:
    """Words that any question has are left out, unless there is nothing else."""
    assert asked("When did Caroline go to the museum?") == ["caroli", "museum"]
    assert asked("Wann ist der Termin beim Zahnarzt?") == ["termin", "zahnar"]
    assert asked("Who are you?") == ["who", "are", "you"]


def test_a_long_question_is_its_longest_words() -> None:
    """They are the rarest; a statement has its limits."""
    words = [f"{n}{'x' * n}" for n in range(30)]
    assert asked(" ".join(words)) == words[: -MAX_QUERY_TERMS - 1 : -1]


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage(role="system", content="secret"),
        ChatMessage(role="user", content="go on", synthetic=True),
        ChatMessage(role="user", content="recalled", synthetic=True, ephemeral=True),
    ],
)
def test_what_parley_wrote_itself_is_not_searched(message: ChatMessage) -> None:
    """Nobody said it."""
    assert terms_of(message) == frozenset()


def test_of_a_long_result_the_ends_are_searched() -> None:
    """And not the data between them."""
    text = f"first {'x ' * TOOL_CHARS} middle {'y ' * TOOL_CHARS} ended"
    terms = terms_of(tool_message("c", "look", text))
    assert {"first", "ended"} <= terms
    assert "middle" not in terms
    assert "middle" in terms_of(user_message(text))


def test_calls_of_tools_are_searched() -> None:
    """By name and arguments."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at":"x9"}'}}
    message = ChatMessage(role="assistant", content=None, tool_calls=[call])  # type: ignore[list-item]
    assert {"look", "x9"} <= terms_of(message)


@settings(max_examples=150)
@given(st.text(max_size=60))
def test_a_message_has_what_is_asked_in_its_own_words(text: str) -> None:
    """Any text finds itself: no term is asked for that the index would not hold."""
    held = terms_of(user_message(storable(text)))
    for term, near in asked_words(text).items():
        assert any(each.startswith(term[:-1]) for each in held) if "*" in term else term in held
        assert not near or any(each.startswith(near[:-1]) for each in held)
        assert term.strip("*")
        assert not set(term + near) & set("\"' \x00|&!()<:")


@pytest.mark.parametrize("name", sorted(COPYING))
def test_copies_of_what_was_said_are_not_indexed(name: str) -> None:
    """Neither results nor arguments of tools that show it; what is beside them is."""
    assert terms_of(tool_message("c1", name, "zebra")) == frozenset()
    calls = [
        {"id": each, "type": "function", "function": {"name": each, "arguments": word}}
        for each, word in ((name, "zebra"), ("calculate", "tapir"))
    ]
    asking = ChatMessage(role="assistant", content="wait", tool_calls=calls)  # type: ignore[typeddict-item]
    assert terms_of(asking) == {"wait", "tapir", term_of("calculate")}


def test_copying_tools_exist() -> None:
    """A renamed tool must be renamed here too."""
    assert {*BUILTIN, *(schema.name for schema in tools.SCHEMAS)} >= COPYING


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("painting", "painted"),
        ("Kalendereintrag", "Kalendereinträge"),
        ("talossamme", "talostamme"),
        ("evlerimizden", "evlerimize"),
        ("встречаемся", "встречаться"),
    ],
)
def test_forms_of_a_word_share_a_beginning(one: str, other: str) -> None:
    """In any language: the same term, or what is looked for beside one."""
    (near,) = asked_words(one).values()
    assert term_of(folded(other)).startswith(near[:-1])


def test_an_identifier_counts_whole() -> None:
    """Two orders whose numbers begin alike are two."""
    assert terms_of(user_message("order 4711000815")) == {"order", "4711000815"}
    assert asked_words("4711000815") == {"4711000815": ""}


def test_stop_words_are_those_of_the_language_of_the_question() -> None:
    """What is one in German may say something in English."""
    assert "die" in stop_words_of({"wann", "ist", "die", "party"})
    assert "die" not in stop_words_of({"when", "did", "he", "die"})
