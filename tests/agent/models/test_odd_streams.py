"""Streams of proxies that only look like the API: an answer or a ModelError, nothing else."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson
import pytest

from agent.errors import (
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelUnreachable,
    RateLimited,
)
from agent.messages import ChatMessage, Usage
from agent.models.anthropic import wire as anthropic_wire
from agent.models.base import Completion, ModelRequest
from agent.models.openai import wire as openai_wire
from agent.models.wire import MOST_TOKENS
from agent.tokens import estimate_tokens
from tests.agent.models.clients import ASK, BOTH, CLOCK, KEY, Double, ask, connected
from tests.support.anthropic_server import AnthropicServer
from tests.support.model_server import Fault, ModelServer, Reply, SinkSpy
from tests.support.openai_server import OpenAIServer
from tests.support.responses_server import ResponsesServer
from tests.support.thorough import amount

Event = Any
"""An event of a stream as JSON."""

MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": []}
USAGE = {"input_tokens": 5, "output_tokens": 1}
CACHED = {"cache_creation_input_tokens": 9, "cache_read_input_tokens": 7}


def sse(event: Event) -> bytes:
    name = event.get("type", "message_start") if isinstance(event, dict) else "message_start"
    return f"event: {name}\ndata: {json.dumps(event)}\n\n".encode()


def play(server: ModelServer, *events: Event, done: bool = True) -> None:
    """Have the next request answered with these events."""
    frames = [sse(event) for event in events]
    if isinstance(server, OpenAIServer):
        frames = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
        frames += [b"data: [DONE]\n\n"] * done
    server.frames = lambda body, reply: frames  # type: ignore[method-assign]
    server.script(Reply())


@pytest.mark.parametrize("server_type", BOTH)
async def test_thoughts_in_the_text_are_hidden_on_every_wire(server_type: Double) -> None:
    """A server whose parser of thoughts is off is none the better over another API."""
    async with server_type() as server, connected(server) as model:
        server.script(*[Reply(text="Greet back.\n</think>\n\nHello!", piece=3)] * 2)
        server.script(Reply(text="<think>Look.</think>", calls=(("current_time", {}),)))
        for restarts in (1, 0):
            sink = SinkSpy()
            message = (await model.complete(ModelRequest(ASK), sink)).message
            assert (message["content"], message["reasoning"]) == ("Hello!", "Greet back.")
            assert (sink.text, sink.restarts) == ("Hello!", restarts)
        called = (await model.complete(ModelRequest(ASK, (CLOCK,)), SinkSpy())).message
        assert (called.get("content") or "", called["reasoning"]) == ("", "Look.")
        assert len(called["tool_calls"]) == 1


@pytest.mark.parametrize("server_type", BOTH)
async def test_a_call_as_text_is_noticed_on_every_wire(server_type: Double) -> None:
    """The operator is told that the server's parser of calls is off."""
    async with server_type() as server, connected(server) as model:
        server.script(Reply(text='<tool_call>{"name": "current_time"}</tool_call>'))
        await model.complete(ModelRequest(ASK, (CLOCK,)), SinkSpy())
        assert "tool_parser_off" in model.mode.quirks


async def test_signed_thinking_keeps_its_place_behind_what_may_become_a_mark() -> None:
    """The text in front of it is over: nothing of it is held back."""
    signed = {"type": "thinking", "thinking": "hm", "signature": "s"}
    message = (await native(start(usage=USAGE), *block(0, {"type": "text", "text": "1 <"}),
        *block(1, signed), *block(2, {"type": "text", "text": " 2"}), *end())).message  # fmt: skip
    assert (message["content"], message["opaque"]["anthropic_places"]) == ("1 < 2", [[3, 0]])


# Anthropic's


def block(index: int, begun: Event, *deltas: Event) -> list[Event]:
    events = [{"type": "content_block_start", "index": index, "content_block": begun}]
    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [*events, {"type": "content_block_stop", "index": index}]


def start(**fields: Event) -> Event:
    return {"type": "message_start", "message": MESSAGE | fields}


def end(**fields: Event) -> list[Event]:
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, **fields}, {"type": "message_stop"}]


