"""Gemini through its OpenAI-compatible endpoint: what it does otherwise, and refuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.messages import ChatMessage, ToolSchema, tool_message, user_message
from agent.models.base import Completion, ModelRequest
from agent.models.openai.client import OpenAIModel
from agent.settings import ModelSettings
from agent.view.edits import with_short_arguments, without_thinking
from tests.support.gemini_server import GeminiServer
from tests.support.model_server import Fault, Reply, SinkSpy
from tests.support.scripted_model import tool_call

KEY = "AIza-secret-0123456789"
LOOK = ToolSchema("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
ASK = [user_message("hello")]


@pytest.fixture
async def server() -> AsyncIterator[GeminiServer]:
    async with GeminiServer(api_key=KEY) as running:
        yield running


@asynccontextmanager
async def connect(server: GeminiServer, **settings: Any) -> AsyncIterator[OpenAIModel]:
    defaults = {"provider": "openai", "name": "gemini-3.8-flash", "api_key": KEY}
    chosen = defaults | {"base_url": server.url} | settings
    model = OpenAIModel(ModelSettings.model_validate(chosen))
    try:
        yield model
    finally:
        await model.close()


async def ask(server: GeminiServer, *messages: ChatMessage, tool: ToolSchema = LOOK) -> Completion:
    async with connect(server) as model:
        return await model.complete(ModelRequest(list(messages) or ASK, (tool,)), SinkSpy())


def results_of(message: ChatMessage) -> list[ChatMessage]:
    return [tool_message(each["id"], "look", "seen") for each in message["tool_calls"]]


@pytest.mark.parametrize("extra", [{}, {"no_ids": True}])
async def test_parallel_calls_stay_apart(server: GeminiServer, extra: dict[str, Any]) -> None:
    """They share the index 0, and at times have no ids."""
    calls = (("look", {"at": "a"}), ("look", {"at": "b"}), ("look", {"at": "b"}))
    server.script(Reply(calls=calls, extra=extra))
    done = await ask(server)
    assert [each["function"]["arguments"] for each in done.message["tool_calls"]] == [
        '{"at":"a"}',
        '{"at":"b"}',
        '{"at":"b"}',
    ]
    assert len({each["id"] for each in done.message["tool_calls"]}) == 3
    assert done.stop_reason == "tool_calls"


@pytest.mark.parametrize(
    "shown",
    [lambda each: each, without_thinking, lambda each: with_short_arguments(each, 5)],
    ids=["as it is", "without thinking", "shortened"],
)
async def test_signatures_come_back(server: GeminiServer, shown: Any) -> None:
    """Without them the step after a call is refused; a compaction leaves them in place."""
    server.script(
        Reply(text="A moment.", calls=(("look", {"at": "a long place"}),) * 2),
        Reply(calls=(("look", {}),)),
        Reply(text="Seen."),
    )
    first = (await ask(server)).message
    history = [*ASK, shown(first), *results_of(first)]
    second = (await ask(server, *history)).message
    done = await ask(server, *history, shown(second), *results_of(second))
    assert (done.message["content"], server.refused) == ("Seen.", [])
    assert len(server.requests) == 3


async def test_calls_of_another_model_are_taken(server: GeminiServer) -> None:
    """A conversation that another model began goes on here: learned from one refusal."""
    server.script(*[Reply(text="ok")] * 2)
    foreign = ChatMessage(role="assistant", content=None, tool_calls=[tool_call("look", {}, "c")])
    history = [*ASK, foreign, tool_message("c", "look", "seen")]
    async with connect(server) as model:
        for _ in range(2):
            await model.complete(ModelRequest(history, (LOOK,)), SinkSpy())
        assert model.mode.quirks == {"signed_calls"}
    assert len(server.refused) == 1
    assert len(server.requests) == 3


async def test_uncommon_words_of_schemas_are_left_out(server: GeminiServer) -> None:
    """Tools of MCP servers have them; the names of arguments are no words."""
    words = {"$schema": "x", "additionalProperties": False, "const": {"type": "string"}}
    inner = {"type": "integer", "exclusiveMinimum": 0, "minimum": 1}
    properties = {"const": inner, "many": {"type": "array", "items": inner | {"const": 1}}}
    tool = ToolSchema("look", "", {"type": "object", "properties": properties, **words})
    server.script(Reply(text="ok"))
    assert (await ask(server, tool=tool)).message["content"] == "ok"
    kept = {"type": "integer", "minimum": 1}
    assert server.requests[-1].body["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"const": kept, "many": {"type": "array", "items": kept}},
    }


async def test_thoughts_are_billed_as_output(server: GeminiServer) -> None:
    """They stand in the sum alone; what was cached counts apart."""
    cached = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 40}}
    usage = cached | {"completion_tokens": 10, "total_tokens": 170}
    server.script(Reply(text="ok", usage=usage))
    usage_told = (await ask(server)).usage
    assert usage_told is not None
    assert (usage_told.input_tokens, usage_told.cache_read_tokens) == (60, 40)
    assert usage_told.output_tokens == 70


async def test_a_broken_call_is_a_failure_that_passes(server: GeminiServer) -> None:
    """It is made again (agent/models/recovery.py), and is no empty answer."""
    server.script(Reply(stop="function_call_filter: MALFORMED_FUNCTION_CALL"))
    with pytest.raises(ModelUnreachable, match="broken off"):
        await ask(server)


@pytest.mark.parametrize(
    ("reason", "expected"), [("length", "length"), ("content_filter", "refused"), ("stop", "stop")]
)
async def test_stop_reasons(server: GeminiServer, reason: str, expected: str) -> None:
    """The others are OpenAI's."""
    server.script(Reply(text="So", stop=reason))
    assert (await ask(server)).stop_reason == expected


