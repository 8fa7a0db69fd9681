"""Recordings are read into one form, and played with the bill of a provider."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ContextOverflow, RecordingMismatch
from agent.messages import (
    ChatMessage,
    FunctionCall,
    ToolCall,
    ToolSchema,
    Usage,
    assistant_message,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest, estimate_usage
from agent.models.catalog import facts_of
from agent.prompt_caching import apply_cache_control
from agent.settings import FactsSettings
from agent.view.edits import clipped
from gateway.replay.recordings import (
    END_OF_RECORDING,
    NO_RESULT,
    BadRecording,
    Bill,
    RecordedExchange,
    RecordedModel,
    RecordedTools,
    Recording,
    load_recordings,
)
from tests.agent.models.sink import CollectingSink
from tests.agent.tools.doubles import call, context
from tests.support.shared import SHARED


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str | None, *call_ids: str) -> dict[str, Any]:
    calls = [{"id": it, "function": {"name": "look", "arguments": "{}"}} for it in call_ids]
    return {"role": "assistant", "content": text, "tool_calls": calls or None}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def load(folder: Path, data: Any, name: str = "some.json") -> list[Recording]:
    path = folder / name
    lines = data if name.endswith(".jsonl") else [data]
    path.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    return load_recordings(path)


def exchanges(folder: Path, *messages: dict[str, Any]) -> tuple[RecordedExchange, ...]:
    return load(folder, list(messages))[0].exchanges


def short(exchange: RecordedExchange) -> list[str]:
    """Each step as "role text" with the ids of its calls."""
    return [exchange.user, *(_short(step) for step in exchange.steps)]


def _short(step: ChatMessage) -> str:
    ids = [call["id"] for call in step.get("tool_calls", [])]
    ids += [step["tool_call_id"]] if step["role"] == "tool" else []
    return " ".join([step["role"], *ids, text_of(step)]).strip()


def test_a_plain_list_becomes_exchanges(tmp_path: Path) -> None:
    """One for each user message; what the system and nobody said is left out."""
    [recording] = load(
        tmp_path,
        [
            {"role": "system", "content": "Be kind."},
            said("Welcome!"),
            user("  one "),
            said(None, "a"),
            result("a", "seen"),
            said("It is there."),
            user("two"),
            said("Good."),
        ],
    )
    assert recording.name == "some"
    assert [short(exchange) for exchange in recording.exchanges] == [
        ["one", "assistant a", "tool a seen", "assistant It is there."],
        ["two", "assistant Good."],
    ]


def test_messages_are_canonical(tmp_path: Path) -> None:
    """Keys, types and the tool's name are those of `ChatMessage`."""
    call = {"id": "a", "function": {"name": "look", "arguments": {"at": "ü"}}, "index": 0}
    [exchange] = exchanges(
        tmp_path,
        user("hi"),
        {**said(None), "tool_calls": [call], "refusal": None},
        result("a", "x"),
    )
    function = {"name": "look", "arguments": '{"at":"ü"}'}
    assert exchange.steps[:2] == (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "look", "content": "x"},
    )


def test_user_messages_in_a_row_are_joined(tmp_path: Path) -> None:
    """Empty messages between them do not separate them."""
    [exchange] = exchanges(
        tmp_path, user("one"), said(""), user(""), result("x", "stray"), user("two"), said("ok")
    )
    assert short(exchange) == ["one\n\ntwo", "assistant ok"]


def test_an_assistant_text_is_merged_into_the_next_assistant_message(tmp_path: Path) -> None:
    """A text ends an exchange, so it must not stand in its middle."""
    [exchange] = exchanges(
        tmp_path,
        user("go"),
        said("First"),
        said("I look", "a"),
        result("a", "x"),
        said("1"),
        said("2"),
    )
    assert short(exchange) == [
        "go",
        "assistant a First\n\nI look",
        "tool a x",
        "assistant 1\n\n2",
    ]