HI = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hi there"})
PLAIN = (start(usage=USAGE), *HI, *end(usage={"output_tokens": 2}))


async def native(*events: Event) -> Completion:
    async with AnthropicServer() as server:
        play(server, *events)
        return await ask(server)


@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        ({"usage": USAGE}, {"usage": {"output_tokens": 3}}, Usage(5, 3)),
        ({"usage": USAGE | CACHED}, {"usage": {"output_tokens": 3}}, Usage(5, 3, 7, 9)),
        ({}, {"usage": {"output_tokens": 3}}, None),
        ({"usage": {}}, {"usage": {"output_tokens": 3}}, None),
        ({"usage": {"input_tokens": None}}, {}, None),
        ({"usage": {"input_tokens": 0}}, {"usage": {**USAGE, "input_tokens": 8}}, Usage(8, 1)),
        ({"usage": {**USAGE, "input_tokens": -5}}, {"usage": USAGE}, Usage(5, 1)),
        ({"usage": {**USAGE, "input_tokens": "five"}}, {"usage": USAGE}, Usage(5, 1)),
        ({"usage": USAGE}, {"usage": {"input_tokens": -5, "output_tokens": 3}}, Usage(5, 3)),
        ({"usage": USAGE}, {"usage": {"input_tokens": 10**30, "output_tokens": 3}}, Usage(5, 3)),
        ({"usage": USAGE | {"cache_creation": 5}}, {"usage": USAGE}, Usage(5, 1)),
        (
            {"usage": USAGE | CACHED | {"cache_creation": {"ephemeral_1h_input_tokens": 4}}},
            {"usage": {"output_tokens": 3, "cache_creation_input_tokens": None}},
            Usage(5, 3, 7, 5, 4),
        ),
    ],
)
async def test_reports(first: Event, last: Event, usage: Usage | None) -> None:
    """What is no number of tokens is left out; without a prompt it is no report."""
    assert (await native(start(**first), *HI, *end(**last))).usage == usage


@pytest.mark.parametrize("last", [{}, {"usage": None}, {"usage": {"output_tokens": None}}])
async def test_without_a_last_count_the_answer_is_estimated(last: Event) -> None:
    """The first count was made before anything was written."""
    long = block(0, {"type": "text", "text": "Once upon a time there was a king. " * 20})
    usage = (await native(start(usage=USAGE), *long, *end(**last))).usage
    assert usage is not None
    assert usage.output_tokens > 100


@pytest.mark.parametrize(
    "odd",
    [
        block(
            7,
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": "{}"},
        ),
        block(7, {"type": "text", "text": None}, {"type": "text_delta", "text": None}),
        block(7, {"type": "of the future"}, {"type": "of the future", "x": 1}),
        block(7, {"type": "text", "text": ""}, {"type": "signature_delta", "signature": "s"}),
        block(7, {"type": "redacted_thinking"})[1:],
        [None],
    ],
    ids=["server tool", "null text", "new kinds", "signature of a text", "no start", "null"],
)
async def test_what_is_of_no_use_is_left_out(odd: list[Event]) -> None:
    """The answer is as without it."""
    assert (await native(PLAIN[0], *odd, *PLAIN[1:])).message == (await native(*PLAIN)).message


@pytest.mark.parametrize(
    "thought",
    [
        block(7, {"type": "thinking"}, {"type": "thinking_delta", "thinking": "hm"}),
        block(
            7, {"type": "thinking", "thinking": None}, {"type": "thinking_delta", "thinking": "hm"}
        ),
        block(7, None, {"type": "thinking_delta", "thinking": "hm"})[1:],
    ],
    ids=["no text", "null", "no start"],
)
async def test_thinking_that_began_oddly_is_kept(thought: list[Event]) -> None:
    """It is shown like any other, and not sent back without a signature."""
    message = (await native(PLAIN[0], *thought, *PLAIN[1:])).message
    assert message == {"role": "assistant", "content": "hi there", "reasoning": "hm"}


