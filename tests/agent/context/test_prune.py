"""Pruning: what is old and large is shown shortened; what people wrote is not touched."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.prune import (
    MIN_CLIP_CHARS,
    clip,
    converge,
    is_tool_work,
    prune,
    target_tokens,
    without_images,
)
from agent.context_engine import CompressionRequest, Limits, Sizes, Trigger
from agent.library import CompactionResult, compact_messages
from agent.messages import ChatMessage, assistant_message, encode, tool_message, user_message
from agent.tokens import estimate_message, estimate_messages
from agent.view.view import Edit, Entry, ViewPlan, render
from tests.support.conversations import HAN, PNG, faults, plain
from tests.support.scripted_model import tool_call

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 500}}


def calling(text: str) -> ChatMessage:
    """Return a message that calls a tool with this text."""
    call = tool_call("look", {"text": text}, "c1")
    return ChatMessage(role="assistant", content="so" * 900, tool_calls=[call])


def picture(role: str) -> ChatMessage:
    """Return a message with an image."""
    message = tool_message("c1", "look", "") if role == "tool" else user_message("")
    message["content"] = [{"type": "text", "text": "see"}, PICTURE]
    return message


def entries(*messages: ChatMessage) -> list[Entry]:
    """Return the messages at every tenth position of a transcript."""
    return [Entry(10 * n, message) for n, message in enumerate(messages, start=1)]


results = st.builds(
    lambda letter, size: tool_message("c1", "look", letter * size),
    st.sampled_from("ab"),
    st.sampled_from([3, 200, 201, 900]),
)
calls = st.sampled_from([10, 500, 900]).map(lambda size: calling("x" * size))
pictures = st.sampled_from(["user", "tool"]).map(picture)
said = st.sampled_from([user_message("hi" * 900), assistant_message("ho" * 900)])
transcripts = st.lists(results | calls | pictures | said, max_size=25).map(
    lambda messages: entries(*messages)
)


@given(transcripts, st.integers(0, 25))
def test_only_what_is_large_and_outside_of_the_tail_is_edited(
    stored: list[Entry], upto: int
) -> None:
    """In order of seq, at most one edit of each kind for a message."""
    edits = prune(stored, upto)
    assert {edit.seq for edit in edits} <= {entry.seq for entry in stored[:upto]}
    assert all((a.seq, a.kind) != (b.seq, b.kind) and a.seq <= b.seq for a, b in pairwise(edits))
    assert edits == prune(list(stored), upto)


@given(transcripts, st.integers(0, 25))
def test_pruning_shrinks_each_message_that_it_names(stored: list[Entry], upto: int) -> None:
    """An edit that changes nothing would only cost."""
    edits = prune(stored, upto)
    pairs = zip(stored, render(ViewPlan(edits=edits), stored), strict=True)
    for entry, shown in pairs:
        edited = any(edit.seq == entry.seq for edit in edits)
        assert (len(encode(shown)) < len(encode(entry.message))) == edited


@given(transcripts)
def test_texts_of_user_and_assistant_are_never_pruned(stored: list[Entry]) -> None:
    """Also where they are long."""
    view = render(ViewPlan(edits=prune(stored, len(stored))), stored)
    for entry, shown in zip(stored, view, strict=True):
        if entry.message["role"] != "tool" and isinstance(entry.message["content"], str):
            assert shown["content"] == entry.message["content"]


@given(transcripts, st.integers(0, 25))
def test_a_duplicate_has_a_later_result_that_says_the_same(stored: list[Entry], upto: int) -> None:
    """And no long result outside of the tail that is repeated later stays."""
    duplicates = {edit.seq for edit in prune(stored, upto) if edit.kind == "duplicate"}
    for place, (seq, message) in enumerate(stored[:upto]):
        later = [entry.message for entry in stored[place + 1 :]]
        long = message["role"] == "tool" and len(encode(message)) > 200 + len(encode(bare()))
        repeated = (long or message == picture("tool")) and message in later
        assert (seq in duplicates) == repeated


def bare() -> ChatMessage:
    """Return the same result without its text."""
    return tool_message("c1", "look", "")


def test_the_newest_of_identical_results_may_stand_in_the_tail() -> None:
    """Then only the older one is edited."""
    stored = entries(*[tool_message(f"c{n}", "look", "x" * 300) for n in range(2)])
    assert prune(stored, 1) == (Edit(10, "duplicate"),)
    assert prune(stored, 2) == (Edit(10, "duplicate"), Edit(20, "prune"))


def test_results_up_to_200_characters_stay() -> None:
    """And are not compared."""
    stored = entries(*[tool_message("c1", "look", "x" * 200)] * 2)
    assert prune(stored, 2) == ()


def test_long_arguments_are_shortened_to_leaves_of_200() -> None:
    """Measured on the arguments of each call."""
    short, long = calling("x" * 400), calling("x" * 600)
    assert prune(entries(short, long), 2) == (Edit(20, "arguments", 200),)
    shown = render(ViewPlan(edits=prune(entries(long), 1)), entries(long))
    text = shown[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(text) == {"text": "x" * 200 + "...[truncated]"}


def test_images_before_the_newest_of_the_user_become_labels() -> None:
    """That one keeps its image, wherever it stands; an image of a tool makes a long result."""
    stored = entries(picture("user"), picture("tool"), picture("user"), picture("tool"))
    older = (Edit(10, "images"), Edit(20, "duplicate"))
    assert prune(stored, 3) == older
    assert prune(stored, 4) == (*older, Edit(40, "prune"))


def test_the_newest_image_of_the_user_may_stand_in_the_tail() -> None:
    """Then all before the tail go."""
    stored = entries(picture("user"), user_message("hi"), picture("user"))
    assert prune(stored, 2) == (Edit(10, "images"),)


def test_texts_in_parts_count_together() -> None:
    """A result in three parts of 100 characters is a long one."""
    result = tool_message("c1", "look", "")
    result["content"] = [{"type": "text", "text": "x" * 100}] * 3
    assert prune(entries(result), 1) == (Edit(10, "prune"),)


def test_messages_without_content_are_left_alone() -> None:
    """Providers leave it out beside calls."""
    message = calling("x")
    del message["content"]
    empty = tool_message("c1", "look", "")
    empty["content"] = None
    assert prune(entries(message, empty), 2) == ()


WINDOW = 200_000
TARGET = 60_000
"""60 % of half of the window."""
QUESTION = user_message("And what does it all mean?")
SYSTEM = ChatMessage(role="system", content="You are a careful assistant.")


def text_of_chars(chars: int, mark: object = "") -> str:
    """Return a text of so many characters, different for each mark."""
    phrase = f"line {mark} of the log: 2026-05-07 done with errors=0\n"
    return (phrase * (1 + chars // len(phrase)))[:chars]


def group(n: int, *sizes: int, arguments: int = 20) -> list[ChatMessage]:
    """Return an assistant message with one call for each size, and results of that many chars."""
    calls = [
        tool_call("read", {"path": text_of_chars(arguments, f"{n}-{k}")}, f"c{n}-{k}")
        for k in range(len(sizes))
    ]
    results = [
        tool_message(f"c{n}-{k}", "read", text_of_chars(chars, f"{n}-{k}"))
        for k, chars in enumerate(sizes)
    ]
    return [ChatMessage(role="assistant", content=None, tool_calls=calls), *results]


def ten_huge_results() -> list[ChatMessage]:
    return [QUESTION, *(message for n in range(10) for message in group(n, 400_000))]


def one_huge_message() -> list[ChatMessage]:
    return [user_message(text_of_chars(1_200_000))]


def parallel_results() -> list[ChatMessage]:
    return [QUESTION, *group(0, *[100_000] * 8)]


def four_huge_messages() -> list[ChatMessage]:
    return [
        user_message(text_of_chars(300_000, "a")),
        assistant_message(text_of_chars(300_000, "b")),
        user_message(text_of_chars(300_000, "c")),
        assistant_message(text_of_chars(300_000, "d")),
    ]


def giant_arguments() -> list[ChatMessage]:
    steps = [message for n in range(4) for message in group(n, 30, arguments=400_000)]
    return [QUESTION, *steps]


def all_cjk() -> list[ChatMessage]:
    text = HAN * 200
    turns = [[user_message(f"{n}号{text}"), assistant_message(f"{n}{text}")] for n in range(40)]
    return [*(message for turn in turns for message in turn), user_message("然后呢?")]


def no_later_user_message() -> list[ChatMessage]:
    return [QUESTION, *(message for n in range(300) for message in group(n, 3_000))]


def images_only() -> list[ChatMessage]:
    return [ChatMessage(role="user", content=[PNG]) for _ in range(400)]


def short_messages() -> list[ChatMessage]:
    says = (user_message, assistant_message)
    return [says[n % 2](f"short message {n} about order {4711 + n}") for n in range(10_001)]


CORPORA: tuple[Callable[[], list[ChatMessage]], ...] = (
    ten_huge_results,
    one_huge_message,
    parallel_results,
    four_huge_messages,
    giant_arguments,
    all_cjk,
    no_later_user_message,
    images_only,
    short_messages,
)


def compact(messages: list[ChatMessage], **more: Any) -> CompactionResult:
    return compact_messages(plain(messages), **{"context_length": WINDOW, **more})


@pytest.mark.parametrize("corpus", CORPORA)
def test_one_call_converges(corpus: Callable[[], list[ChatMessage]]) -> None:
    """Under the target, taken by every provider, and the second call changes nothing."""
    messages = [SYSTEM, *corpus()]
    result = compact(messages)
    shown: list[Any] = result.messages
    assert result.tokens_before > TARGET
    assert result.tokens_after <= TARGET
    assert faults(shown) == []
    again = compact(shown)
    assert (again.level, again.messages) == ("none", shown)


@pytest.mark.parametrize("corpus", [each for each in CORPORA if each is not one_huge_message])
def test_the_newest_user_message_stays_as_it_is(
    corpus: Callable[[], list[ChatMessage]],
) -> None:
    """Everything else gives way first (invariant 7)."""
    messages = corpus()
    newest = next(message for message in reversed(messages) if message["role"] == "user")
    result = compact([SYSTEM, *messages])
    if estimate_message(newest) <= TARGET:
        assert newest in result.messages
    else:
        assert result.level == "clip_newest"


def test_a_huge_newest_message_keeps_both_ends_and_a_pointer() -> None:
    """The model sees how the request begins and ends, and where all of it stands."""
    text = f"BEGIN {text_of_chars(1_200_000)} END"
    result = compact([SYSTEM, user_message(text)])
    shown = result.messages[1]["content"]
    assert result.level == "clip_newest"
    assert shown.startswith("BEGIN ")
    assert shown.endswith(" END")
    assert "read_conversation(from_seq=2" in shown


def test_a_newest_message_that_fits_is_not_clipped_for_the_target() -> None:
    """Over the target, but below nine tenths of the threshold: the user's words win."""
    question = user_message(text_of_chars(150_000))
    assert TARGET < estimate_message(question) < 90_000
    result = compact([SYSTEM, *ten_huge_results(), assistant_message("So."), question])
    assert question in result.messages
    assert result.level != "clip_newest"
    assert result.tokens_after <= 100_000


