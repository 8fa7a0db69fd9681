"""OpenAIModel against a strict loopback server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.messages import (
    ChatMessage,
    ToolCall,
    ToolSchema,
    Usage,
    assistant_message,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest
from agent.models.openai.client import OpenAIModel
from agent.models.openai.wire import request_body
from agent.settings import ModelSettings
from tests.support.model_server import Fault, Reply, SinkSpy
from tests.support.openai_server import OpenAIServer

KEY = "sk-secret-0123456789"
CLOCK = ToolSchema("current_time", "Tells the time.", {"type": "object", "properties": {}})
ASK = [user_message("hello")]


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer(api_key=KEY) as running:
        yield running


@asynccontextmanager
async def connect(server: OpenAIServer, **settings: object) -> AsyncIterator[OpenAIModel]:
    defaults = {"provider": "openai", "name": "local-1", "api_key": KEY, "base_url": server.url}
    model = OpenAIModel(ModelSettings.model_validate(defaults | settings))
    try:
        yield model
    finally:
        await model.close()


async def ask(
    server: OpenAIServer, request: ModelRequest | None = None, sink: SinkSpy | None = None
) -> Completion:
    async with connect(server) as model:
        return await model.complete(request or ModelRequest(ASK), sink or SinkSpy())


def arguments_of(completion: Completion) -> list[str]:
    return [call["function"]["arguments"] for call in completion.message["tool_calls"]]


async def test_text_streams_to_the_sink(server: OpenAIServer) -> None:
    """The visible text arrives in pieces and is the message's content."""
    server.script(Reply(text="Good morning, world."))
    sink = SinkSpy()
    completion = await ask(server, sink=sink)
    assert completion.message == assistant_message("Good morning, world.")
    assert (completion.stop_reason, completion.model) == ("stop", "local-1")
    assert len(sink.pushed) > 1
    assert sink.text == "Good morning, world."


async def test_request_carries_limit_tools_and_usage_option(server: OpenAIServer) -> None:
    """A compatible server gets max_tokens, the tools, and is asked for usage."""
    server.script(Reply(text="ok"))
    messages = [ChatMessage(role="system", content="Be brief."), *ASK]
    await ask(server, ModelRequest(messages, (CLOCK,), 100, allow_tools=False))
    function = {
        "name": "current_time",
        "description": "Tells the time.",
        "parameters": {"type": "object", "properties": {}},
    }
    assert server.requests[0].body == {
        "model": "local-1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
        ],
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "none",
    }


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        (None, "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("http://localhost:1/v1", "max_tokens"),
        ("https://api.openai.com.example.org/v1", "max_tokens"),
    ],
)
async def test_name_of_the_limit_follows_the_host(base_url: str | None, key: str) -> None:
    """Only OpenAI itself knows max_completion_tokens for sure."""
    settings = ModelSettings.model_validate({
        "provider": "openai",
        "api_key": KEY,
        "base_url": base_url,
    })
    model = OpenAIModel(settings)
    assert key in model._body(ModelRequest(ASK), model.mode.quirks)
    await model.close()


async def test_tool_call_and_result_make_a_round(server: OpenAIServer) -> None:
    """Calls come back complete, and the history with their results is accepted."""
    server.script(
        Reply(calls=(("current_time", {"z": 1}), ("b", ""))), Reply(text="Noon in Paris.")
    )
    first = await ask(server, ModelRequest(ASK, (CLOCK,)))
    assert arguments_of(first) == ['{"z":1}', "{}"]
    assert first.stop_reason == "tool_calls"
    assert first.message["content"] is None
    results = [tool_message(c["id"], "current_time", "12:00") for c in first.message["tool_calls"]]
    history = [*ASK, first.message, *results]
    assert (await ask(server, ModelRequest(history))).message["content"] == "Noon in Paris."


async def test_calls_that_share_an_index_stay_apart(server: OpenAIServer) -> None:
    """Servers that give every call the index 0 are understood by the ids."""
    server.script(Reply(calls=(("a", {"x": 1}), ("b", {"y": 2})), extra={"one_index": True}))
    assert arguments_of(await ask(server)) == ['{"x":1}', '{"y":2}']


