"""Token estimates: weights, models, messages, speed."""

import time
from typing import Any

import orjson
import pytest

from agent.messages import ChatMessage, assistant_message, user_message
from agent.models.base import ModelRequest, ToolSchema
from agent.tokens import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    estimate_message,
    estimate_messages,
    estimate_tokens,
    estimate_usage,
)
from tests.support.shared import SHARED


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a", 0.35),
        ("A", 1.04),
        ("7", 0.66),
        ("a a", 2 * 0.35 + 0.07 + 0.54),
        ("a\n\t", 0.35 + 2 * 1.02),
        (".", 0.49),
        ("é", 0.80),
        ("ж", 0.42),
        ("ש", 0.71),
        ("क", 0.98),
        ("ᄀ", 2.5),
        ("€", 0.61),
        ("あ", 0.77),
        ("漢", 1.10),
        ("\N{FULLWIDTH EXCLAMATION MARK}", 1.10),
        ("한", 1.17),
        ("😀", 3.75),
    ],
)
def test_every_byte_class_has_its_weight(text: str, tokens: float) -> None:
    """A thousand repeats make the weights visible behind the rounding; each repeat is a word."""
    many = " ".join([text] * 1000)
    expected = 1000 * (tokens + 0.54) + 999 * 0.07
    assert estimate_tokens(many) == pytest.approx(expected, abs=1)


def test_the_empty_text_has_no_tokens() -> None:
    """Anything else has at least one."""
    assert (estimate_tokens(""), estimate_tokens(" ")) == (0, 1)


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
    assert estimate_tokens("A" * 100, model) == 49


@pytest.mark.parametrize(
    "model",
    [
        None,
        "claude-opus-4-7",
        "claude-opus-4-10",
        "claude-sonnet-5",
        "anthropic/claude-fable-5.1",
        "claude-mythos",
        "gpt-5",
        "parley-offline",
    ],
)
def test_newer_and_unknown_models_have_the_newer_tokenizer(model: str | None) -> None:
    """Its estimates are the larger ones, so an unknown window is not overrun."""
    assert estimate_tokens("A" * 100, model) == 105


def test_a_lone_surrogate_is_counted() -> None:
    """Broken text must not break the meter."""
    assert estimate_tokens("\ud800") == estimate_tokens("?")


def test_a_message_costs_its_text_and_the_overhead() -> None:
    """Text parts count like a plain text."""
    text = "Hello, world!"
    parts = ChatMessage(role="user", content=[{"type": "text", "text": text}])
    expected = MESSAGE_TOKENS + estimate_tokens(text)
    assert estimate_message(user_message(text)) == estimate_message(parts) == expected


def test_tool_calls_are_counted_as_json() -> None:
    """Names, ids and arguments all fill the window."""
    call: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = ChatMessage(role="assistant", content=None, tool_calls=[call])
    expected = MESSAGE_TOKENS + estimate_tokens(orjson.dumps([call]).decode())
    assert estimate_message(message) == expected


def test_images_have_a_flat_cost() -> None:
    """Their bytes are never counted as text."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    message = ChatMessage(role="user", content=[image, image])
    assert estimate_message(message) == MESSAGE_TOKENS + 2 * IMAGE_TOKENS


def test_messages_add_up() -> None:
    """The sum is over single estimates, so it can be kept incrementally."""
    messages = [user_message("one"), assistant_message("two and more")]
    assert estimate_messages(messages) == sum(estimate_message(message) for message in messages)


def test_usage_counts_tools_and_messages_in_and_the_answer_out() -> None:
    """Nothing is reported as cached."""
    request = ModelRequest([user_message("hi")], (ToolSchema("f", "Does f.", {"type": "object"}),))
    usage = estimate_usage(request, assistant_message("hello"))
    schema = estimate_tokens('[["f","Does f.",{"type":"object"}]]')
    assert usage.input_tokens == usage.prompt_tokens == schema + estimate_messages(request.messages)
    assert usage.output_tokens == estimate_message(assistant_message("hello"))


def test_a_megabyte_takes_a_few_milliseconds() -> None:
    """The floor is 20 MB/s on a quiet machine; a tenth of that fails here."""
    text = "The quick brown fox, 42 of them; 漢字 and more.\n" * 20_000
    started = time.perf_counter()
    estimate_tokens(text)
    assert len(text.encode()) / (time.perf_counter() - started) > 2e6


if SHARED:

    def test_estimates_are_near_to_what_anthropic_billed() -> None:
        """What the model wrote in a real session is estimated to 20 %, all answers together."""
        estimated = billed = 0
        for line in (SHARED / "pi" / "large-session.jsonl").read_text("utf-8").split("\n"):
            message = orjson.loads(line).get("message", {}) if line else {}
            if message.get("role") == "assistant" and message["stopReason"] in {"stop", "toolUse"}:
                billed += message["usage"]["output"]
                estimated += _estimate_of_parts(message["content"], message["model"])
        assert estimated == pytest.approx(billed, rel=0.2)

    def _estimate_of_parts(parts: list[dict[str, Any]], model: str) -> int:
        texts = [part.get("text") or part.get("thinking") or "" for part in parts]
        calls = [
            f"{part['name']} {value}"
            for part in parts
            if part["type"] == "toolCall"
            for value in part["arguments"].values()
        ]
        return sum(estimate_tokens(text, model) for text in (*texts, *calls))