def test_a_system_prompt_over_the_target_leaves_room_for_messages() -> None:
    """The floor is larger than the target: messages get a fifth of what it leaves of the window."""
    system = ChatMessage(role="system", content=text_of_chars(300_000))
    result = compact([system, *ten_huge_results()])
    room = result.tokens_after - estimate_message(system)
    assert result.messages[0]["content"].startswith(system["content"])
    assert QUESTION in result.messages
    assert 0 < room <= 0.2 * (WINDOW - estimate_message(system))
    assert faults(result.messages) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [4_000, 16_000, 32_000, 1_000_000])
@pytest.mark.parametrize("corpus", [ten_huge_results, four_huge_messages, parallel_results])
def test_every_window_is_converged_to(window: int, corpus: Callable[[], list[ChatMessage]]) -> None:
    """From the smallest models to the largest."""
    result = compact([SYSTEM, *corpus()], context_length=window)
    assert result.tokens_after <= 0.5 * window
    assert faults(result.messages) == []  # type: ignore[arg-type]


def test_a_conversation_that_begins_within_a_group_converges() -> None:
    """Somebody else cut it there; no role before the users' messages fits."""
    users = [user_message(f"{n} {text_of_chars(2_000, n)}") for n in range(300)]
    result = compact([*group(0, 500), *users])
    assert result.tokens_after <= TARGET
    assert faults(result.messages) == []  # type: ignore[arg-type]