def test_a_call_without_result_gets_one(tmp_path: Path) -> None:
    """Before the next assistant message, before the next user message and at the end."""
    first, second = exchanges(
        tmp_path, user("1"), said(None, "a", "b"), result("b", "x"), said(None, "c"), user("2")
    )
    assert short(first) == [
        "1",
        "assistant a b",
        "tool b x",
        f"tool a {NO_RESULT}",
        "assistant c",
        f"tool c {NO_RESULT}",
        f"assistant {END_OF_RECORDING}",
    ]
    assert short(second) == ["2", f"assistant {END_OF_RECORDING}"]


def test_a_result_without_call_is_dropped(tmp_path: Path) -> None:
    """A second result of the same call is one as well."""
    [exchange] = exchanges(
        tmp_path, user("1"), said(None, "a"), result("a", "x"), result("a", "y"), result("z", "?")
    )
    assert short(exchange) == ["1", "assistant a", "tool a x", f"assistant {END_OF_RECORDING}"]


def test_a_repeated_call_id_gets_a_number(tmp_path: Path) -> None:
    """In one message and across messages; each result follows its call."""
    first, second = exchanges(
        tmp_path,
        *(user("1"), said(None, "a", "a"), result("a", "x"), result("a", "y"), said("ok")),
        *(user("2"), said(None, "a"), result("a", "z"), said("ok")),
    )
    assert short(first)[1:4] == ["assistant a a_2", "tool a x", "tool a_2 y"]
    assert short(second)[1:3] == ["assistant a_3", "tool a_3 z"]


def test_texts_are_cleaned(tmp_path: Path) -> None:
    """Lone surrogates and NULs, which recordings hold, cannot be stored."""
    [exchange] = exchanges(tmp_path, user("a\ud800"), said("b\x00"))
    assert short(exchange) == ["a\ufffd", "assistant b\ufffd"]


def test_text_parts_are_joined(tmp_path: Path) -> None:
    """Images are left out."""
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    [exchange] = exchanges(tmp_path, {"role": "user", "content": parts}, said("ok"))
    assert exchange.user == "a\nb"


def test_tau_bench_has_one_recording_for_each_item(tmp_path: Path) -> None:
    """They are numbered in the order of the file."""
    items = [{"task_id": n, "traj": [user(f"q{n}"), said("a")]} for n in (7, 8)]
    recordings = load(tmp_path, items, "tau.json")
    assert [(it.name, it.exchanges[0].user) for it in recordings] == [
        ("tau#0", "q7"),
        ("tau#1", "q8"),
    ]


def test_swe_agent_results_name_their_calls_in_a_list(tmp_path: Path) -> None:
    """The history of a trajectory is one recording."""
    observation = {"role": "tool", "content": "x", "tool_call_ids": ["a"], "agent": "main"}
    [recording] = load(
        tmp_path, {"history": [user("fix"), said("I look", "a"), observation]}, "run.traj"
    )
    assert short(recording.exchanges[0])[1:3] == ["assistant a I look", "tool a x"]


def test_pi_lines_become_messages(tmp_path: Path) -> None:
    """Thinking becomes reasoning; other lines and other roles have no message."""
    parts = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "I look\u2028now"},
        {"type": "toolCall", "id": "a", "name": "read", "arguments": {"path": "x"}},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": parts},
        {"role": "toolResult", "toolCallId": "a", "content": [{"type": "text", "text": "y"}]},
        {"role": "bashExecution", "output": "z"},
        {"role": "assistant", "content": "done"},
    ]
    lines = [{"type": "session"}, *({"type": "message", "message": it} for it in messages)]
    [recording] = load(tmp_path, lines, "session.jsonl")
    [exchange] = recording.exchanges
    assert short(exchange) == ["go", "assistant a I look\u2028now", "tool a y", "assistant done"]
    assert exchange.steps[0]["reasoning"] == "hm"
    assert exchange.steps[0]["tool_calls"][0]["function"]["arguments"] == '{"path":"x"}'


