"""Forms and compounds: what is looked for beside a word finds them, in whichever language."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.storage.search.forms import LEAST_BEGINNING, bare, shared_terms, shortened, sought
from gateway.storage.search.stems import stem


def finds(asked: str, said: str) -> bool:
    """Whether what is looked for beside one word is held by a message with the other."""
    held = {stem(said), *shared_terms(said)}
    looked_for = (*sought(asked).near, *sought(asked).ends)
    return any(
        any(term.startswith(each[:-1]) for term in held) if each.endswith("*") else each in held
        for each in looked_for
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("termin", "zahnarzttermin"),
        ("termine", "zahnarzttermin"),
        ("zahnarzt", "zahnarzttermine"),
        ("feest", "verjaardagsfeest"),
        ("stuga", "sommarstugan"),
        ("talo", "talossamme"),
        ("katu", "kadulla"),
        ("mokki", "mokillamme"),
        ("ev", "evlerimizden"),
        ("kitap", "kitabimi"),
        ("haz", "hazainkban"),
        ("kert", "kertunkben"),
    ],
)
def test_a_word_and_what_grew_from_it_find_each_other(one: str, other: str) -> None:
    """Asked for the one, or for the other."""
    assert finds(one, other)
    assert finds(other, one)


@pytest.mark.parametrize(
    ("asked", "said"), [("termin", "wetter"), ("ev", "evren"), ("talo", "talvi"), ("haz", "hajo")]
)
def test_other_words_are_not_found(asked: str, said: str) -> None:
    """Though they begin alike."""
    assert not finds(asked, said)


@pytest.mark.parametrize(
    ("word", "left"),
    [("evlerimizden", "ev"), ("talossamme", "talo"), ("hazainkban", "haz"), ("ssa", "ssa")],
)
def test_endings_are_put_behind_one_another(word: str, left: str) -> None:
    """All of them go, as long as a vowel is left."""
    assert bare(word) == left


@pytest.mark.parametrize("word", ["größe", "東京", "собака", "x9"])
def test_of_other_letters_there_are_no_parts(word: str) -> None:
    """Their own terms are wide enough."""
    assert not shared_terms(word)
    assert not any(sought(word))


@settings(max_examples=200)
@given(st.text("abcdeikmnoprstuvz", min_size=1, max_size=30))
def test_what_is_looked_for_is_bounded(word: str) -> None:
    """A few terms in the index, in a question no more than the word has letters, twice."""
    assert len(shared_terms(word)) <= 2
    shared = sought(word)
    assert len(shared.near) + len(shared.ends) <= 2 * len(word) + 30
    for beginning in (each for each in shared.near if each.endswith("*")):
        assert len(beginning) > LEAST_BEGINNING
    assert all(map(word.startswith, shortened(word)))
    assert word.startswith(bare(word))
