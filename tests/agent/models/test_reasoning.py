"""ReasoningFilter: what is visible does not depend on how the text was cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.reasoning import ReasoningFilter

PARTS = ["<think>", "</think>", "<REASONING_SCRATCHPAD>", "</reasoning_scratchpad>", "`", "```\n"]
TEXTS = st.lists(
    st.sampled_from([*PARTS, "<", "<thi", "a", "b ", "\n", "İ", "K"]), max_size=12
).map("".join)


def split(text: str, cuts: list[int] | None = None) -> tuple[str, str]:
    """Feed the text in pieces; return what is visible and the reasoning."""
    splitter = ReasoningFilter()
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts or [])})
    shown = [splitter.feed(text[start:end]) for start, end in pairwise(edges)]
    return "".join([*shown, splitter.close()]), splitter.reasoning


@given(TEXTS, st.lists(st.integers(0, 100)))
def test_cuts_do_not_matter(text: str, cuts: list[int]) -> None:
    """Any way of cutting gives the same as the text in one piece."""
    assert split(text, cuts) == split(text)


@given(st.text(alphabet="<>/thinkab `\n", max_size=40), st.lists(st.integers(0, 100)))
def test_text_without_tags_is_unchanged(text: str, cuts: list[int]) -> None:
    """Where there is no opening tag nothing is lost."""
    if "<think>" not in text:
        assert split(text, cuts) == (text, "")


@given(st.text(alphabet="ab <\n", max_size=30), st.text(alphabet="xyz", min_size=1, max_size=30))
def test_a_leading_block_is_never_visible(answer: str, thought: str) -> None:
    """What stands in the block is reasoning, the rest is the answer."""
    visible, reasoning = split(f"<think>{thought}</think>{answer}", [3, 9, 12, 20])
    assert visible == answer.lstrip()
    assert reasoning == thought


@pytest.mark.parametrize(
    ("text", "visible", "reasoning"),
    [
        ("<Think>a</THINK>b", "b", "a"),
        ("<REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>\n\nb", "b", "a"),
        ("<think>a</think><think>b</think>c", "c", "a\nb"),
        ("Wait <think>a</think> there", "Wait  there", "a"),
        ("<think>cut short", "", "cut short"),
        ("Use the <think> tag.", "Use the <think> tag.", ""),
        ("Write `<think>` and `</think>`.", "Write `<think>` and `</think>`.", ""),
        ("```\n<think>a</think>\n```", "```\n<think>a</think>\n```", ""),
        ("<think></think>b", "b", ""),
        ("a <thin", "a <thin", ""),
    ],
)
def test_examples(text: str, visible: str, reasoning: str) -> None:
    """Blocks of both names are reasoning; mentions of a tag and code are text."""
    assert split(text) == (visible, reasoning)


def test_text_is_shown_as_early_as_possible() -> None:
    """Only what may become a tag is held back."""
    splitter = ReasoningFilter()
    assert [splitter.feed(piece) for piece in ("Hi <", "b", "> <th")] == ["Hi ", "<b", "> "]


@pytest.mark.parametrize(
    ("text", "held_back"),
    [
        ("Hi", ""),
        ("Hi <thi", "<thi"),
        ("<think>a</think>b", "a"),
        ("<think>a</think>b<think>cut sho", "acut sho"),
    ],
)
def test_what_is_held_back_is_known(text: str, held_back: str) -> None:
    """It has been written, and paid for, all the same."""
    splitter = ReasoningFilter()
    splitter.feed(text)
    assert splitter.held_back == held_back
