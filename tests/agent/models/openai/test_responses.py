"""ResponsesModel against a strict loopback server of OpenAI's Responses API."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.messages import (
    ChatMessage,
    ToolSchema,
    Usage,
    assistant_message,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest
from agent.models.openai.responses import ResponsesModel
from agent.settings import ModelSettings
from agent.view.edits import without_thinking
from tests.support.model_server import Fault, Reply, SinkSpy
from tests.support.responses_server import ResponsesServer

KEY = "sk-secret-0123456789"
CLOCK = ToolSchema("current_time", "Tells the time.", {"type": "object", "properties": {}})
ASK = [user_message("hello")]


@pytest.fixture
async def server() -> AsyncIterator[ResponsesServer]:
    async with ResponsesServer(api_key=KEY) as running:
        yield running


@asynccontextmanager
async def connect(server: ResponsesServer, **settings: object) -> AsyncIterator[ResponsesModel]:
    defaults = {"provider": "openai", "name": "gpt-6.1-terra", "api_key": KEY}
    chosen = defaults | {"base_url": server.url, "idle_timeout_s": 5} | settings
    model = ResponsesModel(ModelSettings.model_validate(chosen))
    try:
        yield model
    finally:
        await model.close()


async def ask(
    server: ResponsesServer, *messages: ChatMessage, sink: SinkSpy | None = None
) -> Completion:
    async with connect(server) as model:
        request = ModelRequest(list(messages) or ASK, (CLOCK,))
        return await model.complete(request, sink or SinkSpy())


async def test_text_streams_to_the_sink(server: ResponsesServer) -> None:
    """The visible text arrives in pieces and is the message's content."""
    server.script(Reply(text="Good morning, world."))
    sink = SinkSpy()
    completion = await ask(server, sink=sink)
    assert completion.message == assistant_message("Good morning, world.")
    assert (completion.stop_reason, completion.model) == ("stop", "gpt-6.1-terra")
    assert len(sink.pushed) > 1
    assert sink.text == "Good morning, world."


