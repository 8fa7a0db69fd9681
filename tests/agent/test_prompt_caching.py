"""Where a request is marked: every kind of content, in both layouts, by both strategies."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import apply_cache_control
from agent.messages import (
    ChatMessage,
    assistant_message,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import ChatModel
from agent.prompt_caching import (
    KEY,
    MAX_BREAKPOINTS,
    STRATEGIES,
    CacheLayout,
    anchored_places,
    cache_layout_of,
    is_marked,
    marker_of,
)
from agent.settings import CachingSettings
from agent.view.view import Summary
from gateway.cli.run import caching_text
from tests.support.conversations import PNG, conversation_of, summary_message
from tests.support.scripted_model import tool_call

MARK = {"type": "ephemeral"}
SYSTEM = ChatMessage(role="system", content="You help.")
SUMMARY = summary_message(Summary("Much was done.", 4, 90))
REQUESTS = st.binary(min_size=2, max_size=40).map(lambda drawn: [SYSTEM, *conversation_of(drawn)])
LAYOUTS = st.booleans()
NAMES = st.sampled_from(sorted(STRATEGIES))


@dataclass
class Model:
    """What the start-up line asks of a model."""

    provider: str
    name: str
    cache_layout: CacheLayout | None


def calling(*ids: str) -> ChatMessage:
    calls = [tool_call("read", {}, each) for each in ids]
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


def step(calls: int, name: str = "t") -> list[ChatMessage]:
    """Return a group of parallel calls with their results."""
    ids = [f"{name}{n}" for n in range(calls)]
    return [calling(*ids), *(tool_message(each, "read", "found") for each in ids)]


def places(messages: list[ChatMessage], **options: Any) -> list[int]:
    """Return which messages are marked."""
    marked = apply_cache_control(messages, **options)
    return [n for n, message in enumerate(marked) if is_marked(message)]


def last_marked(message: ChatMessage, **options: Any) -> ChatMessage:
    """Return what becomes of the last message of a request."""
    return apply_cache_control([SYSTEM, message], **options)[-1]


# system_and_3


def test_the_default_marks_the_system_prompt_and_the_last_three_messages() -> None:
    """Breakpoints stand on the system prompt and the last three other messages."""
    messages = [SYSTEM, *(user_message(str(n)) for n in range(6))]
    assert places(messages) == [0, 4, 5, 6]


def test_without_a_system_prompt_three_messages_are_marked() -> None:
    """Only the last three are marked where no system prompt leads."""
    assert places([user_message(str(n)) for n in range(6)]) == [3, 4, 5]


def test_a_short_request_is_marked_all_over() -> None:
    """Fewer than three messages are all marked; an empty request stays empty."""
    assert places([SYSTEM, user_message("a")]) == [0, 1]
    assert apply_cache_control([]) == []


def test_in_the_envelope_a_marker_on_a_tool_result_is_left_out() -> None:
    """The default does not mark tool results where another API is around Anthropic's."""
    messages = [SYSTEM, user_message("a"), *step(2)]
    assert places(messages) == [0, 2, 3, 4]
    assert places(messages, native=False) == [0, 2]


# What carries a marker


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("native", [True, False])
def test_text_becomes_one_marked_block(strategy: str, native: bool) -> None:
    """String content turns into one text block that carries the marker."""
    marked = last_marked(user_message("hi"), strategy=strategy, native=native)
    assert marked == {
        "role": "user",
        "content": [{"type": "text", "text": "hi", KEY: MARK}],
    }


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("native", [True, False])
def test_of_a_list_the_last_block_is_marked(strategy: str, native: bool) -> None:
    """List content carries the marker on its last block, whatever that is."""
    message = ChatMessage(role="user", content=[{"type": "text", "text": "look"}, PNG])
    marked = last_marked(message, strategy=strategy, native=native)
    assert marked["content"] == [{"type": "text", "text": "look"}, {**PNG, KEY: MARK}]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("content", [None, "", []])
def test_without_content_the_message_is_marked(strategy: str, native: bool, content: Any) -> None:
    """None and empty contents stay as they are; the marker is a key of the message."""
    message = ChatMessage(role="assistant", content=content)
    marked = last_marked(message, strategy=strategy, native=native)
    assert marked == {"role": "assistant", "content": content, KEY: MARK}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_native_tool_result_is_marked_itself(strategy: str) -> None:
    """A tool message carries the marker as a key, its text stays a string."""
    marked = last_marked(tool_message("t", "read", "found"), strategy=strategy)
    assert (marked["content"], marked["cache_control"]) == ("found", MARK)


def test_anchored_marks_the_text_of_a_tool_result_in_the_envelope() -> None:
    """A content part of a tool message carries the marker there."""
    marked = last_marked(tool_message("t", "read", "found"), strategy="anchored", native=False)
    assert marked["content"] == [{"type": "text", "text": "found", KEY: MARK}]
    assert KEY not in marked


def test_an_hour_is_part_of_the_marker() -> None:
    """The longer life is written into the marker, the shorter one is not."""
    assert marker_of(last_marked(user_message("a"), ttl="1h")) == {"type": "ephemeral", "ttl": "1h"}
    assert marker_of(last_marked(user_message("a"), ttl="5m")) == MARK


