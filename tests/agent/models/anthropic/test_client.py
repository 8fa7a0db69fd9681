"""AnthropicModel: the real SDK against a strict loopback server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
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
from agent.models.anthropic.client import AnthropicModel
from agent.models.anthropic.wire import request_body, wire_id
from agent.models.base import Completion, ModelRequest
from agent.settings import ModelSettings
from tests.support.anthropic_server import AnthropicServer, signature
from tests.support.model_server import Fault, Reply, SinkSpy

KEY = "sk-ant-secret-0123456789"
CLOCK = ToolSchema("current_time", "Tells the time.", {"type": "object", "properties": {}})
ASK = [user_message("hello")]


def turns_of(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages of the request that these make."""
    turns: list[dict[str, Any]] = request_body(ModelRequest(messages), "claude-x")["messages"]
    return turns


def call(call_id: str, arguments: str = "{}", name: str = "current_time") -> ToolCall:
    return ToolCall(id=call_id, type="function", function={"name": name, "arguments": arguments})


def calling(*calls: ToolCall, text: str = "") -> ChatMessage:
    return ChatMessage(role="assistant", content=text or None, tool_calls=list(calls))


@pytest.fixture
async def server() -> AsyncIterator[AnthropicServer]:
    async with AnthropicServer(api_key=KEY) as running:
        yield running


@asynccontextmanager
async def connect(
    server: AnthropicServer, *, key: str = KEY, idle_timeout_s: float = 5
) -> AsyncIterator[AnthropicModel]:
    settings = ModelSettings.model_validate({
        "provider": "anthropic",
        "base_url": server.url,
        "api_key": key,
        "idle_timeout_s": idle_timeout_s,
    })
    model = AnthropicModel(settings)
    try:
        yield model
    finally:
        await model.close()


async def ask(
    server: AnthropicServer, request: ModelRequest | None = None, sink: SinkSpy | None = None
) -> Completion:
    async with connect(server) as model:
        return await model.complete(request or ModelRequest(ASK), sink or SinkSpy())


async def test_text_streams_to_the_sink(server: AnthropicServer) -> None:
    """The visible text arrives in pieces and is the message's content."""
    server.script(Reply(text="Good morning, world."))
    sink = SinkSpy()
    completion = await ask(server, sink=sink)
    assert completion.message == assistant_message("Good morning, world.")
    assert (completion.stop_reason, completion.model) == ("stop", "claude-sonnet-5-5")
    assert len(sink.pushed) > 1
    assert sink.text == "Good morning, world."


async def test_request_carries_limit_system_tools_and_conversation(server: AnthropicServer) -> None:
    """Everything of a request that the API knows is sent, and no sampling parameter."""
    server.script(Reply(text="ok"))
    messages = [ChatMessage(role="system", content="Be brief."), *ASK]
    await ask(server, ModelRequest(messages, (CLOCK,), 100, conversation="c-7"))
    body = server.requests[0].body
    assert body == {
        "model": "claude-sonnet-5-5",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "tools": [
            {
                "name": "current_time",
                "description": "Tells the time.",
                "input_schema": {"type": "object", "properties": {}},
            }
        ],
        "metadata": {"user_id": "c-7"},
        "stream": True,
    }


async def test_tools_stay_but_may_not_be_called(server: AnthropicServer) -> None:
    """`allow_tools` False keeps the tools in the prefix and forbids calls."""
    server.script(Reply(text="ok"))
    await ask(server, ModelRequest(ASK, (CLOCK,), allow_tools=False))
    assert server.requests[0].body["tool_choice"] == {"type": "none"}
    assert len(server.requests[0].body["tools"]) == 1