async def test_signed_thinking_without_a_first_text_is_sent_back() -> None:
    """Its text is that of the deltas."""
    deltas = (
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "s"},
    )
    thought = block(7, {"type": "thinking"}, *deltas)
    message = (await native(PLAIN[0], *thought, *PLAIN[1:])).message
    kept = {"type": "thinking", "thinking": "hm", "signature": "s"}
    assert message["opaque"] == {"anthropic": [kept]}


# OpenAI's


def chunk(delta: Event, reason: str | None = None, **fields: Event) -> Event:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **fields}


STOP = chunk({}, "stop")


async def compatible(*events: Event) -> Completion:
    async with OpenAIServer() as server:
        play(server, *events)
        return await ask(server, ModelRequest(ASK, (CLOCK,)))


@pytest.mark.parametrize(
    "events",
    [
        [None, chunk({"content": "hi"}), None, STOP],
        [chunk({"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}), STOP],
        [chunk({"content": [{"type": "thinking"}, "x", {"type": "text", "text": "hi"}]}), STOP],
        [chunk({"content": [{"type": "text", "text": None}]}), chunk({"content": "hi"}), STOP],
        [chunk({"content": "hi", "refusal": 1, "tool_calls": None}), STOP],
        [chunk(None), chunk({"content": "hi"}, model=7), STOP],
        [{"choices": None}, chunk({"content": "hi"}, usage={}), STOP],
        [chunk({"content": "hi"}), STOP, {"choices": [], "usage": {"prompt_tokens": None}}],
    ],
)
async def test_odd_chunks_say_what_they_can(events: list[Event]) -> None:
    """Nulls say nothing; content in parts is its text."""
    completion = await compatible(*events)
    assert (completion.message["content"], completion.usage) == ("hi", None)
    assert completion.model == "local-1"


HI_CHUNK = chunk({"role": "assistant", "content": "hi"})
USED = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}


def called(arguments: str) -> Event:
    call = {"index": 0, "id": "a", "function": {"name": "current_time", "arguments": arguments}}
    return chunk({"tool_calls": [call]})


ENDINGS: dict[str, tuple[list[Event], bool, str]] = {
    "usage and done": ([HI_CHUNK, USED], True, "stop"),
    "done": ([HI_CHUNK], True, "stop"),
    "done as JSON": ([HI_CHUNK, "[DONE]"], False, "stop"),
    "usage and the end of the body": ([HI_CHUNK, USED], False, "stop"),
    "an empty reason": ([chunk({"content": "hi"}, "")], True, "stop"),
    "a call": ([called('{"a": 1}')], True, "tool_calls"),
    "a call without arguments": ([called("")], True, "tool_calls"),
    "a call and usage": ([called("{}"), USED], False, "tool_calls"),
    "thoughts first": ([chunk({"reasoning_content": "hm"}), HI_CHUNK], True, "stop"),
    "a thought in the text": ([chunk({"content": "<think>hm</think>hi"})], True, "stop"),
    "a refusal": ([chunk({"refusal": "hi"})], True, "refused"),
    "pings behind the usage": ([HI_CHUNK, USED, {"choices": []}, None], False, "stop"),
    "the reason of an upstream": ([HI_CHUNK, chunk({}, "MAX_TOKENS")], True, "length"),
    "the window was full": ([HI_CHUNK, chunk({}, "model_length")], False, "length"),
}


@pytest.mark.parametrize(("events", "done", "stop"), ENDINGS.values(), ids=ENDINGS)
async def test_an_end_may_lack_its_reason(events: list[Event], *, done: bool, stop: str) -> None:
    """A whole answer is not thrown away, asked for again and billed again."""
    async with OpenAIServer() as server:
        play(server, *events, done=done)
        completion = await ask(server, ModelRequest(ASK, (CLOCK,)))
    assert completion.stop_reason == stop
    assert (completion.message["content"] or "hi") == "hi"


CUTS: dict[str, tuple[list[Event], bool]] = {
    "nothing": ([], True),
    "a role": ([chunk({"role": "assistant", "content": ""})], True),
    "usage alone": ([USED], True),
    "half a call": ([HI_CHUNK, called('{"a": ')], True),
    "the end of the body": ([HI_CHUNK], False),
    "text behind the usage": ([HI_CHUNK, USED, HI_CHUNK], False),
    "an error": ([HI_CHUNK, chunk({}, "error"), USED], True),
}


@pytest.mark.parametrize(("events", "done"), CUTS.values(), ids=CUTS)
async def test_what_is_no_end_is_a_cut(events: list[Event], *, done: bool) -> None:
    """Nobody knows what was to follow: recovery asks again."""
    async with OpenAIServer() as server:
        play(server, *events, done=done)
        with pytest.raises(ModelUnreachable, match="cut"):
            await ask(server, ModelRequest(ASK, (CLOCK,)))


def item(kind: str, **fields: Event) -> list[Event]:
    begun = {"type": kind, **fields}
    if kind == "function_call":
        whole = {"type": "response.output_item.done", "output_index": 0, "item": begun}
        return [{"type": "response.output_item.added", "output_index": 0, "item": begun}, whole]
    return [{"type": "response.output_text.delta", "output_index": 0, "delta": fields["text"]}]


@pytest.mark.parametrize(
    ("events", "stop"),
    [
        (item("message", text="hi"), "stop"),
        (item("function_call", call_id="c", name="current_time", arguments="{}"), "tool_calls"),
        (item("function_call", call_id="c", name="current_time", arguments='{"a'), None),
        ([], None),
    ],
    ids=["text", "call", "half a call", "nothing"],
)
async def test_responses_may_end_with_done_alone(events: list[Event], stop: str | None) -> None:
    """Servers that imitate the API send what ends the other one."""
    async with ResponsesServer() as server:
        play(server, {"type": "response.created", "response": {"model": "m"}}, *events)
        if stop is None:
            with pytest.raises(ModelUnreachable, match="cut"):
                await ask(server)
        else:
            assert (await ask(server)).stop_reason == stop


@pytest.mark.parametrize("last", [[], [{"type": "message_delta", "delta": {}}]])
async def test_the_reason_of_the_end_is_an_end(last: list[Event]) -> None:
    """Some proxies leave `message_stop` out, or send the reason before the usage."""
    whole = end(usage={"output_tokens": 2})[0]
    completion = await native(start(usage=USAGE), *HI, whole, *last)
    assert (completion.stop_reason, completion.message["content"]) == ("stop", "hi there")


async def test_without_any_end_a_message_was_cut() -> None:
    """Another block may have been to follow."""
    with pytest.raises(ModelUnreachable, match="cut"):
        await native(start(usage=USAGE), *HI)


@pytest.mark.parametrize(
    ("arguments", "stored"),
    [({"b": 1, "a": "x"}, '{"a":"x","b":1}'), ({}, "{}"), (None, "{}"), (7, "{}")],
)
async def test_arguments_may_be_an_object(arguments: Event, stored: str) -> None:
    """They are stored as the text that they should have been."""
    function = {"name": "current_time", "arguments": arguments}
    call = {"index": 0, "id": "a", "function": function}
    message = (await compatible(chunk({"tool_calls": [call]}), STOP)).message
    assert message["tool_calls"][0]["function"]["arguments"] == stored


async def test_odd_ids_and_names_are_none() -> None:
    """A call gets an id of its own then."""
    call = {"index": None, "id": 7, "function": {"name": "current_time", "arguments": "{}"}}
    [made] = (await compatible(chunk({"tool_calls": [call]}), STOP)).message["tool_calls"]
    assert made["id"].startswith("call_1_0_")


async def test_parts_of_reasoning_that_change_their_kind_replace_what_was() -> None:
    """A text cannot be joined to a list."""
    odd = [chunk({"reasoning_details": [{"index": 0, "summary": value}]}) for value in ([1], "a")]
    message = (await compatible(*odd, chunk({"content": "hi"}), STOP)).message
    assert message["opaque"]["openai"]["reasoning_details"] == [{"index": 0, "summary": "a"}]


# Whatever it is


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("event", ["text", 7, ["list"], {"type": "message_start", "message": 7}])
async def test_what_cannot_be_read_is_a_broken_stream(double: Double, event: Event) -> None:
    """It is tried again, and another model takes over; a bug would bury the turn."""
    async with double() as server:
        play(server, {"choices": 7, "type": "x"} if event == "text" else event)
        with pytest.raises(ModelUnreachable):
            await ask(server)


async def test_a_stream_that_cannot_be_read_is_billed() -> None:
    """Like one that was cut: what was reported, and what had been streamed."""
    with pytest.raises(ModelUnreachable, match=r"malformed stream") as caught:
        await native(start(usage=USAGE), *HI, {"type": "content_block_delta", "index": 0})
    assert caught.value.usage == Usage(5, estimate_tokens("hi there", "claude-sonnet-5-5"))


@pytest.mark.parametrize("name", ["\ud83d", "caf\ud83d"])
async def test_half_a_character_in_a_name_is_a_broken_stream(name: str) -> None:
    """It could not be stored."""
    call = {"index": 0, "id": "a", "function": {"name": name, "arguments": "{}"}}
    with pytest.raises(ModelUnreachable):
        await compatible(chunk({"tool_calls": [call]}), STOP)


RICH_NATIVE = [
    start(usage=USAGE | CACHED | {"cache_creation": {"ephemeral_1h_input_tokens": 4}}),
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "s"},
    ),
    *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hi"}),
    *block(
        2,
        {"type": "tool_use", "id": "t", "name": "current_time", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"a": 1}'},
    ),
    *end(usage=USAGE | CACHED),
]
RICH_COMPATIBLE = [
    chunk({"role": "assistant", "reasoning_content": "hm", "content": "hi"}, model="m"),
    chunk({"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "a"}]}),
    chunk({"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "b"}]}),
    chunk({
        "tool_calls": [
            {
                "index": 0,
                "id": "t",
                "function": {"name": "current_time", "arguments": '{"a": 1}'},
                "extra_content": {"google": "s"},
            }
        ]
    }),
    chunk({}, "tool_calls"),
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 3},
            "cost": 1,
            "is_byok": True,
            "cost_details": {"upstream_inference_cost": 1},
        },
    },
]
ODD: tuple[Event, ...] = (None, -7, 10**40, "odd", [{"a": 1}], {"a": []})


def spoilt(value: Event) -> Iterator[Event]:
    """Return the value with each place in it replaced by odd ones, or missing, one at a time."""
    yield from ODD
    if not isinstance(value, dict | list):
        return
    for place, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        for odd in spoilt(inner):
            copied = value.copy()
            copied[place] = odd
            yield copied
        less = value.copy()
        del less[place]
        yield less


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("double", "events"), [(AnthropicServer, RICH_NATIVE), (OpenAIServer, RICH_COMPATIBLE)]
)
async def test_a_spoilt_stream_is_an_answer_or_an_error(
    double: Double, events: list[Event]
) -> None:
    """Each place in a stream, with each odd value there is."""
    answered = 0
    async with double() as server, connected(server, name="claude-x") as model:
        for stream in islice(spoilt(events), 0, None, amount(6, 1)):
            if not isinstance(stream, list):
                continue
            play(server, *stream)
            try:
                completion = await model.complete(ModelRequest(ASK, (CLOCK,)), SinkSpy())
            except ModelError as error:
                check_usage(error.usage)
            else:
                check_usage(completion.usage)
                check_message(completion.message)
                answered += 1
    assert answered > amount(15, 100)