@pytest.mark.parametrize("ttl", ["", "10m", "1H", "5"])
def test_unknown_ttls_are_refused(ttl: str) -> None:
    """Only 5m and 1h exist."""
    with pytest.raises(ValueError, match="5m or 1h"):
        apply_cache_control([SYSTEM], ttl=ttl)


def test_unknown_strategies_are_refused() -> None:
    """The message names those that exist."""
    with pytest.raises(ValueError, match="system_and_3, anchored"):
        apply_cache_control([SYSTEM], strategy="all")


def test_old_markers_do_not_stay() -> None:
    """A request that was marked before, on any message or part, ends with four markers."""
    old = {"type": "ephemeral", "ttl": "1h"}
    part = {"type": "text", "text": "x", KEY: old}
    messages = [
        SYSTEM,
        *[ChatMessage(role="user", content=[part, dict(part)]) for _ in range(5)],
        *[ChatMessage(role="user", content="y", cache_control=old) for _ in range(3)],
    ]
    marked = apply_cache_control(messages)
    assert [marker_of(message) for message in marked] == [MARK, *[None] * 5, MARK, MARK, MARK]
    assert messages[1]["content"] == [part, part]


# anchored


def test_a_growing_view_is_marked_at_the_prompt_and_both_ends() -> None:
    """System prompt, end of the request before, end."""
    messages = [SYSTEM, user_message("a"), *step(1), *step(2)]
    assert places(messages, strategy="anchored") == [0, 3, 6]


@pytest.mark.parametrize("strategy_of_next", [step(24, "n"), [assistant_message("ok")]])
def test_the_end_of_a_request_is_marked_in_the_next(strategy_of_next: list[ChatMessage]) -> None:
    """However wide the step is that follows, the next request looks where this one ended."""
    before = [SYSTEM, user_message("a"), *step(3)]
    after = [*before, *strategy_of_next, user_message("b")]
    end = len(before) - 1
    assert end in places(before, strategy="anchored")
    assert end in places(after, strategy="anchored")


def test_a_compacted_view_is_marked_behind_head_and_summary() -> None:
    """A short head stands for the system prompt, which the look-back from it reaches."""
    head = [SYSTEM, user_message("a"), assistant_message("b")]
    messages = [*head, SUMMARY, user_message("c"), *step(1)]
    assert places(messages, strategy="anchored") == [2, 3, 4, 6]


def test_a_summary_without_a_head_leaves_the_prompt_marked() -> None:
    """Where nothing stands before the summary but the prompt, the prompt is marked."""
    assert places([SYSTEM, SUMMARY, user_message("c")], strategy="anchored") == [0, 1, 2]
    assert places([SUMMARY, user_message("c")], strategy="anchored") == [0, 1]


def test_of_several_summaries_the_last_one_is_marked() -> None:
    """Summaries next to each other have one end."""
    messages = [SYSTEM, user_message("a"), SUMMARY, SUMMARY, user_message("c")]
    assert places(messages, strategy="anchored") == [1, 3, 4]


def test_behind_a_long_head_the_prompt_is_marked_too() -> None:
    """The first compaction moves the head by its note: the prompt is found all the same."""
    messages = [SYSTEM, user_message("a"), *step(24), SUMMARY, user_message("c"), *step(1)]
    head = len(messages) - 5
    assert places(messages, strategy="anchored") == [0, head, head + 1, len(messages) - 1]


@pytest.mark.parametrize(("blocks", "is_near"), [(18, True), (19, False)])
def test_the_look_back_reaches_twenty_blocks(blocks: int, is_near: bool) -> None:
    """Its own block is the first of them; behind what it reaches the prompt needs no mark."""
    head = [user_message(str(n)) for n in range(blocks)]
    messages = [SYSTEM, *head, SUMMARY, user_message("c")]
    marked = [blocks, blocks + 1, blocks + 2]
    assert places(messages, strategy="anchored") == (marked if is_near else [0, *marked])


@pytest.mark.parametrize("kind", ["calls", "parts", "thoughts"])
def test_all_blocks_of_a_message_count(kind: str) -> None:
    """Calls, parts of a content and signed thinking are blocks like texts."""
    wide = {
        "calls": calling("c1", "c2", "c3"),
        "parts": ChatMessage(role="user", content=[PNG, PNG, PNG]),
        "thoughts": ChatMessage(
            role="assistant", content="b", opaque={"anthropic": [{"type": "thinking"}] * 2}
        ),
    }
    head = [user_message(str(n)) for n in range(16)]
    messages = [SYSTEM, *head, wide[kind], SUMMARY, user_message("c")]
    assert 0 in places(messages, strategy="anchored")
    messages[17] = user_message("one block")
    assert 0 not in places(messages, strategy="anchored")


def test_a_wide_step_behind_a_long_head_does_without_the_summary() -> None:
    """The four go where a miss would cost most."""
    front = [SYSTEM, user_message("a"), *step(24), SUMMARY]
    messages = [*front, user_message("c"), *step(24, "w")]
    expected = [0, len(front) - 2, len(front), len(messages) - 1]
    assert places(messages, strategy="anchored") == expected