def request_of(messages: list[ChatMessage], window: int = 8_000, **more: Any) -> CompressionRequest:
    """Return the request of a view that shows these messages from seq 1 on."""
    request = CompressionRequest(
        plan=ViewPlan(),
        entries=[Entry(seq, message) for seq, message in enumerate(messages, start=1)],
        tokens=estimate_messages(messages),
        fixed_tokens=0,
        limits=Limits(window),
        estimate=estimate_message,
        trigger="threshold",
    )
    return replace(request, **more)


def converged(request: CompressionRequest, plan: ViewPlan | None = None) -> list[Edit]:
    """Return the edits that the ladder adds."""
    found = converge(request, Sizes(request), plan or request.plan, "summary")
    return list(found.plan.edits)


def test_a_plan_below_the_target_is_left_as_it_is() -> None:
    """The level that was needed so far stays."""
    request = request_of([QUESTION, assistant_message("42")])
    sizes = Sizes(request)
    found = converge(request, sizes, request.plan, "prune")
    assert (found.plan, found.level) == (request.plan, "prune")
    assert found.tokens == sizes.view(request.plan)


def test_tools_give_way_before_people() -> None:
    """Results are clipped first; if that is enough nothing else is touched."""
    said = assistant_message(text_of_chars(3_000))
    request = request_of([QUESTION, said, *group(0, 40_000), QUESTION])
    assert {edit.seq for edit in converged(request)} == {4}


