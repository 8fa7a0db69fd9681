"""Token estimates of texts, messages and calls."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, ToolSchema, assistant_message, user_message
from agent.models.base import ModelRequest, estimate_usage
from agent.tokens import (
    CALL_TOKENS,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    estimate_message,
    estimate_messages,
    estimate_tokens,
    estimate_tools,
    rough_tokens,
)
from tests.bench.estimates import SESSIONS, segments
from tests.support.shared import SHARED

CALL: Any = {
    "id": "c",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at":"it"}'},
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
TOOL = ToolSchema("f", "Does f.", {"type": "object"})
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
keys = st.sampled_from(["type", "text", "content", "input", "function", "name", "arguments"])
foreign = json_values | st.lists(st.dictionaries(keys, json_values) | json_values, max_size=3)


def test_a_text_is_estimated_by_its_bytes() -> None:
    """The model's name chooses the weights."""
    text = "Hello, World 42!\n"
    assert estimate_tokens(text) == rough_tokens(text)
    assert estimate_tokens(text, "claude-opus-4-5") == rough_tokens(text, "claude-opus-4-5")
    assert estimate_tokens(text) != estimate_tokens(text, "claude-opus-4-5")


def test_openai_models_are_counted_by_their_tokenizer() -> None:
    """As tiktoken does: "hello world" is two tokens of cl100k_base."""
    assert estimate_tokens("hello world", "openai/gpt-4") == 2
    assert estimate_tokens([user_message("hello world")], "gpt-4") == 2 + MESSAGE_TOKENS


def test_messages_add_up() -> None:
    """The sum is over single estimates, so it can be kept incrementally."""
    messages = [user_message("one"), assistant_message("two and more")]
    single = sum(estimate_message(message) for message in messages)
    assert estimate_tokens(messages) == estimate_messages(messages) == single


def test_a_message_costs_its_text_and_the_overhead() -> None:
    """Text parts count like a plain text."""
    text = "Hello, world!"
    parts = ChatMessage(role="user", content=[{"type": "text", "text": text}])
    expected = MESSAGE_TOKENS + estimate_tokens(text)
    assert estimate_message(user_message(text)) == estimate_message(parts) == expected


def test_calls_cost_name_arguments_and_an_overhead() -> None:
    """The id is part of the overhead."""
    message = ChatMessage(role="assistant", content=None, tool_calls=[CALL, CALL])
    one = estimate_tokens("look") + estimate_tokens('{"at":"it"}') + CALL_TOKENS
    assert estimate_message(message) == MESSAGE_TOKENS + 2 * one


def test_images_have_a_flat_cost() -> None:
    """Their bytes are never counted as text, also inside of another library's tool result."""
    message = ChatMessage(role="user", content=[IMAGE, {"type": "tool_result", "content": [IMAGE]}])
    assert estimate_message(message) == MESSAGE_TOKENS + 2 * IMAGE_TOKENS


def test_sound_and_files_cost_at_most_an_image() -> None:
    """Unknown parts are counted as JSON, up to a limit."""
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 100_000}}
    message = ChatMessage(role="user", content=[sound, {"type": "pause"}])
    pause = estimate_tokens('{"type":"pause"}')
    assert estimate_message(message) == MESSAGE_TOKENS + IMAGE_TOKENS + pause


def test_calls_of_other_libraries_are_counted_in_full() -> None:
    """Anthropic's calls are parts; arguments may be objects."""
    long = "word " * 10_000
    use = {"role": "assistant", "content": [{"type": "tool_use", "input": {"text": long}}]}
    function = {"name": "f", "arguments": {"text": long}}
    called = {"role": "assistant", "tool_calls": [{"function": function}, {"name": "odd"}]}
    assert estimate_message(use) > estimate_tokens(long)
    assert estimate_message(called) > IMAGE_TOKENS


@given(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), foreign))
def test_no_message_is_too_strange(message: dict[str, Any]) -> None:
    """Missing keys, other types, lone surrogates: there is always an estimate."""
    if not isinstance(message.get("tool_calls"), list | None):
        message["tool_calls"] = [message["tool_calls"]]
    assert estimate_message(message) >= MESSAGE_TOKENS
    assert estimate_message(message, "gpt-4o") >= MESSAGE_TOKENS


def test_values_that_json_does_not_know_are_counted() -> None:
    """Whatever a program left in a part: it has a representation."""
    strange = {"role": "user", "content": [{"type": "x", 1: "\ud800"}, object()]}
    assert estimate_message(strange) > MESSAGE_TOKENS


def test_tools_are_counted_as_json() -> None:
    """No tools cost nothing."""
    assert estimate_tools([TOOL]) == estimate_tokens('[["f","Does f.",{"type":"object"}]]')
    assert estimate_tools([]) == 0


def test_usage_counts_tools_and_messages_in_and_the_answer_out() -> None:
    """Nothing is reported as cached."""
    request = ModelRequest([user_message("hi")], (TOOL,))
    usage = estimate_usage(request, assistant_message("hello"))
    expected = estimate_tools([TOOL]) + estimate_messages(request.messages)
    assert usage.input_tokens == usage.prompt_tokens == expected
    assert usage.output_tokens == estimate_message(assistant_message("hello"))


if SHARED:

    @pytest.mark.parametrize("name", SESSIONS)
    def test_answers_are_near_to_what_anthropic_billed(name: str) -> None:
        """Text and calls of a real session, all answers together; thoughts are not recorded."""
        steps = [step for part in segments(SHARED / "pi" / f"{name}.jsonl") for step in part]
        answers = [step for step in steps if step.usage and "opaque" not in step.message]
        billed = sum(step.usage.output_tokens for step in answers if step.usage)
        estimated = sum(estimate_message(step.message, step.model) for step in answers)
        assert estimated == pytest.approx(billed, rel=0.1)


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
