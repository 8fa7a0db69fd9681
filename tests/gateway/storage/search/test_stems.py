"""Stems and folding: what is one word to a reader is one term."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import storable
from gateway.storage.search.stems import folded, stem


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


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("CAFÉ", "cafe"),
        ("\uff21\uff22", "ab"),
        ("IŞIK \u0131ş\u0131k İ", "isik isik i"),
        ("Łódź sjøen", "lodz sjoen"),
        ("Größe", "grosse"),
        ("電腦壞了", "电脑坏了"),
        ("чей", "чеи"),
    ],
)
def test_what_is_the_same_to_a_reader_is_one_text(text: str, same: str) -> None:
    """However it was typed."""
    assert folded(text) == same


@given(st.text(max_size=40))
def test_a_folded_text_stays(text: str) -> None:
    """Folding it again changes nothing, so question and message meet."""
    assert folded(folded(storable(text))) == folded(storable(text))