async def test_missing_ids_are_deterministic(server: OpenAIServer) -> None:
    """A call without id gets one that depends on place, name and arguments only."""
    reply = Reply(calls=(("a", {}), ("a", {})), extra={"call_ids": False})
    server.script(reply, reply, reply)
    ids = [[c["id"] for c in (await ask(server)).message["tool_calls"]] for _ in range(2)]
    later = await ask(server, ModelRequest([*ASK, assistant_message("x"), *ASK]))
    assert ids[0] == ids[1]
    assert len({*ids[0], *[c["id"] for c in later.message["tool_calls"]]}) == 4


async def test_stop_with_calls_means_tool_calls(server: OpenAIServer) -> None:
    """Servers that call it "stop" do not make the calls disappear."""
    server.script(Reply(calls=(("a", {}),), stop="stop"))
    assert (await ask(server)).stop_reason == "tool_calls"


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("stop", "stop"),
        ("tool_calls", "stop"),
        ("length", "length"),
        ("content_filter", "refused"),
        ("eos", "stop"),
    ],
)
async def test_stop_reasons(server: OpenAIServer, reported: str, expected: str) -> None:
    """Each finish reason has its meaning; calls that are not there are not announced."""
    server.script(Reply(text="So", stop=reported))
    assert (await ask(server)).stop_reason == expected


async def test_refusal_is_refused(server: OpenAIServer) -> None:
    """The refusal text is the message, whatever the finish reason."""
    server.script(Reply(extra={"refusal": "I will not do that."}, calls=(("a", {}),)))
    completion = await ask(server)
    assert completion.stop_reason == "refused"
    assert completion.message == assistant_message("I will not do that.")


async def test_cached_tokens_are_not_input(server: OpenAIServer) -> None:
    """What came from the cache is counted apart, the sum stays what fills the window."""
    reported = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}
    server.script(Reply(text="abcd", usage=reported))
    usage = (await ask(server)).usage
    assert usage == Usage(input_tokens=36, output_tokens=2, cache_read_tokens=64)


async def test_no_report_is_no_usage(server: OpenAIServer) -> None:
    """A server that reports nothing leaves the usage unknown."""
    server.script(Reply(text="x", usage=None))
    assert (await ask(server)).usage is None


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_fields(server: OpenAIServer, field: str) -> None:
    """Both spellings are reasoning and are not shown."""
    server.script(Reply(text="Yes.", thinking="Hm, well.", extra={"reasoning_field": field}))
    sink = SinkSpy()
    message = (await ask(server, sink=sink)).message
    assert (message["reasoning"], message["content"], sink.text) == ("Hm, well.", "Yes.", "Yes.")


async def test_twin_reasoning_fields_count_once(server: OpenAIServer) -> None:
    """A server that fills both fields does not double the thought; other types are ignored."""
    raw = [{"reasoning_content": "Hm.", "reasoning": "Hm."}, {"reasoning": {"x": 1}}]
    server.script(Reply(text="Yes.", extra={"raw": raw}))
    assert (await ask(server)).message["reasoning"] == "Hm."


async def test_tagged_reasoning_is_split_off(server: OpenAIServer) -> None:
    """A think block cut anywhere is never pushed as text."""
    server.script(Reply(text="<think>\nHm, well.\n</think>\n\nYes.", piece=3))
    sink = SinkSpy()
    message = (await ask(server, sink=sink)).message
    assert (message["reasoning"], message["content"], sink.text) == ("Hm, well.", "Yes.", "Yes.")


async def test_a_thought_without_an_opening_mark_is_taken_back(server: OpenAIServer) -> None:
    """Once; the next answers of this model are not shown before their thought is closed."""
    thought = "The user greets me. I should greet back.\n</think>\n\nHello!"
    server.script(*[Reply(text=thought, piece=3)] * 2, *[Reply(text="No thought.", piece=3)] * 2)
    restarts, said = [], []
    async with connect(server) as model:
        for _ in range(4):
            sink = SinkSpy()
            done = await model.complete(ModelRequest(ASK), sink)
            assert done.message["content"] == sink.text
            restarts.append(sink.restarts)
            said.append((sink.text, done.message.get("reasoning"), len(sink.pushed) > 1))
    hidden = "The user greets me. I should greet back."
    assert restarts == [1, 0, 0, 0]
    assert said == [
        ("Hello!", hidden, True),
        ("Hello!", hidden, True),
        ("No thought.", None, False),
        ("No thought.", None, True),
    ]