def test_merged_messages_keep_their_reasoning(tmp_path: Path) -> None:
    """Both thoughts stand in the merged message."""

    def thought(text: str) -> dict[str, Any]:
        parts = [{"type": "thinking", "thinking": text}, {"type": "text", "text": text.upper()}]
        return {"type": "message", "message": {"role": "assistant", "content": parts}}

    lines = [{"type": "message", "message": user("go")}, thought("a"), thought("b")]
    [recording] = load(tmp_path, lines, "session.jsonl")
    [step] = recording.exchanges[0].steps
    assert (step["content"], step["reasoning"]) == ("A\n\nB", "a\n\nb")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "neither a list"),
        ([], "neither a list"),
        ("text", "neither a list"),
        ([said("hi")], "messages: there is no user message"),
        ([user("hi"), "x"], "message 1: is not an object"),
        ([user("hi"), {"role": "robot"}], "message 1: unknown role 'robot'"),
        ([user("hi"), {"role": "user", "content": 3}], "message 1: `content` is neither"),
        ([{"role": "user", "content": ["hi"]}], "message 0: `content` is a list with"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has no `text`"),
        ([user("hi"), {**said("x"), "tool_calls": [1]}], "`tool_calls` is not a list of objects"),
        ([user("hi"), {**said("x"), "tool_calls": [{}]}], "message 1: a tool call has no function"),
        ([{"traj": [user("hi")]}, {"traj": 5}], "item 1: has no list `traj`"),
        ([{"traj": [user("hi"), {}]}], "item 0, message 1: unknown role None"),
        ({"history": [user("hi"), 1]}, "history item 1: is not an object"),
    ],
)
def test_bad_input_names_file_item_and_problem(tmp_path: Path, data: Any, problem: str) -> None:
    """The person who wrote the file can find the place."""
    with pytest.raises(BadRecording) as error:
        load(tmp_path, data)
    assert str(error.value).startswith(f"{tmp_path / 'some.json'}: ")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"type": "session"}\n{"type": ', "line 2: Expecting value"),
        (b'{"type": "message"}', "line 1: has no object `message`"),
        (
            b'{"type":"message","message":{"role":"assistant","content":[{"type":"toolCall"}]}}',
            "line 1: a tool call has no function name",
        ),
        (b"\xff\xfe", "codec can't decode"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: bytes, problem: str) -> None:
    """A cut line, a line without its part, bytes that are no text."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadRecording, match=problem):
        load_recordings(path)


if SHARED:

    @pytest.mark.parametrize(
        ("name", "conversations", "exchange_count"),
        [
            ("tau-bench/gpt-4o-airline.json", 200, 1490),
            ("pi/before-compaction.jsonl", 1, 48),
            ("pi/large-session.jsonl", 1, 79),
            ("swe-agent/ctf-web-demo.traj", 1, 21),
            ("swe-agent/marshmallow-1867-function-calling.traj", 1, 1),
        ],
    )
    def test_real_recordings_load_into_the_normal_form(
        name: str, conversations: int, exchange_count: int
    ) -> None:
        """Nothing is lost on the way, and every rule of the form holds."""
        recordings = load_recordings(SHARED / name)
        assert len(recordings) == conversations
        assert sum(len(it.exchanges) for it in recordings) == exchange_count
        for recording in recordings:
            _assert_normal(recording)


def _assert_normal(recording: Recording) -> None:
    ids: list[str] = []
    for exchange in recording.exchanges:
        assert exchange.user.strip() == exchange.user != ""
        assert exchange.steps[-1]["role"] == "assistant"
        waiting: set[str] = set()
        for step in exchange.steps:
            if step["role"] == "tool":
                waiting.remove(step["tool_call_id"])
                continue
            calls = [call["id"] for call in step.get("tool_calls", [])]
            assert not waiting
            assert calls or step is exchange.steps[-1]
            waiting.update(calls)
            ids += calls
        assert not waiting
    assert len(ids) == len(set(ids))


LOOK = ToolCall(id="a", type="function", function=FunctionCall(name="look", arguments="{}"))
STEP = ChatMessage(role="assistant", content="I look.", tool_calls=[LOOK])
RESULT = tool_message("a", "look", "a tree")
RECORDING = Recording(
    "walk",
    (
        RecordedExchange("one", (STEP, RESULT, assistant_message("A tree."))),
        RecordedExchange("two", (assistant_message("Bye."),)),
    ),
)
ONE = user_message("one")
FOREIGN = ChatMessage(role="assistant", tool_calls=[call("go", call_id="z")])
TOOLS = (ToolSchema("look", "Looks.", {"type": "object"}),)


SECOND = user_message("two")


def model(exchange: int = 0, context_length: int = 200_000) -> RecordedModel:
    recorded = RecordedModel(context_length)
    recorded.play("c1", RECORDING, exchange)
    return recorded


async def complete(recorded: RecordedModel, *view: ChatMessage, **extra: Any) -> Completion:
    request = ModelRequest(list(view), **{"conversation": "c1", **extra})
    return await recorded.complete(request, CollectingSink())


async def told(recorded: RecordedModel, *view: ChatMessage, **extra: Any) -> str:
    return text_of((await complete(recorded, *view, **extra)).message)


async def usage(recorded: RecordedModel, *view: ChatMessage, **extra: Any) -> Usage:
    found = (await complete(recorded, *view, **extra)).usage
    assert found is not None
    return found


async def test_the_answers_of_an_exchange_are_played_in_order() -> None:
    """One after the other."""
    recorded = model()
    assert await told(recorded, ONE) == "I look."
    assert await told(recorded, ONE, STEP, RESULT) == "A tree."


async def test_the_player_says_which_exchange_is_asked() -> None:
    """What came before need not be in the view: it may be compacted."""
    assert await told(model(1), SECOND) == "Bye."
    summary = user_message("[a summary of one]", synthetic=True)
    assert await told(model(1), summary, STEP, RESULT, SECOND) == "Bye."


async def test_a_compacted_turn_goes_on() -> None:
    """Between the question and its newest group there is a summary of the groups before."""
    first, second, third = (group(f"{n}") for n in range(3))
    recorded = RecordedModel()
    recorded.play("c1", Recording("x", (RecordedExchange("one", (*first, *second, *third)),)), 0)
    summary = ChatMessage(role="assistant", content="[a summary]", synthetic=True)
    assert await told(recorded, ONE) == "0"
    assert await told(recorded, ONE, *first) == "1"
    assert await told(recorded, ONE, summary, *second) == "2"


def group(name: str) -> list[ChatMessage]:
    """Return an assistant message with one call, and its result."""
    asked = ChatMessage(role="assistant", content=name, tool_calls=[call("go", call_id=name)])
    return [asked, tool_message(name, "go", "gone")]


async def test_a_completion_is_what_was_recorded() -> None:
    """Calls and stop reason are there, and the text was pushed."""
    sink = CollectingSink()
    completion = await model().complete(ModelRequest([ONE], conversation="c1"), sink)
    assert (completion.message, completion.stop_reason) == (STEP, "tool_calls")
    assert sink.text == "I look."


async def test_what_parley_added_does_not_count() -> None:
    """A system message, a synthetic request and a sender's name before the text."""
    system = ChatMessage(role="system", content="Be kind.")
    named = user_message("Ann: one")
    synthetic = user_message("Go on.", synthetic=True)
    recorded = model()
    assert await told(recorded, system, named) == "I look."
    assert await told(recorded, system, named, STEP, RESULT, synthetic) == "A tree."


async def test_without_tools_the_final_text_is_played() -> None:
    """The loop's last call must end in a text."""
    completion = await complete(model(), ONE, allow_tools=False)
    assert (text_of(completion.message), completion.stop_reason) == ("A tree.", "stop")


async def test_a_clipped_question_is_taken() -> None:
    """The compressor cuts a giant message to its head, a pointer and its tail."""
    long = "word " * 1000
    recorded = RecordedModel()
    recorded.play("c1", Recording("x", (RecordedExchange(long, (assistant_message("Yes."),)),)), 0)
    shown = clipped(user_message(long), 300, 1)
    assert long not in text_of(shown)
    assert await told(recorded, shown) == "Yes."


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        ([], "there is no user message in the view"),
        ([STEP, RESULT], "there is no user message in the view"),
        ([user_message("other")], "'other' was asked, not the recorded 'one'"),
        ([user_message("on")], "'on' was asked, not the recorded 'one'"),
        ([ONE, SECOND], "'two' was asked, not the recorded 'one'"),
    ],
)
async def test_a_view_that_does_not_fit_is_refused(view: list[ChatMessage], problem: str) -> None:
    """A wrong answer would hide that something was lost."""
    with pytest.raises(RecordingMismatch, match=problem):
        await complete(model(), *view)


