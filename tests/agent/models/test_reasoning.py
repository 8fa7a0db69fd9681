"""ReasoningFilter: what is visible does not depend on how the text was cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.reasoning import CLOSERS, ReasoningFilter

PARTS = ["<think>", "</think>", "<REASONING_SCRATCHPAD>", "</reasoning_scratchpad>", "`", "```\n"]
HARMONY = ["<|channel|>analysis", "<|message|>", "<|end|>", "<|channel|>final<|message|>"]
SPOKEN = ["analysis", "assistantfinal", "<|start|>assistant", "[/THINK]", "◁/think▷", '"', ". "]
TEXTS = st.lists(
    st.sampled_from([*PARTS, *HARMONY, *SPOKEN, "<", "<thi", "a", "b ", "\n", "İ", "K"]),
    max_size=12,
).map("".join)


def split(
    text: str, cuts: list[int] | None = None, *, opened: bool = False, cut: bool = False
) -> tuple[str, str]:
    """Feed the text in pieces; return what is visible and the reasoning."""
    splitter = ReasoningFilter(opened=opened)
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts or [])})
    shown = ""
    for start, end in pairwise(edges):
        new = splitter.feed(text[start:end])
        shown = new if splitter.takes_back else shown + new
    new = splitter.close(cut=cut)
    return new if splitter.takes_back else shown + new, splitter.reasoning


@given(TEXTS, st.lists(st.integers(0, 100)), st.booleans(), st.booleans())
def test_cuts_do_not_matter(text: str, cuts: list[int], opened: bool, cut: bool) -> None:
    """Any way of cutting gives the same as the text in one piece."""
    assert split(text, cuts, opened=opened, cut=cut) == split(text, opened=opened, cut=cut)


@given(st.text(alphabet="<>/thinkab `\n", max_size=40), st.lists(st.integers(0, 100)))
def test_text_without_tags_is_unchanged(text: str, cuts: list[int]) -> None:
    """Where there is no tag nothing is lost."""
    if "<think>" not in text and "</think>" not in text:
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


@pytest.mark.parametrize("opener", CLOSERS)
@pytest.mark.parametrize("upper", [False, True])
def test_each_mark_of_the_table_hides_a_thought(opener: str, upper: bool) -> None:
    """Whatever family of models writes it, and in any case of letters."""
    for closer in CLOSERS[opener]:
        marks = (opener.upper(), closer.upper()) if upper else (opener, closer)
        assert split(f"{marks[0]}Hm.\n{marks[1]}\n\nHello!", [3, 9]) == ("Hello!", "Hm.")


LONE = sorted({mark for marks in CLOSERS.values() for mark in marks} - {"<|end|>", "<|call|>"})


@pytest.mark.parametrize("closer", LONE)
@pytest.mark.parametrize(
    "text",
    [
        "Hm. Greet back.\n{}\n\nHello!",
        "Hm. Greet back.{}Hello!",
        "Hm. Greet back. {} Hello!",
        "Hm, greet back{}Hello!",
        "Hm, greet back {}\nHello!",
        "Hm. Is it `x`?\n\n```\nx = 1\n```\n{}\nHello!",
        'Hm. They said "hi"{}Hello!',
        "用户打招呼。{}Hello!",
        "Hm.{}\nOr so.{}\nHello!",
        "Hm. Greet back 😀 {}Hello!",
    ],
)
def test_a_lone_closing_mark_hides_what_came_before_it(closer: str, text: str) -> None:
    """Templates put the opening one into the prompt, so the model does not write it."""
    visible, reasoning = split(text.replace("{}", closer), [5, 17, 20, 22])
    assert visible == "Hello!"
    assert reasoning.startswith(("Hm", "用"))
    assert closer not in reasoning


@pytest.mark.parametrize(
    "text",
    [
        "Write `</think>` to close it.",
        "Close it with </think> and go on.",
        "The marks are <b> and </thinking>, always.",
        'It ends with "</think>" here.',
        "It ends with “</think>” here.",
        "```xml\n</think>\n```\nThat is all.",
        "用 </think> 来结束。",
        "The tag (</think>) ends it.",
        "Either `</think>`\nor `[/THINK]`.",
        "a - </thought> - b",
        "Magistral closes with [/THINK] instead.",
        "assistantfinal is no mark, nor is analysis.",
        "Wrap it in <thinking> and </thinking> tags.",
        "A <thought experiment> is fun.",
        "3 < 4, <b>bold</b>, <a href='x'>y</a> <t r=1>",
        "~~~\n<think>a</think>\n~~~\nHi",
        "Such as:\n\n    <think>a</think>\n\nHi",
    ],
)
def test_a_mention_of_a_mark_is_text(text: str) -> None:
    """In code, in quotes, in the middle of a sentence."""
    assert split(text, [2, 7, 15, 18]) == (text, "")


@pytest.mark.parametrize(
    ("text", "visible", "reasoning"),
    [
        ("</think>\n\nHi", "Hi", ""),
        ("\n\n</think>\n\nHi", "Hi", ""),
        ("<think>a</think></think>Hi", "Hi", "a"),
        ("Hm.\n</think>", "", "Hm."),
        ("<think>Hm.\n</thinking>\n\nHi", "Hi", "Hm."),
        ("<thought>Hm.[/THINK]Hi", "Hi", "Hm."),
        ("<think>a\n</thinking>b</think>Hi", "Hi", "a\n</thinking>b"),
        (
            f"{HARMONY[0]}<|message|>Hm.<|end|><|start|>assistant{HARMONY[3]}Hi<|return|>",
            "Hi",
            "Hm.",
        ),
        ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Hi", "Hi", "Hm."),
        ("Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi<|end|>", "Hi", "Hm."),
        ("<|channel|>final<|message|>Hi<|return|>", "Hi", ""),
        ("analysisWe greet back.assistantfinalHi!", "Hi!", "We greet back."),
        ("analysis shows that assistantfinal is no word", None, ""),
        ("◁think▷Hm.◁/think▷Hi", "Hi", "Hm."),
        ("<think >Hm.</think >Hi", "Hi", "Hm."),
        ("< think >Hm.</ think>Hi", "Hi", "Hm."),
        ("Sure.\n<think type='deep' id=1>Hm.</think>Hi", "Sure.\nHi", "Hm."),
        ("<antThinking>Hm.</antThinking>Hi", "Hi", "Hm."),
        ("<|think|>Hm.</think>Hi", "Hi", "Hm."),
        ("<|channel|>final <|constrain|>json<|message|>{}", "{}", ""),
        ("<|begin_of_solution|>Hi<|end_of_solution|>", "Hi", ""),
    ],
)
def test_odd_marks(text: str, visible: str | None, reasoning: str) -> None:
    """As servers pass them on whose own parser is off."""
    assert split(text, [4, 30, 33]) == (text if visible is None else visible, reasoning)


@pytest.mark.parametrize(
    ("text", "cut", "visible", "reasoning", "again"),
    [
        ("Hm.\n</think>\nHi", False, "Hi", "Hm.", True),
        ("<think>Hm.</think>Hi", False, "Hi", "Hm.", True),
        ("Hi there", False, "Hi there", "", False),
        ("Hm, so", True, "", "Hm, so", True),
        ("", False, "", "", True),
    ],
)
def test_a_model_that_began_with_a_thought_is_expected_to_do_so_again(
    text: str, cut: bool, visible: str, reasoning: str, again: bool
) -> None:
    """Nothing is shown before the closing mark; without one it was no thought after all."""
    splitter = ReasoningFilter(opened=True)
    assert splitter.feed(text) == (visible if again else "")
    splitter.close(cut=cut)
    assert splitter.began_inside == again
    assert split(text, [3], opened=True, cut=cut) == (visible, reasoning)


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