async def test_structured_reasoning_wins_over_tags(server: OpenAIServer) -> None:
    """With a reasoning field the tagged block is neither shown nor kept."""
    server.script(Reply(text="<think>tagged</think>Yes.", thinking="structured"))
    message = (await ask(server)).message
    assert (message["reasoning"], message["content"]) == ("structured", "Yes.")


async def test_emoji_split_over_two_deltas(server: OpenAIServer) -> None:
    """Halves of a surrogate pair are joined before they are shown; a lone half is replaced."""
    raw = [{"content": "a\ud83d"}, {"content": "\ude00b"}, {"content": "\ud83d"}, {"content": "!"}]
    server.script(Reply(extra={"raw": raw}))
    sink = SinkSpy()
    message = (await ask(server, sink=sink)).message
    assert message["content"] == sink.text == "a😀b\ufffd!"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(status=400), BadRequest),
        (Fault(status=400, error="context_length_exceeded"), ContextOverflow),
        (
            Fault(status=400, message="This model's maximum context length is 8192 tokens"),
            ContextOverflow,
        ),
        (Fault(status=400, error="content_filter"), ModelRefused),
        (Fault(status=401, error="invalid_api_key"), CredentialsRefused),
        (Fault(status=402), CreditUsedUp),
        (Fault(status=403), CredentialsRefused),
        (Fault(status=403, error="model_not_found"), ModelNotFound),
        (Fault(status=404, error="model_not_found"), ModelNotFound),
        (Fault(status=413), ContextOverflow),
        (Fault(status=422), BadRequest),
        (Fault(status=429, error="rate_limit_exceeded"), RateLimited),
        (Fault(status=429, error="insufficient_quota"), CreditUsedUp),
        (Fault(status=500), ModelUnreachable),
        (Fault(status=502, html="<h1>Bad gateway</h1>"), ModelUnreachable),
        (Fault(status=529), RateLimited),
    ],
)
async def test_http_errors(server: OpenAIServer, fault: Fault, expected: type[ModelError]) -> None:
    """Status and error code decide what a failure means, and it is not retried in here."""
    server.script(fault)
    with pytest.raises(ModelError) as caught:
        await ask(server)
    assert type(caught.value) is expected
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("rate_limit_exceeded", RateLimited),
        ("429", RateLimited),
        ("502", ModelUnreachable),
        ("server_error", ModelUnreachable),
        ("context_length_exceeded", ContextOverflow),
    ],
)
async def test_error_events_in_a_stream(
    server: OpenAIServer, code: str, expected: type[ModelError]
) -> None:
    """An error inside a stream is judged by its code, which may be an HTTP status."""
    server.script(Reply(text="Half an", error=code))
    with pytest.raises(expected):
        await ask(server)


async def test_retry_after_is_read(server: OpenAIServer) -> None:
    """The finer header wins."""
    headers = {"retry-after-ms": "250", "retry-after": "1"}
    server.script(Fault(status=429, headers=headers))
    with pytest.raises(RateLimited) as caught:
        await ask(server)
    assert caught.value.retry_after_s == pytest.approx(0.25)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="Once upon a", trouble="cut"),
        Reply(text="Once upon a", stop="error"),
    ],
)
async def test_cut_streams_are_unreachable(server: OpenAIServer, reply: Reply) -> None:
    """Text without an end, or whose server gave up, is no answer."""
    server.script(reply)
    with pytest.raises(ModelUnreachable):
        await ask(server)


async def test_orderly_end_without_finish_reason_is_unreachable(server: OpenAIServer) -> None:
    """A proxy that ends the body early does not make the half answer whole."""
    server.frames = lambda body, reply: OpenAIServer.frames(server, body, reply)[:2]  # type: ignore[method-assign]
    server.script(Reply(text="Once upon a"))
    with pytest.raises(ModelUnreachable, match="cut"):
        await ask(server)