@pytest.mark.parametrize(
    ("item", "expected", "told"),
    [
        (Fault(status=400, message="bad"), BadRequest, "HTTP 400: INVALID_ARGUMENT: bad"),
        (Fault(status=429, error="34s"), RateLimited, "RESOURCE_EXHAUSTED"),
        (Fault(status=500), ModelUnreachable, "INTERNAL"),
        (Reply(text="Half", error="503"), ModelUnreachable, "HTTP 503"),
        (Reply(text="Half", error="429"), RateLimited, "HTTP 429"),
    ],
)
async def test_errors_stand_in_a_list(
    server: GeminiServer, item: Fault | Reply, expected: type[ModelError], told: str
) -> None:
    """With a status in words."""
    server.script(item)
    with pytest.raises(ModelError, match=told) as caught:
        await ask(server)
    assert type(caught.value) is expected


async def test_the_wait_stands_in_the_body(server: GeminiServer) -> None:
    """There is no header for it."""
    server.script(Fault(status=429, error="34s"))
    with pytest.raises(RateLimited) as caught:
        await ask(server)
    assert caught.value.retry_after_s == pytest.approx(34)


async def test_a_wrong_key_is_a_wrong_argument(server: GeminiServer) -> None:
    """And is told from other ones, at the start too."""
    server.key_faults["AIza-wrong"] = Fault(
        status=400, message="API key not valid. Please pass a valid API key."
    )
    async with connect(server, api_key="AIza-wrong") as model:
        with pytest.raises(CredentialsRefused):
            await model.complete(ModelRequest(ASK), SinkSpy())
        with pytest.raises(CredentialsRefused):
            await model.look_up()


async def test_its_list_of_models_has_no_sizes(server: GeminiServer) -> None:
    """The key was good all the same."""
    server.infos = {"gemini-3.8-flash": {}, "gemini-3.8-pro": {}}
    async with connect(server) as model:
        assert await model.look_up() == 0


async def test_a_prompt_that_is_too_large_tells_the_window(server: GeminiServer) -> None:
    """In its own words."""
    server.max_prompt_tokens = 20
    with pytest.raises(ContextOverflow) as caught:
        await ask(server)
    assert caught.value.window_tokens == 20


async def test_a_refused_picture_is_a_bad_request(server: GeminiServer) -> None:
    """So that it is left out, as elsewhere; what the model declines is not."""
    server.script(Fault(status=400, message="Unable to process input image."))
    with pytest.raises(BadRequest):
        await ask(server)
    assert not issubclass(BadRequest, ModelRefused)


async def test_fields_that_it_does_not_know_are_named(server: GeminiServer) -> None:
    """As the operator wrote them."""
    async with connect(server, extra_body={"seed": 1}) as model:
        with pytest.raises(BadRequest, match='Unknown name "seed"'):
            await model.complete(ModelRequest(ASK), SinkSpy())