def check_usage(usage: Usage | None) -> None:
    """Fail unless it can be booked."""
    if usage is not None:
        counts = [getattr(usage, name) for name in Usage.__slots__]
        assert all(type(count) is int and 0 <= count <= MOST_TOKENS for count in counts)


def check_message(message: ChatMessage) -> None:
    """Fail unless it can be stored and sent back."""
    orjson.dumps(message)
    assert isinstance(message["content"], str | None)
    assert isinstance(message.get("reasoning", ""), str)
    for call in message.get("tool_calls", ()):
        texts = (call["id"], *call["function"].values())
        assert all(isinstance(text, str) for text in texts)
    request = ModelRequest([*ASK, message])
    orjson.dumps(anthropic_wire.request_body(request, "claude-x"))
    orjson.dumps(openai_wire.request_body(request, "claude-x"))


WHOLE: dict[Double, Event] = {
    AnthropicServer: {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "text", "text": "Here."},
            {"type": "tool_use", "id": "toolu_1", "name": "current_time", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    },
    OpenAIServer: {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Here.",
                    "tool_calls": [
                        {
                            "id": "toolu_1",
                            "type": "function",
                            "function": {"name": "current_time", "arguments": '{"a": 1}'},
                        }
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    },
    ResponsesServer: {
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Here."}],
            },
            {
                "type": "function_call",
                "call_id": "toolu_1",
                "name": "current_time",
                "arguments": '{"a": 1}',
            },
        ],
        "usage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
    },
}
"""An answer that does not come as a stream, though one was asked for."""


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("ahead", ["", "\n\n  \n"])
@pytest.mark.parametrize("is_called", ["application/json", "text/plain", "text/event-stream"])
async def test_an_answer_in_one_piece_is_read(double: Double, ahead: str, is_called: str) -> None:
    """With its calls and usage, as if it had come in pieces; blank lines ahead do not matter.

    Nor does it matter what the header or the object calls it.
    """
    said = {key: value for key, value in WHOLE[double].items() if key != "object"}
    async with double(api_key=KEY) as server:
        headers = {"Content-Type": is_called}
        server.script(Fault(status=200, json=ahead + json.dumps(said), headers=headers))
        done = await ask(server)
    assert done.message["content"] == "Here."
    [made] = done.message["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == (
        "current_time",
        {"a": 1},
    )
    assert done.stop_reason == "tool_calls"
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "Provider returned error", "code": 502}}, ModelUnreachable),
        ({"error": {"message": "slow down", "code": 429}}, RateLimited),
        ({"error": "This model's maximum context length is 8192 tokens"}, ContextOverflow),
        ({"object": "error", "message": "prompt is too long", "code": 400}, ContextOverflow),
        ({"detail": "the request exceeds the available context size"}, ContextOverflow),
        ([{"error": {"code": 401, "message": "no"}}], CredentialsRefused),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, RateLimited),
        ({"choices": []}, ModelUnreachable),
        ({}, ModelUnreachable),
        ("no", ModelUnreachable),
    ],
    ids=str,
)
async def test_an_error_in_one_piece_is_read(
    double: Double, body: Event, kind: type[ModelError]
) -> None:
    """With status 200; a body that is neither an answer nor an error is a broken one."""
    async with double(api_key=KEY) as server:
        server.script(Fault(status=200, json=json.dumps(body)))
        with pytest.raises(ModelError) as caught:
            await ask(server)
    assert type(caught.value) is kind


