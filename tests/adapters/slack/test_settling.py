"""How much of a growing answer is settled."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.slack.preview import settled


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("one", ""),
        ("one two three", "one two "),
        ("one **two thr", "one "),
        ("one **two** three ", "one **two** "),
        ("one two three four", "one two three "),
        ("one [two](htt", "one "),
        ("one\n\n| a | b |\n|---|---|\n| 1 | 2", "one\n\n"),
        ("one two\n\n- ", "one two\n\n"),
        ("one two\n\n# ", "one "),
        ("one `two thr", "one "),
        ("```py\na = 1\nb = 2\n```", "```py\na = 1\nb = 2\n"),
    ],
)
def test_what_may_still_change_is_held_back(text: str, shown: str) -> None:
    """Half words, open marks, tables, marks of lists and headings."""
    assert settled(text) == shown


WORDS = st.lists(st.sampled_from(["alpha", "beta.", "**bold**", "`code`", "a_b", "\n\n", "1 < 2"]))


@settings(max_examples=50)
@given(WORDS, st.integers(1, 9))
def test_what_is_settled_stays(words: list[str], step: int) -> None:
    """Each longer text begins with what was settled before, so that a stream can go on."""
    text = " ".join(words)
    before = ""
    for end in range(0, len(text), step):
        now = settled(text[:end])
        assert now.startswith(before) or before.startswith(now)
        before = max(before, now, key=len)
        assert not now[:1].isspace()
