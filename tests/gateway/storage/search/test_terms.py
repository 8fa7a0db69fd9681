"""Terms: what the index holds of a message, and what is looked for of a question."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engines.lcm import tools
from agent.messages import ChatMessage, storable, tool_message, user_message
from agent.tools.catalog import BUILTIN
from gateway.storage.search.stems import stem
from gateway.storage.search.terms import (
    COPYING,
    KNOWN_WORDS,
    MAX_CHARS,
    MAX_QUERY_TERMS,
    TOOL_CHARS,
    asked_words,
    terms_of,
    terms_of_word,
)


def test_case_accents_and_widths_do_not_count() -> None:
    """As people write in a hurry."""
    written = user_message("CAFÉ \uff21\uff22\uff23 snake_case")
    assert terms_of(written) == {stem(word) for word in ("cafe", "abc", "snake", "case")}


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


@pytest.mark.parametrize(
    ("question", "terms"),
    [
        ("학교에서는", ["학교"]),
        ("자동차를", ["자동", "동차"]),
        ("집에서", ["집*"]),
        ("이", ["이*"]),
    ],
)
def test_what_stands_behind_a_korean_noun_is_not_asked_for(question: str, terms: list[str]) -> None:
    """From, to, the topic, the object: they say nothing about it."""
    assert asked(question) == terms


def test_a_question_is_its_subject() -> None:
    """Words that any question has are left out, unless there is nothing else."""
    assert asked("When did Caroline go to the museum?") == ["carolin", "museum", "go"]
    assert asked("Wann ist der Termin beim Zahnarzt?") == ["zahnarzt", "termin"]
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
    assert {"first", stem("ended")} <= terms
    assert stem("middle") not in terms
    assert stem("middle") in terms_of(user_message(text))


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
    for term, shared, alike in asked_words(text):
        assert any(each.startswith(term[:-1]) for each in held) if "*" in term else term in held
        for each in (term, *shared.near, *shared.ends, *alike):
            assert each.strip("*")
            assert not set(each) & set("\"' \x00|&!()<:")


@pytest.mark.parametrize("name", sorted(COPYING))
def test_copies_of_what_was_said_are_not_indexed(name: str) -> None:
    """Neither results nor arguments of tools that show it; what is beside them is."""
    assert terms_of(tool_message("c1", name, "zebra")) == frozenset()
    calls = [
        {"id": each, "type": "function", "function": {"name": each, "arguments": word}}
        for each, word in ((name, "zebra"), ("calculate", "tapir"))
    ]
    asking = ChatMessage(role="assistant", content="wait", tool_calls=calls)  # type: ignore[typeddict-item]
    assert terms_of(asking) == {"wait", "tapir", *terms_of_word("calculate")}


def test_copying_tools_exist() -> None:
    """A renamed tool must be renamed here too."""
    assert {*BUILTIN, *(schema.name for schema in tools.SCHEMAS)} >= COPYING


def test_the_words_that_are_remembered_are_bounded() -> None:
    """Their number is, and so are their lengths: pasted data is one word of 50,000 characters."""
    terms_of_word.cache_clear()
    terms_of(user_message(" ".join(f"w{n}" for n in range(6000))))
    assert terms_of_word.cache_info().currsize == KNOWN_WORDS == 4096
    tracemalloc.start()
    for n in range(100):
        terms_of(user_message(f"{n:03}" + "x" * MAX_CHARS))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < MAX_CHARS