@pytest.mark.parametrize(("chars", "clipped"), [(3_000, {3}), (40_000, {3, 5})])
def test_the_step_that_the_model_is_at_gives_way_last(chars: int, clipped: set[int]) -> None:
    """It asked for that result, and has not read it yet."""
    request = request_of([QUESTION, *group(0, 2_800), *group(1, chars)])
    assert {edit.seq for edit in converged(request)} == clipped


def test_call_arguments_are_clipped_like_results() -> None:
    """Both are what tools left behind."""
    request = request_of([QUESTION, *group(0, 30, arguments=40_000)])
    assert [edit.seq for edit in converged(request)] == [2]


def test_images_give_way_before_texts_of_people() -> None:
    """A label says that there was one; the newest message keeps its own."""
    pictures = [ChatMessage(role="user", content=[PNG]) for _ in range(4)]
    request = request_of([*pictures[:3], assistant_message("word " * 900), pictures[3]], 16_000)
    assert request.tokens > target_tokens(request)
    edits = converged(request)
    assert [edit.kind for edit in edits] == ["images"] * 3
    assert [edit.seq for edit in edits] == [1, 2, 3]


def test_what_people_said_is_clipped_before_the_newest_message() -> None:
    """The newest user message is the last one to be touched."""
    long = text_of_chars(30_000)
    request = request_of([user_message(long), assistant_message(long), QUESTION])
    assert [(edit.seq, edit.kind) for edit in converged(request)] == [(1, "clip"), (2, "clip")]


@pytest.mark.parametrize(("chars", "level"), [(6_500, "clip_tail"), (7_800, "clip_newest")])
def test_the_newest_message_is_clipped_only_for_its_own_size(chars: int, level: str) -> None:
    """Nine tenths of the threshold count for it alone, however much stands beside it."""
    small = [assistant_message(f"{n} {text_of_chars(200, n)}") for n in range(90)]
    request = request_of([*small, user_message(text_of_chars(chars))])
    found = converge(request, Sizes(request), request.plan, "summary")
    assert found.tokens > 0.9 * request.limits.threshold_tokens
    assert found.level == level
    assert (91 in {edit.seq for edit in found.plan.edits}) is (level == "clip_newest")


def test_what_is_fixed_counts_with_the_newest_message() -> None:
    """A message that fits alone may not fit under a long system prompt."""
    request = request_of([*group(0, 40_000), user_message(text_of_chars(4_000))])
    assert converge(request, Sizes(request), request.plan, "summary").level == "clip_tail"
    fixed = replace(request, fixed_tokens=2_500, tokens=request.tokens + 2_500)
    assert converge(fixed, Sizes(fixed), fixed.plan, "summary").level == "clip_newest"