async def test_no_more_is_answered_than_was_recorded() -> None:
    """The loop would go on for ever."""
    recorded = model()
    await complete(recorded, ONE)
    await complete(recorded, ONE, STEP, RESULT)
    with pytest.raises(RecordingMismatch, match="all answers to 'one' were given"):
        await complete(recorded, ONE)


SYSTEM = ChatMessage(role="system", content="Be kind. " * 2000)
"""Larger than any model's smallest cached prefix."""


def marked(*view: ChatMessage, strategy: str = "system_and_3") -> list[ChatMessage]:
    return apply_cache_control(view, strategy=strategy)


async def test_all_of_a_request_is_counted() -> None:
    """About what any other model without a report counts."""
    request = ModelRequest([SYSTEM, ONE, STEP, RESULT, SECOND], TOOLS, conversation="c1")
    completion = await model(1).complete(request, CollectingSink())
    expected = estimate_usage(request, completion.message, "claude-sonnet-5-5")
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == pytest.approx(expected.prompt_tokens, rel=0.02)
    assert completion.usage.output_tokens == expected.output_tokens


async def test_without_breakpoints_nothing_is_cached() -> None:
    """As the API does it."""
    recorded = model()
    for _ in range(2):
        found = await usage(recorded, SYSTEM, ONE)
        assert found.input_tokens == found.prompt_tokens > 1000


