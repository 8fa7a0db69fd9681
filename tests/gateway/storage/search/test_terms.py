"""Terms: what the index holds of a message, and what is looked for of a question."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engines.lcm import tools
from agent.messages import ChatMessage, storable, tool_message, user_message
from agent.tools.catalog import BUILTIN
from gateway.storage.search.terms import (
    COPYING,
    MAX_QUERY_TERMS,
    TOOL_CHARS,
    asked_words,
    folded,
    stop_words_of,
    term_of,
    terms_of,
)


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
    return [word.term for word in asked_words(question)]


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
    for term, near in asked_words(text):
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
    (asked_for,) = asked_words(one)
    assert term_of(folded(other)).startswith(asked_for.near[:-1])


def test_an_identifier_counts_whole() -> None:
    """Two orders whose numbers begin alike are two."""
    assert terms_of(user_message("order 4711000815")) == {"order", "4711000815"}
    assert asked_words("4711000815") == [("4711000815", "")]


def test_stop_words_are_those_of_the_language_of_the_question() -> None:
    """What is one in German may say something in English."""
    assert "die" in stop_words_of({"wann", "ist", "die", "party"})
    assert "die" not in stop_words_of({"when", "did", "he", "die"})
