"""Terms: the same for all forms of a word, pairs of characters where there are no spaces."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engines.lcm import tools
from agent.messages import ChatMessage, storable, tool_message, user_message
from agent.tools.catalog import BUILTIN
from gateway.storage.search.terms import (
    COPYING,
    KNOWN_WORDS,
    MAX_CHARS,
    MAX_QUERY_TERMS,
    TOOL_CHARS,
    asked_terms,
    stem,
    terms_of,
)


@pytest.mark.parametrize(
    "words",
    [
        "paint paints painting painted painter",
        "carry carries carried carrying",
        "run running runs ran",
        "love loves loved loving lovely",
        "buy bought buys",
        "dish dishes",
        "miss missed misses",
        "child children",
        "собака собаку собакой",
        "βιβλία βιβλίων",
        "كتاب الكتاب والكتاب للكتاب",
    ],
)
def test_forms_of_a_word_are_one_term(words: str) -> None:
    """Whichever of them was written or is asked for."""
    assert len({stem(word) for word in words.split()}) == 1


@pytest.mark.parametrize("word", ["bus", "gas", "sing", "thing", "news7", "größe", "is"])
def test_other_words_stay(word: str) -> None:
    """No ending is cut where little would be left, nor of what is not English."""
    assert stem(word).startswith(word[:4] if word.isascii() else word)


def test_case_accents_and_widths_do_not_count() -> None:
    """As people write in a hurry."""
    written = user_message("CAFÉ \uff21\uff22\uff23 snake_case")
    assert terms_of(written) == {stem(word) for word in ("cafe", "abc", "snake", "case")}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("東京都", {"東京", "京都", "都"}),
        ("私のPython入門", {"私の", "の", "python", "入門", "門"}),
        ("안녕하세요", {"안녕", "녕하", "하세", "세요", "요"}),
        ("がぎ", {"がぎ", "ぎ"}),
    ],
)
def test_scripts_without_spaces_are_pairs(text: str, terms: set[str]) -> None:
    """The last character stands alone, so that each can be found by its beginning."""
    assert terms_of(user_message(text)) == terms


def test_what_is_asked_in_them() -> None:
    """All pairs; a single character is the beginning of one."""
    assert asked_terms("東京都 猫") == ["東京", "京都", "猫*"]


def test_a_question_is_its_subject() -> None:
    """Words that any question has are left out, unless there is nothing else."""
    assert asked_terms("When did Caroline go to the museum?") == ["carolin", "museum", "go"]
    assert asked_terms("Who are you?") == ["who", "are", "you"]


def test_a_long_question_is_its_longest_words() -> None:
    """They are the rarest; a statement has its limits."""
    words = [f"{n}{'x' * n}" for n in range(30)]
    assert asked_terms(" ".join(words)) == words[: -MAX_QUERY_TERMS - 1 : -1]


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
    for term in asked_terms(text):
        assert any(each.startswith(term[:-1]) for each in held) if "*" in term else term in held
        assert not set(term) & set('" \x00')


@pytest.mark.parametrize("name", sorted(COPYING))
def test_copies_of_what_was_said_are_not_indexed(name: str) -> None:
    """Neither results nor arguments of tools that show it; what is beside them is."""
    assert terms_of(tool_message("c1", name, "zebra")) == frozenset()
    calls = [
        {"id": each, "type": "function", "function": {"name": each, "arguments": word}}
        for each, word in ((name, "zebra"), ("calculate", "tapir"))
    ]
    asking = ChatMessage(role="assistant", content="wait", tool_calls=calls)  # type: ignore[typeddict-item]
    assert terms_of(asking) == {"wait", "calculat", "tapir"}


def test_copying_tools_exist() -> None:
    """A renamed tool must be renamed here too."""
    assert {*BUILTIN, *(schema.name for schema in tools.SCHEMAS)} >= COPYING


def test_the_words_that_are_remembered_are_bounded() -> None:
    """Their number is, and so are their lengths: pasted data is one word of 50,000 characters."""
    stem.cache_clear()
    terms_of(user_message(" ".join(f"w{n}" for n in range(6000))))
    assert stem.cache_info().currsize == KNOWN_WORDS == 4096
    tracemalloc.start()
    for n in range(100):
        terms_of(user_message(f"{n:03}" + "x" * MAX_CHARS))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < MAX_CHARS
