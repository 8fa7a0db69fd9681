"""Token estimates of texts, messages and calls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, ToolSchema, assistant_message, user_message
from agent.models.base import ModelRequest, estimate_usage
from agent.tokens.estimate import (
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