async def test_tool_calls_come_back_with_their_arguments(server: AnthropicServer) -> None:
    """Arguments are canonical JSON, "{}" where the model wrote nothing."""
    server.script(Reply(text="Looking.", calls=(("a", {"z": 1, "b": [2]}), ("b", ""))))
    completion = await ask(server, ModelRequest(ASK, (CLOCK,)))
    calls = completion.message["tool_calls"]
    assert [c["function"]["arguments"] for c in calls] == ['{"b":[2],"z":1}', "{}"]
    assert [c["function"]["name"] for c in calls] == ["a", "b"]
    assert calls[0]["id"].startswith("toolu_")
    assert completion.stop_reason == "tool_calls"
    assert completion.message["content"] == "Looking."


async def test_thinking_is_kept_apart_and_replayed_verbatim(server: AnthropicServer) -> None:
    """Signed thinking is not shown, and the API takes it back in the next request."""
    server.script(
        Reply(thinking="Hm, which time?", calls=(("current_time", {}),), extra={"redacted": "x9"}),
        Reply(text="Noon."),
    )
    sink = SinkSpy()
    first = await ask(server, ModelRequest(ASK, (CLOCK,)), sink)
    assert first.message["reasoning"] == "Hm, which time?"
    assert not sink.pushed
    call_id = first.message["tool_calls"][0]["id"]
    history = [*ASK, first.message, tool_message(call_id, "current_time", "12:00")]
    assert (await ask(server, ModelRequest(history, (CLOCK,)))).message["content"] == "Noon."
    blocks = server.requests[1].body["messages"][1]["content"]
    assert [block["type"] for block in blocks] == ["redacted_thinking", "thinking", "tool_use"]
    assert blocks[0] == {"type": "redacted_thinking", "data": "x9"}
    assert blocks[1]["signature"] == signature("Hm, which time?")


async def test_unsigned_thinking_is_not_replayed(server: AnthropicServer) -> None:
    """A thinking block without signature is reasoning, but nothing the API would take back."""
    server.script(Reply(text="Yes.", thinking="hm", extra={"signature": ""}))
    message = (await ask(server)).message
    assert message["reasoning"] == "hm"
    assert "opaque" not in message


async def test_whole_input_in_the_first_event_counts(server: AnthropicServer) -> None:
    """A proxy that sends the input with the start of the block loses no arguments."""
    server.frames = lambda body, reply: [  # type: ignore[method-assign]
        frame.replace(b'"input": {}', b'"input": {"a": 1}')
        for frame in AnthropicServer.frames(server, body, reply)
    ]
    server.script(Reply(calls=(("a", ""),)))
    message = (await ask(server, ModelRequest(ASK, (CLOCK,)))).message
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
        ("something_new", "stop"),
    ],
)
async def test_stop_reasons(server: AnthropicServer, reported: str, expected: str) -> None:
    """Each of the provider's stop reasons has its meaning."""
    server.script(Reply(text="So", stop=reported))
    assert (await ask(server)).stop_reason == expected


async def test_full_window_without_an_answer_is_an_overflow(server: AnthropicServer) -> None:
    """Where nothing was said continuing is of no use: the context must shrink."""
    server.script(Reply(stop="model_context_window_exceeded"))
    with pytest.raises(ContextOverflow):
        await ask(server)


async def test_call_cut_by_the_output_limit_is_left_out(server: AnthropicServer) -> None:
    """Half a call is not run, and the answer counts as too long."""
    server.script(Reply(text="Wait", calls=(("a", '{"text": "once up'),), stop="max_tokens"))
    completion = await ask(server, ModelRequest(ASK, (CLOCK,)))
    assert completion.stop_reason == "length"
    assert completion.message == assistant_message("Wait")


async def test_usage_counts_both_cache_lifetimes(server: AnthropicServer) -> None:
    """Cache creation is split by lifetime; the totals of the last event win."""
    reported = {
        "input_tokens": 3,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 70,
        "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 20},
    }
    server.script(Reply(text="x", usage=reported, extra={"final_usage": {"output_tokens": 9}}))
    usage = (await ask(server)).usage
    assert usage == Usage(3, 9, 1000, 50, 20)