@pytest.mark.parametrize("double", BOTH)
async def test_the_longest_answer_of_a_refusal_is_asked_for_and_kept(double: Double) -> None:
    """Within the call, and from the beginning of the next one."""
    told = "max_tokens is too large: 9000. This model supports at most 4096 completion tokens."
    request = ModelRequest(ASK, max_output_tokens=9_000)
    async with double(api_key=KEY, default=Reply(text="ok")) as server, connected(server) as model:
        server.script(Fault(status=400, message=told))
        for _ in range(2):
            assert (await model.complete(request, SinkSpy())).message["content"] == "ok"
        fields = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        bodies = [each.body for each in server.requests]
        assert [next(body[f] for f in fields if f in body) for body in bodies] == [
            9_000,
            4_096,
            4_096,
        ]


@pytest.mark.parametrize("double", BOTH)
async def test_the_window_of_a_refusal_is_kept(double: Double) -> None:
    """Also if it was believed to be far larger; a number that no window has is not taken."""
    async with double(api_key=KEY) as server, connected(server) as model:
        for told, window in ((12, 500_000), (8_192, 8_192), (16_384, 8_192)):
            model.context_length = 500_000
            message = f"This model's maximum context length is {told} tokens"
            server.script(Fault(status=400, message=message))
            with pytest.raises(ContextOverflow):
                await model.complete(ModelRequest(ASK), SinkSpy())
            assert model.context_length == window
