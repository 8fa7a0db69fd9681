"""The byte-class estimate: weights, white space, models."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tokens.estimate import rough_tokens

CLAUDE_4 = "claude-opus-4-5"
# First bytes of each class in their order, then the tokens of a byte.
CLASSES = [
    ("abcdefghijklmnopqrstuvwxyz", 0.35, 0.27),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 1.04, 0.48),
    ("0123456789", 0.66, 0.69),
    (" ", 0.07, 0.10),
    ("\n\t\r\x00\x1f\x7f", 1.02, 1.14),
    ("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 0.49, 0.42),
    ("éÿΩ", 0.80, 0.73),
    ("жԀ", 0.42, 0.43),
    ("שئ\u07ff", 0.71, 0.74),
    ("क\u0fff", 0.98, 1.0),
    ("ᄀ\u1fff", 2.5, 2.5),
    ("€\u2000\u2028", 0.61, 0.64),
    ("あ\u3000", 0.77, 0.79),
    ("漢\U0000ff01\ue000", 1.10, 1.12),
    ("한\ud7a3", 1.17, 1.23),
    ("😀\U0010ffff", 3.75, 3.95),
]
WEIGHTS = {char: weights for chars, *weights in CLASSES for char in chars}
MODELS = {None: (0, 0.54), CLAUDE_4: (1, 0.33)}
models = st.sampled_from(list(MODELS))
texts = st.text(list(WEIGHTS)).filter(lambda text: "\n\t" not in text and "\t\t" not in text)
any_texts = st.text(st.characters(codec=None))


@given(texts, models)
def test_the_estimate_is_the_sum_of_the_weights(text: str, model: str | None) -> None:
    """Over bytes of each class and over words, rounded up."""
    column, word = MODELS[model]
    expected = sum(WEIGHTS[char][column] for char in text) + word * len(text.split())
    assert rough_tokens(text, model) == math.ceil(round(expected, 2))


@pytest.mark.parametrize(
    ("space", "weight"),
    [
        ("\x85", 0.80),
        ("\xa0", 0.80),
        ("\u1680", 2.5),
        *((chr(code), 0.61) for code in (*range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F)),
        ("\u3000", 0.77),
    ],
)
def test_white_space_of_other_scripts_ends_words(space: str, weight: float) -> None:
    """Each of them, also beside characters that begin with the same byte and are none."""
    text = f"{space}né{space} {space}中。—\u1681{space}" * 100
    others = 0.35 + 0.80 + 0.07 + 1.10 + 0.77 + 0.61 + 2.5
    assert len(text.split()) == 200
    assert rough_tokens(text) == math.ceil(round(100 * (4 * weight + others) + 200 * 0.54, 2))


@given(any_texts, any_texts)
def test_more_text_never_has_fewer_tokens(head: str, tail: str) -> None:
    """Two texts together have what they have apart, but for one word and the rounding."""
    both = rough_tokens(head + tail)
    assert max(rough_tokens(head), rough_tokens(tail)) <= both
    assert both == pytest.approx(rough_tokens(head) + rough_tokens(tail), abs=3)


def test_the_empty_text_has_no_tokens() -> None:
    """Anything else has at least one."""
    assert (rough_tokens(""), rough_tokens(" ")) == (0, 1)


def test_tabs_that_indent_weigh_like_spaces() -> None:
    """A tab between words keeps its weight."""
    indented, spaced = "\n\t\t\tx" * 1000, "\n   x" * 1000
    assert rough_tokens(indented) == rough_tokens(spaced)
    assert rough_tokens("x\tx" * 1000) > rough_tokens("x x" * 1000) + 900


def test_a_lone_surrogate_is_counted() -> None:
    """Broken text must not break the meter."""
    assert rough_tokens("\ud800") == rough_tokens("?")


@pytest.mark.parametrize(
    "model",
    [
        "claude-3-opus-20240229",
        "claude-3-5-sonnet-20241022",
        "claude-sonnet-4-20250514",
        "claude-opus-4-1",
        "claude-opus-4-6",
        "claude-haiku-4-5",
        "anthropic/claude-sonnet-4.6",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    ],
)
def test_claude_3_to_4_6_have_the_older_tokenizer(model: str) -> None:
    """Capitals cost less than half there."""
    assert rough_tokens("A" * 100, model) == 49


@pytest.mark.parametrize(
    "model",
    [
        None,
        "claude-opus-4-7",
        "claude-opus-4-10",
        "claude-sonnet-5",
        "anthropic/claude-fable-5.1",
        "claude-mythos",
        "parley-offline",
    ],
)
def test_newer_and_unknown_models_have_the_newer_tokenizer(model: str | None) -> None:
    """Its estimates are the larger ones, so an unknown window is not overrun."""
    assert rough_tokens("A" * 100, model) == 105