async def test_what_was_marked_is_read_by_the_next_request() -> None:
    """The rest is written."""
    recorded = model()
    first = await usage(recorded, *marked(SYSTEM, ONE), tools=TOOLS)
    assert (first.cache_write_5m_tokens, first.input_tokens) == (first.prompt_tokens, 0)
    again = marked(*[deepcopy(message) for message in (SYSTEM, ONE, STEP, RESULT)])
    second = await usage(recorded, *again, tools=TOOLS)
    assert second.cache_read_tokens == first.prompt_tokens
    assert 0 < second.cache_write_5m_tokens == second.prompt_tokens - first.prompt_tokens


async def test_the_cache_outlives_an_exchange() -> None:
    """It belongs to the conversation, and to no other."""
    recorded = model(1)
    before = await usage(recorded, *marked(SYSTEM, SECOND))
    recorded.play("c1", RECORDING, 1)
    recorded.play("c2", RECORDING, 1)
    again = marked(SYSTEM, SECOND)
    assert (await usage(recorded, *again)).cache_read_tokens == before.prompt_tokens
    assert (await usage(recorded, *again, conversation="c2")).cache_read_tokens == 0


@pytest.mark.parametrize(("pause_s", "share"), [(289, 1), (291, 0)])
async def test_a_cache_entry_dies(pause_s: float, share: int) -> None:
    """On the clock of the conversation; an answer takes ten seconds."""
    recorded = RecordedModel()
    recorded.play("c1", RECORDING, 0)
    first = await usage(recorded, *marked(SYSTEM, ONE))
    recorded.play("c1", RECORDING, 1, pause_s)
    second = await usage(recorded, *marked(SYSTEM, ONE, SECOND))
    assert second.cache_read_tokens == share * first.prompt_tokens


async def test_the_model_in_the_settings_has_its_rules() -> None:
    """A prefix below its minimum is not cached."""
    short = ChatMessage(role="system", content="Be kind. " * 600)
    for name, cached in (("claude-sonnet-5-5", True), ("claude-haiku-4-5", False)):
        recorded = RecordedModel(facts=facts_of(name, FactsSettings()))
        recorded.play("c1", RECORDING, 0)
        found = await usage(recorded, *marked(short, ONE))
        assert (found.cache_write_5m_tokens > 0) is cached


