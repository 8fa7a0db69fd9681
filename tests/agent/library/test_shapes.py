"""Anthropic's shape: what comes back is as it came in, or shorter, and always well formed."""

import copy
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent import compact_messages
from agent.library.shapes import ShapedMessages, asks, is_anthropic

Messages = list[dict[str, Any]]

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "abc"}


def use(n: int, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"t{n}", "name": "look", "input": {"n": n, **arguments}}


def result(n: int, text: str = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"t{n}", "content": text}


def step(n: int, chars: int = 4_000) -> Messages:
    """Return a question, two calls at once, their results, an answer."""
    return [
        {"role": "user", "content": f"question {n}"},
        {
            "role": "assistant",
            "content": [
                THOUGHT,
                {"type": "text", "text": "let me see"},
                use(2 * n),
                use(2 * n + 1),
            ],
        },
        {
            "role": "user",
            "content": [
                result(2 * n, f"result {n} " + "y " * (chars // 2)),
                {**result(2 * n + 1, "none"), "is_error": True},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": f"answer {n}"}]},
    ]


def conversation(steps: int) -> Messages:
    return [message for n in range(steps) for message in step(n)]


def blocks_of(message: dict[str, Any]) -> Messages:
    return message["content"] if isinstance(message["content"], list) else []


def complaints(messages: Messages) -> list[str]:
    """Return what Anthropic's API would refuse."""
    found = []
    if messages[0]["role"] != "user":
        found.append("the first message is not the user's")
    asked: list[str] = []
    for message in messages:
        blocks = blocks_of(message)
        answered = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if sorted(answered) != sorted(asked):
            found.append(f"calls {asked}, results {answered}")
        if not message["content"]:
            found.append("an empty message")
        asked = [b["id"] for b in blocks if b["type"] == "tool_use"]
    return found + ([f"calls without results: {asked}"] if asked else [])


def test_what_need_not_change_comes_back_as_it_is() -> None:
    """The very dicts."""
    messages = conversation(3)
    found = compact_messages(messages, context_length=200_000)
    assert found.level == "none"
    assert all(one is two for one, two in zip(found.messages, messages, strict=True))


def test_a_long_conversation_comes_back_short_and_well_formed() -> None:
    """Calls with their results, in Anthropic's shape; the input is not changed."""
    messages = conversation(30)
    before = copy.deepcopy(messages)
    found = compact_messages(messages, context_length=20_000)
    assert messages == before
    assert found.level != "none"
    assert found.tokens_after <= 6_000
    assert complaints(found.messages) == []
    assert found.messages[-1] is not messages[0]
    assert found.messages[-1]["content"] == messages[-1]["content"]


def test_thoughts_that_were_signed_for_another_history_go() -> None:
    """The API refuses them behind a changed one."""
    found = compact_messages(conversation(30), context_length=20_000)
    assert "signature" not in str(found.messages)


def test_a_result_that_is_shortened_is_still_an_error() -> None:
    """And still a result of its call."""
    messages = conversation(20)
    for n, message in enumerate(messages):
        for block in blocks_of(message):
            if "is_error" in block:
                block["content"] = f"Traceback {n}: " + "z " * 500
    found = compact_messages(messages, context_length=80_000)
    shown = [block for message in found.messages for block in blocks_of(message)]
    shortened = [b for b in shown if b.get("is_error") and len(b["content"]) < 500]
    assert found.level == "prune"
    assert shortened
    assert complaints(found.messages) == []


def test_evicted_are_positions_of_the_callers_list() -> None:
    """A message of several results counts once."""
    messages = conversation(30)
    found = compact_messages(messages, context_length=20_000)
    assert found.evicted == sorted(set(found.evicted))
    assert 0 < len(found.evicted) < len(messages)
    assert len(messages) - 1 not in found.evicted


def test_a_compacted_list_goes_on() -> None:
    """Its summary is recognised, and updated."""
    first = compact_messages(conversation(30), context_length=20_000)
    longer = [*first.messages, *[m for n in range(30, 60) for m in step(n)]]
    second = compact_messages(longer, context_length=20_000)
    assert complaints(second.messages) == []
    assert str(second.messages).count("[CONTEXT COMPACTION]") == 1


def test_a_call_without_a_result_gets_one() -> None:
    """As in OpenAI's shape."""
    found = compact_messages([*conversation(1), *step(1)[:2]], context_length=200_000)
    assert complaints(found.messages) == []
    assert "No result" in str(found.messages[-1])


def test_blocks_of_the_sdk_are_taken() -> None:
    """`response.content` is a list of objects."""
    block = use(7)
    answer = {"role": "assistant", "content": [SimpleNamespace(model_dump=lambda **_: block)]}
    messages = [{"role": "user", "content": "go"}, answer]
    assert is_anthropic(answer)
    found = compact_messages(messages, context_length=200_000)
    assert found.messages[1] is answer
    assert found.messages[2]["content"][0]["tool_use_id"] == "t7"


def test_a_list_of_texts_alone_is_the_same_in_both_shapes() -> None:
    """It is left to OpenAI's, and no key is added."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert not is_anthropic(messages[0])
    assert compact_messages(messages, context_length=2_000).messages == messages


def test_results_are_no_question() -> None:
    """A message of the user with nothing but results opens no round."""
    assert asks({"role": "user", "content": [result(1), {"type": "text", "text": "and now?"}]})
    assert not asks({"role": "user", "content": [result(1)]})


def test_a_message_that_is_taken_apart_is_put_together() -> None:
    """Text behind results stays in their message."""
    shaped = ShapedMessages()
    mixed = {"role": "user", "content": [result(1), {"type": "text", "text": "and now?"}]}
    for message in ({"role": "user", "content": "go"}, {"role": "assistant", "content": [use(1)]}):
        shaped.append(message)
    roles = [entry.message["role"] for entry in shaped.append(mixed)]
    assert roles == ["tool", "user"]
    assert shaped.shown([entry.message for entry in shaped.entries])[-1] is mixed


@given(st.lists(st.integers(0, 6_000), min_size=1, max_size=25), st.sampled_from([8_000, 30_000]))
def test_whatever_the_sizes_the_api_takes_the_result(sizes: list[int], window: int) -> None:
    """Each step of another size."""
    messages = [message for n, chars in enumerate(sizes) for message in step(n, chars)]
    for engine in ("compressor", "rounds"):
        found = compact_messages(messages, context_length=window, engine=engine)
        assert complaints(found.messages) == []
