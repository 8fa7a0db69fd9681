"""Where a long text is cut for who looked for words of it."""

import pytest

from agent.tools.excerpt import place_of


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