def test_the_end_of_what_was_rewritten_is_marked() -> None:
    """What the next compaction leaves as it is can be read then."""
    messages = [SYSTEM, user_message("a"), *step(2), *step(2, "b"), user_message("c")]
    assert places(messages, strategy="anchored", settled=[2, 4]) == [0, 2, 4, 8]
    compacted = [SYSTEM, user_message("a"), SUMMARY, *step(2), user_message("c"), *step(1, "b")]
    assert places(compacted, strategy="anchored", settled=[5]) == [1, 2, 5, 8]
    assert places(compacted, strategy="anchored", settled=[4, 5]) == [1, 4, 5, 8]


def test_an_end_that_is_not_there_is_not_marked() -> None:
    """Fixing may have taken messages out; the default marks none of these."""
    messages = [SYSTEM, user_message("a"), *step(1), user_message("b"), user_message("c")]
    assert places(messages, strategy="anchored", settled=[9]) == [0, 1, 5]
    assert places(messages, settled=[1]) == [0, 3, 4, 5]


def test_anchors_follow_from_the_list_alone() -> None:
    """The same list, read anew after a restart, is marked in the same places."""
    messages = [SYSTEM, user_message("a"), *step(3), SUMMARY, user_message("b")]
    assert anchored_places(messages) == anchored_places(copy.deepcopy(messages))


# Invariants


@given(REQUESTS, NAMES, LAYOUTS)
def test_at_most_four_are_marked_and_nothing_else_is_copied(
    messages: list[ChatMessage], strategy: str, native: bool
) -> None:
    """Unmarked messages are the very objects, marked ones say the same, the input is untouched."""
    before = copy.deepcopy(messages)
    marked = apply_cache_control(messages, strategy=strategy, native=native)
    pairs = list(zip(messages, marked, strict=True))
    assert messages == before
    assert sum(is_marked(message) for message in marked) <= MAX_BREAKPOINTS
    assert all(one is two for one, two in pairs if not is_marked(two))
    assert [text_of(one) for one, _ in pairs] == [text_of(two) for _, two in pairs]


@given(REQUESTS, NAMES, LAYOUTS)
def test_marking_what_is_marked_changes_nothing(
    messages: list[ChatMessage], strategy: str, native: bool
) -> None:
    """A marked request, marked again, has the same markers in the same places."""
    once = apply_cache_control(messages, strategy=strategy, native=native)
    assert apply_cache_control(once, strategy=strategy, native=native) == once


@given(REQUESTS, LAYOUTS, st.integers(1, 30))
def test_each_request_looks_where_the_one_before_ended(
    messages: list[ChatMessage], native: bool, calls: int
) -> None:
    """Whatever a step adds to the end of a request, that end is marked in the next one."""
    after = [*messages, *step(calls), user_message("next")]
    ends = (len(messages) - 1, len(after) - 1)
    marked = places(after, strategy="anchored", native=native)
    assert set(ends) <= set(marked)


# What a model takes


@pytest.mark.parametrize(
    ("provider", "name", "base_url", "layout"),
    [
        ("anthropic", "claude-sonnet-5-5", None, "native"),
        ("anthropic", "claude-sonnet-5-5", "http://127.0.0.1:9", "native"),
        ("openrouter", "anthropic/claude-sonnet-5.5", None, "envelope"),
        ("openai", "anthropic/claude-opus-5", "https://openrouter.ai/api/v1", "envelope"),
        ("openai", "anthropic/claude-opus-5", "https://eu.openrouter.ai/api/v1", "envelope"),
        ("openai", "anthropic/claude-opus-5", "https://notopenrouter.ai/api/v1", None),
        ("openai", "claude-opus-5", None, None),
        ("openrouter", "openai/gpt-6.1-terra", None, None),
        ("nous", "anthropic/claude-opus-5", None, None),
        ("anthropic", "kimi-k3", "https://proxy.example", None),
    ],
)
def test_layout_of_a_model(
    provider: str, name: str, base_url: str | None, layout: CacheLayout | None
) -> None:
    """Claude takes breakpoints on Anthropic's API and on OpenRouter; nothing else does."""
    assert cache_layout_of(provider, name, base_url) == layout


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            Model("anthropic", "claude-opus-5", "native"),
            "💾 Prompt caching: ENABLED (Claude via Anthropic, 1h TTL)",
        ),
        (
            Model("openai", "anthropic/claude-opus-5", "envelope"),
            "💾 Prompt caching: ENABLED (Claude via OpenRouter, 1h TTL)",
        ),
        (
            Model("openai", "gpt-6.1-terra", None),
            "💾 Prompt caching: left to the provider (gpt-6.1-terra takes no breakpoints)",
        ),
        (
            Model("offline", "offline", None),
            "💾 Prompt caching: off (the offline model reads for free)",
        ),
    ],
)
def test_start_up_line(model: ChatModel, line: str) -> None:
    """The start-up says what is true of the model."""
    assert caching_text(model, CachingSettings(cache_ttl="1h")) == line
