"""Where a long text is cut: at words, and for who looked for some of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.excerpt import beginning_of, end_of, place_of


@pytest.mark.parametrize(
    ("query", "text", "found"),
    [
        ("Zebra?", "a long way to the zebra", "zebra"),
        ("the zebra of the zoo", "the way to a zebra", "zebra"),
        ("斑马在哪里", "他们说斑马", "斑马"),
        ("москва", "мы были в Москве", "Москве"),
        ("nothing of it", "a long way", ""),
    ],
    ids=["folded", "the longest", "Chinese", "another form", "none"],
)
def test_the_longest_word_is_shown(query: str, text: str, found: str) -> None:
    """As it was asked for, else in another form; the beginning where there is none."""
    assert place_of(query, text) == text.index(found)


@pytest.mark.parametrize(
    ("text", "end", "beginning"),
    [
        ("just as long as it may be", "just as long as it may be", "just as long as it may be"),
        ("it said: no such token was given", "…no such token was given", "it said: no such token…"),
        (
            "the Traceback\nno such token was given",
            "…no such token was given",
            "the Traceback\nno such…",
        ),
        ("x" * 40 + " end", "…" + "x" * 20 + " end", "…".join(["x" * 24, ""])),
    ],
    ids=["whole", "words", "lines", "a long word"],
)
def test_a_long_text_is_cut_between_words(text: str, end: str, beginning: str) -> None:
    """With a mark; inside of a word only where much would go with it."""
    assert end_of(text, 25) == end
    assert beginning_of(text, 25) == beginning


@given(st.text("a \n", max_size=60), st.integers(5, 50))
def test_an_end_of_a_text_is_no_longer_than_it_may_be(text: str, most_chars: int) -> None:
    """What is shown stands in it, and a beginning is cut likewise."""
    cut = end_of(text, most_chars)
    assert len(cut) <= most_chars
    assert text.endswith(cut.removeprefix("…"))
    assert beginning_of(text[::-1], most_chars) == cut[::-1]