async def test_garbage_in_the_stream_is_unreachable(server: OpenAIServer) -> None:
    """A chunk that is not JSON ends the call like a cut."""
    server.frames = lambda body, reply: [b"data: {oops\n\n"]  # type: ignore[method-assign]
    server.script(Reply(text="x"))
    with pytest.raises(ModelUnreachable):
        await ask(server)


@pytest.mark.parametrize("extra", [{"done": False}, {}])
async def test_end_after_the_finish_reason_is_enough(
    server: OpenAIServer, extra: dict[str, object]
) -> None:
    """An answer is whole without `[DONE]` and with a connection reset behind it."""
    server.script(Reply(text="All said.", trouble=None if extra else "cut_after_end", extra=extra))
    assert (await ask(server)).message["content"] == "All said."


async def test_chunks_without_choices_or_delta_are_harmless(server: OpenAIServer) -> None:
    """Keep-alive chunks of proxies, with nulls where lists should be, are passed over."""
    odd = [b'data: {"choices": null}\n\n', b'data: {"choices": [{"delta": null}]}\n\n']
    server.frames = lambda body, reply: odd + OpenAIServer.frames(server, body, reply)  # type: ignore[method-assign]
    server.script(Reply(text="Fine."))
    assert (await ask(server)).message["content"] == "Fine."


@pytest.mark.thorough
async def test_silence_is_unreachable(server: OpenAIServer) -> None:
    """No byte for `idle_timeout_s` ends the call and the connection; pings are another trouble."""
    server.script(Reply(text="Well", trouble="stall"))
    async with connect(server, idle_timeout_s=1) as model:
        with pytest.raises(ModelUnreachable, match="no answer in time"):
            await model.complete(ModelRequest(ASK), SinkSpy())
    await asyncio.wait_for(server.left.wait(), 15)


async def test_cancellation_closes_the_connection(server: OpenAIServer) -> None:
    """Who cancels a call does not leave the provider writing."""
    server.script(Reply(text="Well", trouble="stall"))
    sink = SinkSpy()
    async with connect(server) as model, asyncio.timeout(30):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(model.complete(ModelRequest(ASK), sink), name="call")
            await sink.started.wait()
            task.cancel()
        await server.left.wait()
    assert task.cancelled()


async def test_errors_do_not_hold_the_key(server: OpenAIServer) -> None:
    """A provider that echoes the key does not get it into our errors."""
    wrong = "sk-wrong-9876543210"
    async with connect(server, api_key=wrong) as model:
        with pytest.raises(CredentialsRefused) as caught:
            await model.complete(ModelRequest(ASK), SinkSpy())
    assert "Incorrect API key" in str(caught.value)
    assert wrong not in str(caught.value)


async def test_local_server_needs_no_key() -> None:
    """Without a key the call is made all the same, and no key of the environment is used."""
    async with OpenAIServer(default=Reply(text="hi")) as server:
        async with connect(server, api_key=None) as model:
            await model.complete(ModelRequest(ASK), SinkSpy())
        assert server.requests[0].headers["authorization"] == "Bearer none"


def test_foreign_fields_are_dropped_and_arguments_mended() -> None:
    """Reasoning, opaque, synthetic and names stay here; broken arguments become an object."""
    call = ToolCall(id="t", type="function", function={"name": "a", "arguments": "{oops"})
    asked = ChatMessage(role="assistant", content="", tool_calls=[call], reasoning="hm")
    thought = ChatMessage(role="assistant", content="", reasoning="hm", opaque={"anthropic": [1]})
    history = [user_message("x", synthetic=True), thought, asked, tool_message("t", "a", "r")]
    wired = request_body(ModelRequest(history), "m")["messages"]
    function = {"name": "a", "arguments": '{"_invalid":"{oops"}'}
    assert wired == [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "t", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t", "content": "r"},
    ]


async def test_open_call_is_refused_by_the_server(server: OpenAIServer) -> None:
    """The double is as strict as the API: a call without result is a bad request."""
    call = ToolCall(id="t", type="function", function={"name": "a", "arguments": "{}"})
    history = [*ASK, ChatMessage(role="assistant", content=None, tool_calls=[call])]
    with pytest.raises(BadRequest, match="did not have response"):
        await ask(server, ModelRequest(history))