async def test_last_usage_report_wins(server: AnthropicServer) -> None:
    """The end of the stream may correct every figure of its start."""
    final = {
        "input_tokens": 5,
        "output_tokens": 6,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 8,
    }
    server.script(Reply(text="x", extra={"final_usage": final}))
    assert (await ask(server)).usage == Usage(5, 6, 7, 8, 0)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(status=400, error="invalid_request_error"), BadRequest),
        (
            Fault(status=400, error="invalid_request_error", message="prompt is too long: 9 > 8"),
            ContextOverflow,
        ),
        (
            Fault(
                status=400,
                error="invalid_request_error",
                message="Your credit balance is too low to access the Anthropic API",
            ),
            CreditUsedUp,
        ),
        (Fault(status=401, error="authentication_error"), CredentialsRefused),
        (Fault(status=402, error="billing_error"), CreditUsedUp),
        (Fault(status=403, error="permission_error"), CredentialsRefused),
        (Fault(status=404, error="not_found_error"), ModelNotFound),
        (Fault(status=413, error="request_too_large"), ContextOverflow),
        (Fault(status=422, error="unheard_of"), BadRequest),
        (Fault(status=429, error="rate_limit_error"), RateLimited),
        (Fault(status=500, error="api_error"), ModelUnreachable),
        (Fault(status=502, html="<h1>Bad gateway</h1>"), ModelUnreachable),
        (Fault(status=504, error="timeout_error"), ModelUnreachable),
        (Fault(status=529, error="overloaded_error"), RateLimited),
    ],
)
async def test_http_errors(
    server: AnthropicServer, fault: Fault, expected: type[ModelError]
) -> None:
    """Status and error type decide what a failure means, and it is not retried in here."""
    server.script(fault)
    with pytest.raises(ModelError) as caught:
        await ask(server)
    assert type(caught.value) is expected
    assert len(server.requests) == 1


async def test_a_spend_limit_is_money_that_is_gone(server: AnthropicServer) -> None:
    """An error code that names a used-up budget wins over the status 429."""
    details = {"error_code": "enforced_spend_limit_reached"}
    error = {"type": "rate_limit_error", "message": "limit", "details": details}
    server.error_body = lambda fault: {"type": "error", "error": error}  # type: ignore[method-assign]
    server.script(Fault(status=429))
    with pytest.raises(CreditUsedUp):
        await ask(server)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", RateLimited),
        ("rate_limit_error", RateLimited),
        ("api_error", ModelUnreachable),
        ("invalid_request_error", BadRequest),
    ],
)
async def test_error_events_in_a_stream(
    server: AnthropicServer, kind: str, expected: type[ModelError]
) -> None:
    """An error event comes with status 200 and is judged by its type."""
    server.script(Reply(text="Half an", error=kind))
    with pytest.raises(expected):
        await ask(server)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, 1.5),
        ({"retry-after": "Thu, 01 Jan 2015 00:00:00 -0000"}, 0, 0),
        ({"retry-after": "-3"}, 0, 0),
    ],
)
async def test_retry_after(
    server: AnthropicServer, headers: dict[str, str], least: float, most: float
) -> None:
    """Seconds, milliseconds and dates are understood; the past means now."""
    server.script(Fault(status=429, error="rate_limit_error", headers=headers))
    with pytest.raises(RateLimited) as caught:
        await ask(server)
    assert caught.value.retry_after_s is not None
    assert least <= caught.value.retry_after_s <= most


