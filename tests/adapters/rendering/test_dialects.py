"""The signs of nested formats in one line, read back with a CommonMark parser."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.rendering.dialects import Run, _joined
from adapters.rendering.styled import BOLD, ITALIC, NO_STYLES, STRIKETHROUGH, Style
from tests.support.shown_text import COMMONMARK, inline_text

LINK = Style("link", "https://e.org")
B, I, S, L = ({mark} for mark in (BOLD, ITALIC, STRIKETHROUGH, LINK))  # noqa: E741


def line(*runs: tuple[str, set[Style]]) -> str:
    return _joined([(text, frozenset(marks)) for text, marks in runs])


@pytest.mark.parametrize(
    ("runs", "written"),
    [
        ([("a ", set()), ("b", B), (" c", set())], "a **b** c"),
        ([("a", B), ("b", B | I), ("c", I)], "**a*b***c"),
        ([("a ", B), ("b", B | I), (" c", I)], "**a *b*** *c*"),
        ([(" a ", B), ("b", set())], " **a** b"),
        ([("a", I | S), ("b", I)], "*~~a~~b*"),
        ([("a", L | B), ("b", B)], "**[a](https://e.org)b**"),
        ([("a", L), ("b", L | B)], "[a**b**](https://e.org)"),
        ([("a!", set()), ("b", L)], "a\\![b](https://e.org)"),
        ([("a", set()), ("(b)", B)], "a(b)"),
        ([("a", B), ("b", I)], "**a**b"),
    ],
)
def test_signs(runs: list[tuple[str, set[Style]]], written: str) -> None:
    """Formats are nested; one that could not be read is left out."""
    assert line(*runs) == written


MARKS = st.frozensets(st.sampled_from([BOLD, ITALIC, STRIKETHROUGH, LINK]), max_size=3)
RUNS = st.lists(st.tuples(st.text("ab .(é中)", min_size=1, max_size=4), MARKS), max_size=8)


@settings(max_examples=400)
@given(RUNS)
@example([("a", frozenset(B)), (".", frozenset(I)), ("a", NO_STYLES)])
@example([("a", frozenset(B | I)), (".", frozenset(B)), ("a", frozenset(B | I | S))])
def test_no_sign_is_ever_shown(runs: list[Run]) -> None:
    """Whatever the formats, a reader sees the text and nothing else."""
    shown = _joined(runs)
    (inline,) = COMMONMARK.parseInline(shown)
    text = inline_text(inline.children or [], lambda label, target: False)
    assert text.strip() == "".join(text for text, _ in runs).strip()