def test_messages_of_one_kind_are_clipped_to_one_size() -> None:
    """The largest give way; what is smaller than that size stays."""
    request = request_of([QUESTION, *group(0, 40_000, 20_000, 400)])
    first, second = converged(request)
    assert (first.seq, second.seq) == (3, 4)
    assert 0.9 < first.limit / second.limit < 1.1


def test_a_clip_uses_the_room_that_it_has() -> None:
    """The target is not missed by much, so that no more is lost than must be."""
    request = request_of([QUESTION, *group(0, 400_000)])
    found = converge(request, Sizes(request), request.plan, "summary")
    assert 0.9 * 2_400 <= found.tokens <= 2_400


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=6), st.integers(3_000, 60_000))
def test_every_rung_makes_the_view_smaller(sizes: list[int], window: int) -> None:
    """The ladder never ends with more than it began with, and tells the size that it reached."""
    request = request_of([QUESTION, *group(0, *sizes)], window=window)
    counted = Sizes(request)
    found = converge(request, counted, request.plan, "none")
    assert found.tokens == counted.view(found.plan) <= request.tokens
    assert found.tokens <= max(target_tokens(request), request.tokens * (found.level == "none"))


def test_a_clip_is_never_shorter_than_the_least() -> None:
    """Even where there is no room at all: a pointer to the original has to fit."""
    system: dict[str, Any] = {"fixed_tokens": 400_000, "tokens": 500_000, "limits": Limits(100)}
    request = request_of([QUESTION, *group(0, 5_000, 5_000)], **system)
    plan = clip(request, Sizes(request), request.plan, {3, 4})
    assert [edit.limit for edit in plan.edits] == [MIN_CLIP_CHARS, MIN_CLIP_CHARS]


def test_a_message_with_an_earlier_clip_gets_one_new_clip() -> None:
    """It never has two, and is clipped by what is shown of it and not by what it was."""
    request = request_of([QUESTION, *group(0, 400_000), QUESTION])
    plan = ViewPlan(edits=(Edit(3, "clip", 200_000),))
    (edit,) = converged(request, plan)
    assert (edit.seq, edit.kind) == (3, "clip")
    assert abs(edit.limit / converged(request)[0].limit - 1) < 0.1


def test_an_image_gets_one_label() -> None:
    """Also when the ladder is climbed down again; texts and what is out of view get none."""
    picture = ChatMessage(role="user", content=[PNG])
    request = request_of([picture, picture, QUESTION])
    plan = ViewPlan(first_seq=2, edits=(Edit(2, "images"),))
    assert without_images(request, plan, {1, 2, 3}) == plan


@pytest.mark.parametrize(
    ("trigger", "tokens", "fixed_tokens", "target"),
    [
        ("threshold", 9_000, 0, 2_400),
        ("hygiene", 9_000, 1_000, 2_400),
        ("hygiene", 9_000, 2_000, 3_200),
        ("threshold", 9_000, 3_000, 4_000),
        ("threshold", 9_999, 9_000, 9_000),
        ("overflow", 9_000, 0, 2_400),
        ("overflow", 4_000, 0, 2_000),
        ("overflow", 2_500, 2_000, 2_250),
        ("overflow", 500, 0, 250),
    ],
)
def test_the_target_of_a_view(
    trigger: Trigger, tokens: int, fixed_tokens: int, target: int
) -> None:
    """60 % of the threshold, or a fifth of the free window; half of the messages refused."""
    request = request_of([], trigger=trigger, tokens=tokens, fixed_tokens=fixed_tokens)
    assert target_tokens(request) == target


def test_results_and_calls_are_tool_work() -> None:
    """An answer beside calls counts with them."""
    asking, result = group(0, 10)
    assert is_tool_work(asking)
    assert is_tool_work(result)
    assert not is_tool_work(assistant_message("42"))
    assert not is_tool_work(ChatMessage(role="assistant", content="42", tool_calls=[]))


@pytest.mark.thorough
def test_what_is_clipped_are_valid_arguments() -> None:
    """A provider parses what a call says, however little of it is left."""
    result = compact(giant_arguments(), context_length=8_000)
    calls = [call for message in result.messages for call in message.get("tool_calls") or ()]
    assert calls
    for call in calls:
        assert isinstance(orjson.loads(call["function"]["arguments"]), dict)