async def test_retry_after_a_date(server: AnthropicServer) -> None:
    """A date in the future is so many seconds from now."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90))
    server.script(Fault(status=429, error="rate_limit_error", headers={"retry-after": date}))
    with pytest.raises(RateLimited) as caught:
        await ask(server)
    assert caught.value.retry_after_s is not None
    assert 60 <= caught.value.retry_after_s <= 90


@pytest.mark.parametrize("header", ["soon", "nan", ""])
async def test_senseless_retry_after_is_none(server: AnthropicServer, header: str) -> None:
    """A header that says nothing leaves the wait to the policy."""
    server.script(Fault(status=429, headers={"retry-after": header}))
    with pytest.raises(RateLimited) as caught:
        await ask(server)
    assert caught.value.retry_after_s is None


async def test_cut_stream_is_unreachable(server: AnthropicServer) -> None:
    """Text without an end is no answer."""
    server.script(Reply(text="Once upon a", trouble="cut"))
    with pytest.raises(ModelUnreachable):
        await ask(server)


async def test_orderly_end_without_any_sign_of_the_end_is_unreachable(
    server: AnthropicServer,
) -> None:
    """A proxy that ends the body early does not make the half answer whole."""
    server.frames = lambda body, reply: AnthropicServer.frames(server, body, reply)[:-2]  # type: ignore[method-assign]
    server.script(Reply(text="Once upon a"))
    with pytest.raises(ModelUnreachable, match="cut"):
        await ask(server)


async def test_garbage_in_the_stream_is_unreachable(server: AnthropicServer) -> None:
    """An event that is not JSON ends the call like a cut."""
    server.frames = lambda body, reply: [b"event: message_start\ndata: {oops\n\n"]  # type: ignore[method-assign]
    server.script(Reply(text="x"))
    with pytest.raises(ModelUnreachable):
        await ask(server)


async def test_reset_after_the_last_event_does_not_matter(server: AnthropicServer) -> None:
    """What was said completely counts, whatever then happens to the connection."""
    server.script(Reply(text="All said.", trouble="cut_after_end"))
    assert (await ask(server)).message["content"] == "All said."


@pytest.mark.thorough
async def test_silence_is_unreachable(server: AnthropicServer) -> None:
    """No byte for `idle_timeout_s` ends the call and the connection."""
    server.script(Reply(text="Well", trouble="stall"))
    async with connect(server, idle_timeout_s=1) as model:
        with pytest.raises(ModelUnreachable):
            await model.complete(ModelRequest(ASK), SinkSpy())
    await asyncio.wait_for(server.left.wait(), 15)


@pytest.mark.thorough
async def test_slow_stream_is_no_silence(server: AnthropicServer) -> None:
    """A stream that takes longer than `idle_timeout_s` in all is fine while bytes come."""
    server.script(Reply(text="abcdefgh", piece=1, pause_s=0.7))
    async with connect(server, idle_timeout_s=4) as model:
        completion = await model.complete(ModelRequest(ASK), SinkSpy())
    assert completion.message["content"] == "abcdefgh"


async def test_nobody_listens() -> None:
    """A refused connection is unreachable; the reason is the system's."""
    async with AnthropicServer() as server:
        url = server.url
    settings = ModelSettings.model_validate({
        "provider": "anthropic",
        "base_url": url,
        "api_key": KEY,
    })
    model = AnthropicModel(settings)
    with pytest.raises(ModelUnreachable, match="Cannot connect to host"):
        await model.complete(ModelRequest(ASK), SinkSpy())
    await model.close()


async def test_cancellation_closes_the_connection(server: AnthropicServer) -> None:
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


async def test_connection_is_used_again(server: AnthropicServer) -> None:
    """A finished stream leaves its connection to the next call."""
    server.script(Reply(text="one"), Reply(text="two"))
    async with connect(server) as model:
        await model.complete(ModelRequest(ASK), SinkSpy())
        await model.complete(ModelRequest(ASK), SinkSpy())
    assert server.connections == 1


async def test_errors_do_not_hold_the_key(server: AnthropicServer) -> None:
    """A provider that echoes the key does not get it into our errors."""
    wrong = "sk-ant-wrong-9876543210"
    async with connect(server, key=wrong) as model:
        with pytest.raises(CredentialsRefused) as caught:
            await model.complete(ModelRequest(ASK), SinkSpy())
    assert "invalid key" in str(caught.value)
    assert wrong not in str(caught.value)