async def test_a_request_leaves_nothing_with_the_provider(server: ResponsesServer) -> None:
    """It brings all of the conversation, and asks for what the model thinks in encrypted form."""
    server.script(Reply(text="ok"))
    system = ChatMessage(role="system", content="Be brief.")
    async with connect(server) as model:
        request = ModelRequest([system, *ASK], (CLOCK,), 100, allow_tools=False)
        await model.complete(request, SinkSpy())
    assert server.requests[0].body == {
        "model": "gpt-6.1-terra",
        "instructions": "Be brief.",
        "input": [{"type": "message", "role": "user", "content": "hello"}],
        "max_output_tokens": 100,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
        "tools": [
            {
                "type": "function",
                "name": "current_time",
                "description": "Tells the time.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ],
        "tool_choice": "none",
    }


async def test_thoughts_come_back_in_front_of_what_they_led_to(server: ResponsesServer) -> None:
    """Verbatim, between the calls of a turn and in the turns after it."""
    server.script(
        Reply(thinking="Look.", text="A moment.", calls=(("current_time", {}),) * 2),
        Reply(thinking="So.", text="Noon.", extra={"phase": "final_answer"}),
        Reply(text="Still noon."),
    )
    first = (await ask(server)).message
    assert first["reasoning"] == "Look.Look. And call."
    results = [tool_message(each["id"], "current_time", "12:00") for each in first["tool_calls"]]
    second = (await ask(server, *ASK, first, *results)).message
    await ask(server, *ASK, first, *results, second, *ASK)
    sent = server.requests[2].body["input"]
    kinds = [item["type"] for item in sent]
    assert kinds == [
        "message",
        "reasoning",
        "message",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "reasoning",
        "message",
        "message",
    ]
    assert [sent[1], sent[3], sent[8]] == list(server.thoughts.values())
    assert (sent[9]["content"], sent[9]["phase"]) == ("Noon.", "final_answer")
    assert server.requests[1].body["input"] == sent[:8]
    assert server.refused == []


@pytest.mark.parametrize(
    "change",
    [
        lambda message: {**message, "content": "Shorter."},
        lambda message: {**message, "opaque": {"openai": {"origin": "elsewhere/gpt"}}},
        without_thinking,
    ],
    ids=["clipped", "of another server", "without thinking"],
)
async def test_answers_that_were_changed_go_without_their_thoughts(
    server: ResponsesServer, change: Any
) -> None:
    """The server refuses thoughts that do not stand where they stood; plain items always do."""
    server.script(Reply(thinking="Hm.", text="A long answer."), Reply(text="ok"))
    answer = (await ask(server)).message
    await ask(server, *ASK, change(answer), *ASK)
    kinds = [item["type"] for item in server.requests[1].body["input"]]
    assert kinds == ["message"] * 3


async def test_a_thought_alone_is_no_answer_and_is_not_sent(server: ResponsesServer) -> None:
    """Nothing follows it, so the server would refuse it."""
    server.script(Reply(thinking="Hm."), Reply(text="ok"))
    empty = await ask(server)
    assert (empty.stop_reason, empty.message["content"]) == ("stop", "")
    await ask(server, *ASK, empty.message, *ASK)
    assert len(server.requests[1].body["input"]) == 2


@pytest.mark.parametrize("blank", ["\n\n", " ", "\u3000\t"])
async def test_a_blank_text_behind_a_thought_goes_with_it(
    server: ResponsesServer, blank: str
) -> None:
    """A blank text is refused, and so is the thought that it leaves alone; a call keeps it."""
    server.script(
        Reply(thinking="Hm.", text=blank),
        Reply(thinking="Hm.", text=blank, calls=(("current_time", {}),)),
        Reply(text="ok"),
    )
    empty = (await ask(server)).message
    called = (await ask(server, *ASK, empty, *ASK)).message
    result = tool_message(called["tool_calls"][0]["id"], "current_time", blank)
    await ask(server, *ASK, empty, *ASK, called, result)
    kinds = [item["type"] for item in server.requests[2].body["input"]]
    assert kinds == [*["message"] * 2, *["reasoning"] * 2, "function_call", "function_call_output"]
    assert server.refused == []


async def test_thoughts_that_are_not_encrypted_are_not_kept(server: ResponsesServer) -> None:
    """Nobody stores them, so nobody could read them again."""
    server.script(Reply(thinking="Hm.", text="So.", extra={"encrypted": False}))
    assert "opaque" not in (await ask(server)).message


async def test_usage_counts_what_was_cached_apart(server: ResponsesServer) -> None:
    """Read, written, and the tokens of the thoughts that go back."""
    reported = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 40},
    }
    server.script(Reply(thinking="Hm.", text="abcd", usage=reported))
    done = await ask(server)
    assert done.usage == Usage(6, 50, 64, 30)
    assert done.message["opaque"]["openai"]["reasoning_tokens"] == 40


async def test_whole_items_without_deltas_are_understood(server: ResponsesServer) -> None:
    """Some servers send them so."""
    server.script(Reply(text="All.", calls=(("a", {"x": 1}),), extra={"whole": True}))
    done = await ask(server)
    assert done.message["content"] == "All."
    assert done.message["tool_calls"][0]["function"] == {"name": "a", "arguments": '{"x":1}'}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"incomplete": "max_output_tokens"}, "length"),
        ({"incomplete": "content_filter"}, "refused"),
        ({"refusal": "I will not."}, "refused"),
        ({}, "stop"),
    ],
)
async def test_stop_reasons(
    server: ResponsesServer, extra: dict[str, object], expected: str
) -> None:
    """Each end has its meaning."""
    server.script(Reply(text="So", extra=extra))
    assert (await ask(server)).stop_reason == expected


