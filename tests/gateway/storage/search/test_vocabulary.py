"""Word lists: stop words of the language of a question, everyday words for the same thing."""

import pytest

from gateway.storage.search.stems import folded, stem
from gateway.storage.search.vocabulary import MOST, STOP_WORDS, alike, stop_words_of


@pytest.mark.parametrize(
    ("question", "language"),
    [
        ("when did she die in the war", "en"),
        ("wann war die Gartenparty", "de"),
        ("hoe heet de hond van mijn broer", "nl"),
        ("quand est-ce que tu pars pour la gare", "fr"),
        ("cuándo fue la boda de mi hermana", "es"),
        ("evin anahtar\u0131 kime verildi ve neden", "tr"),
        ("missä minun avain on", "fi"),
        ("hol van a kulcs", "hu"),
        ("где мой ключ", "ru"),
        ("", "en"),
    ],
)
def test_the_language_with_most_of_the_words_decides(question: str, language: str) -> None:
    """English where nothing does: the first list."""
    assert stop_words_of(folded(question).split()) is STOP_WORDS[language]


def test_words_are_written_as_questions_are_compared() -> None:
    """A list with an accent would never match."""
    for words in STOP_WORDS.values():
        assert {folded(word) for word in words} == words


@pytest.mark.parametrize(
    ("one", "other"), [("bicycle", "bike"), ("mother", "mum"), ("couch", "sofa"), ("pets", "dog")]
)
def test_words_for_the_same_are_alike(one: str, other: str) -> None:
    """By their stems, so in all forms."""
    assert stem(other) in alike(stem(one))


def test_a_word_is_not_like_itself() -> None:
    """And few are like one; others are like none."""
    for word in ("work", "trip", "job", "food"):
        assert stem(word) not in alike(stem(word))
        assert 0 < len(alike(stem(word))) <= MOST
    assert alike("zebra") == ()
    assert "pet" not in alike("parrot")