@pytest.mark.parametrize("key", ["schlüssel", "sk-ant\n-broken"])
def test_impossible_key_is_refused_at_once(key: str) -> None:
    """A key that no header can carry is refused without being shown."""
    settings = ModelSettings.model_validate({"provider": "anthropic", "api_key": key})
    with pytest.raises(CredentialsRefused) as caught:
        AnthropicModel(settings)
    assert key not in str(caught.value)


def test_consecutive_user_messages_become_one() -> None:
    """Two messages of a person stand as two blocks in one message."""
    assert turns_of([user_message("a"), user_message("b", synthetic=True)]) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


async def test_results_stand_in_call_order_before_the_users_text(server: AnthropicServer) -> None:
    """Results recorded out of order and what the person wrote meanwhile make one message."""
    history = [
        *ASK,
        calling(call("t1"), call("t2"), text="Two."),
        tool_message("t2", "current_time", "second"),
        tool_message("t1", "current_time", ""),
        user_message("and?"),
    ]
    server.script(Reply(text="ok"))
    await ask(server, ModelRequest(history, (CLOCK,)))
    assert server.requests[0].body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "t1"},
        {"type": "tool_result", "tool_use_id": "t2", "content": "second"},
        {"type": "text", "text": "and?"},
    ]


async def test_foreign_ids_are_rewritten_alike_for_call_and_result(
    server: AnthropicServer,
) -> None:
    """Ids of other providers, also two that look alike once cleaned, keep their pairs."""
    history = [
        *ASK,
        calling(call("fc:1.a"), call("fc.1:a")),
        tool_message("fc:1.a", "current_time", "one"),
        tool_message("fc.1:a", "current_time", "two"),
    ]
    server.script(Reply(text="ok"))
    await ask(server, ModelRequest(history, (CLOCK,)))
    assert not server.refused


def test_good_id_stays() -> None:
    """An id that the API takes is sent as it is."""
    assert wire_id("toolu_01-AZ") == "toolu_01-AZ"


async def test_open_call_is_refused_by_the_server(server: AnthropicServer) -> None:
    """The double is as strict as the API: a call without result is a bad request."""
    with pytest.raises(BadRequest, match="without `tool_result`"):
        await ask(server, ModelRequest([*ASK, calling(call("t1")), user_message("x")], (CLOCK,)))


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"b": 1, "a": 2}', {"b": 1, "a": 2}),
        ("", {"_invalid": ""}),
        ("[1]", {"_invalid": "[1]"}),
        ('{"a": NaN}', {"_invalid": '{"a": NaN}'}),
    ],
)
def test_arguments_become_an_object(arguments: str, sent: dict[str, object]) -> None:
    """Arguments keep their key order; what is no JSON object is wrapped."""
    blocks = turns_of([*ASK, calling(call("t", arguments))])[1]["content"]
    assert blocks[0]["input"] == sent
    assert list(blocks[0]["input"]) == list(sent)


def test_nothing_empty_is_sent() -> None:
    """Messages without text, and thinking without an answer, are left out."""
    thought = ChatMessage(role="assistant", content="", reasoning="hm")
    thought["opaque"] = {"anthropic": [{"type": "redacted_thinking", "data": "x"}]}
    history = [user_message("a"), thought, user_message(" \n"), user_message("b")]
    assert [len(turn["content"]) for turn in turns_of(history)] == [2]


def test_foreign_fields_are_dropped() -> None:
    """Reasoning and other providers' opaque fields do not reach the wire."""
    message = ChatMessage(role="assistant", content="hi", reasoning="hm", opaque={"openai": [1]})
    assert turns_of([*ASK, message])[1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "hi"}],
    }


def test_output_limit_of_the_model_is_respected() -> None:
    """A known model is not asked for more than it can write."""
    request = ModelRequest(ASK, max_output_tokens=500_000)
    assert request_body(request, "claude-haiku-4-5")["max_tokens"] == 64_000
    assert request_body(request, "claude-next-9")["max_tokens"] == 500_000