async def test_the_played_bill_is_the_sum_of_the_usages() -> None:
    """What the ledger has is what the report shows."""
    recorded = model()
    total = await usage(recorded, *marked(SYSTEM, ONE))
    total += await usage(recorded, *marked(SYSTEM, ONE, STEP, RESULT))
    assert recorded.bill("c1").tally.billed == total


@pytest.mark.thorough
async def test_other_models_cache_by_themselves() -> None:
    """They take no breakpoints, so there is nothing to compare."""
    recorded = RecordedModel(facts=facts_of("gpt-5.2", FactsSettings()))
    recorded.play("c1", RECORDING, 0)
    assert recorded.cache_layout is None
    await usage(recorded, SYSTEM, ONE)
    assert (await usage(recorded, SYSTEM, ONE)).cache_read_tokens > 1000
    assert recorded.bill("c1").requests == 2


async def test_what_is_not_known_has_no_bill() -> None:
    """And there is no provider to ask."""
    assert model().bill("c9") == Bill()
    assert await model().look_up() is None


async def test_a_request_beyond_the_window_is_refused() -> None:
    """It counts as not made: once it is smaller, its answer comes."""
    recorded = model(context_length=200)
    with pytest.raises(ContextOverflow, match="tokens do not fit into 200"):
        await complete(recorded, user_message("x" * 2000), ONE)
    assert recorded.bill("c1").requests == 0
    assert await told(recorded, ONE) == "I look."


async def test_a_conversation_without_recording_is_refused() -> None:
    """The text names it."""
    with pytest.raises(RecordingMismatch, match="'c9' has no recording"):
        await complete(model(), ONE, conversation="c9")


def test_recorded_tools_are_those_of_the_recordings() -> None:
    """In the order of their names, taking any object, without effects."""
    other = Recording(
        "x", (RecordedExchange("q", (ChatMessage(role="assistant", tool_calls=[call("go")]),)),)
    )
    tools = RecordedTools(model(), [RECORDING, other, RECORDING])
    assert [(it.name, it.parameters) for it in tools.schemas] == [
        ("go", {"type": "object"}),
        ("look", {"type": "object"}),
    ]
    assert (tools.effect("look"), tools.exclusive("look")) == ("read", False)


async def test_recorded_tools_give_the_recorded_result() -> None:
    """The id of the call decides."""
    tools = RecordedTools(model(), [RECORDING])
    outcome = await tools.execute(LOOK, context())
    assert (outcome.text, outcome.status) == ("a tree", "ok")
    with pytest.raises(RecordingMismatch, match="walk has no result for call 'z'"):
        await tools.execute(call("look", call_id="z"), context())


if SHARED:

    @pytest.mark.parametrize(
        "path", sorted(SHARED.glob("*/*.[jt][sr]*")), ids=lambda path: str(path.name)
    )
    async def test_real_recordings_play_to_their_end(path: Path) -> None:
        """A plain loop over the user messages gets every recorded step, in order."""
        for recording in load_recordings(path):
            recorded = RecordedModel()
            tools = RecordedTools(recorded, [recording])
            users: list[ChatMessage] = []
            for position, exchange in enumerate(recording.exchanges):
                recorded.play("c1", recording, position)
                users.append(user_message(exchange.user))
                assert await _play(recorded, tools, users) == list(exchange.steps)

    async def _play(
        recorded: RecordedModel, tools: RecordedTools, users: list[ChatMessage]
    ) -> list[ChatMessage]:
        """Run one turn; earlier answers are not in the view, as the place does not need them."""
        steps: list[ChatMessage] = []
        while True:
            request = ModelRequest([*users, *steps], tools.schemas, conversation="c1")
            completion = await recorded.complete(request, CollectingSink())
            steps.append(completion.message)
            if completion.stop_reason == "stop":
                return steps
            for asked in completion.message["tool_calls"]:
                outcome = await tools.execute(asked, context())
                name = asked["function"]["name"]
                steps.append(tool_message(asked["id"], name, outcome.text))