async def test_images_go_as_data(server: ResponsesServer) -> None:
    """A question with a picture is a list of parts."""
    server.script(Reply(text="A cat."))
    url = "data:image/png;base64,AAAA"
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    await ask(server, user_message(parts))
    assert server.requests[0].body["input"][0]["content"] == [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "detail": "auto", "image_url": url},
    ]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(error="rate_limit_exceeded"), RateLimited),
        (Reply(text="Half", error="server_error"), ModelUnreachable),
        (Reply(extra={"failed": {"code": "server_error", "message": "x"}}), ModelUnreachable),
        (Reply(extra={"failed": {"code": "rate_limit_exceeded", "message": ""}}), RateLimited),
        (Reply(extra={"failed": {"code": "context_length_exceeded"}}), ContextOverflow),
        (Reply(extra={"failed": {"code": "bio_policy", "message": "x"}}), ModelRefused),
        (Reply(extra={"failed": {"code": "invalid_prompt", "message": "x"}}), BadRequest),
        (Reply(text="Once", trouble="cut"), ModelUnreachable),
        (Reply(text="Once", trouble="garbage"), ModelUnreachable),
        (Fault(status=400, error="context_length_exceeded"), ContextOverflow),
        (Fault(status=401, error="invalid_api_key"), CredentialsRefused),
    ],
)
async def test_failures(
    server: ResponsesServer, reply: Reply | Fault, expected: type[ModelError]
) -> None:
    """As a status, as an event, or as the end of a stream."""
    server.script(reply)
    with pytest.raises(ModelError) as caught:
        await ask(server)
    assert type(caught.value) is expected


async def test_a_failed_answer_is_billed(server: ResponsesServer) -> None:
    """Its report stands in the event that says so."""
    failed = {"code": "server_error", "message": "x"}
    server.script(Reply(text="Half", extra={"failed": failed}, usage={"input_tokens": 90}))
    with pytest.raises(ModelUnreachable) as caught:
        await ask(server)
    assert caught.value.usage is not None
    assert caught.value.usage.prompt_tokens == 90


async def test_a_reset_behind_the_end_does_not_matter(server: ResponsesServer) -> None:
    """All was said."""
    server.script(Reply(text="All said.", trouble="cut_after_end"))
    assert (await ask(server)).message["content"] == "All said."


async def test_connections_are_used_again(server: ResponsesServer) -> None:
    """No `[DONE]` stands at the end, and the body is read to its end all the same."""
    server.script(*[Reply(text="x")] * 3)
    async with connect(server) as model:
        for _ in range(3):
            await model.complete(ModelRequest(ASK), SinkSpy())
    assert server.connections == 1


async def test_a_model_that_does_not_reason_is_not_asked_for_thoughts(
    server: ResponsesServer,
) -> None:
    """Learned from its refusal, once."""
    server.reasons = False
    server.script(Reply(text="a"), Reply(text="b"))
    async with connect(server) as model:
        for _ in range(2):
            await model.complete(ModelRequest(ASK), SinkSpy())
    assert ["include" in each.body for each in server.requests] == [True, False, False]


async def test_the_double_speaks_as_the_sdk_expects(server: ResponsesServer) -> None:
    """Each event is one that OpenAI's own types know."""
    reply = Reply(thinking="Hm.", text="So.", calls=(("a", {}),), extra={"phase": "commentary"})
    known: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    body = {"model": "m", "include": ["reasoning.encrypted_content"]}
    for frame in server.frames(body, reply):
        event = json.loads(frame.partition(b"data: ")[2])
        response = {"created_at": 1, "tools": [], "tool_choice": "auto"}
        if "response" in event:
            event["response"] |= response | {"parallel_tool_calls": True}
        if event.get("item", {}).get("type") == "message":
            event["item"] |= {"status": "completed"}
            event["item"].setdefault("content", [])
        if event.get("item", {}).get("type") == "function_call":
            event["item"].setdefault("arguments", "")
        if event["type"].startswith("response.output_text"):
            event |= {"content_index": 0, "logprobs": []}
        if "reasoning_summary" in event["type"]:
            event |= {"summary_index": 0}
        assert known.validate_python(event).type == event["type"]
