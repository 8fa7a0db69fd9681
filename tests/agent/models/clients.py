"""Models of this package connected to the doubles of their providers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent.messages import ChatMessage, ToolCall, ToolSchema, user_message
from agent.models.anthropic.client import AnthropicModel
from agent.models.base import Completion, ModelRequest
from agent.models.openai.client import OpenAIModel
from agent.models.openai.responses import ResponsesModel
from agent.settings import ModelSettings
from tests.support.anthropic_server import AnthropicServer
from tests.support.model_server import ModelServer, SinkSpy
from tests.support.openai_server import OpenAIServer
from tests.support.responses_server import ResponsesServer

KEY = "sk-secret-0123456789"
CLOCK = ToolSchema("current_time", "Tells the time.", {"type": "object", "properties": {}})
ASK = [user_message("hello")]

Double = type[AnthropicServer] | type[OpenAIServer] | type[ResponsesServer]
Client = AnthropicModel | OpenAIModel | ResponsesModel
BOTH: tuple[Double, ...] = (AnthropicServer, OpenAIServer, ResponsesServer)
"""Both providers; OpenAI with both of its APIs."""


@asynccontextmanager
async def connected(server: ModelServer, **settings: object) -> AsyncIterator[Client]:
    """Yield the model that speaks the server's protocol."""
    native = isinstance(server, AnthropicServer)
    defaults = {
        "provider": "anthropic" if native else "openai",
        "name": "claude-sonnet-5-5" if native else "local-1",
        "api_key": KEY,
        "base_url": server.url,
        "idle_timeout_s": 5,
    }
    chosen = ModelSettings.model_validate(defaults | settings)
    spoken: type[Client] = ResponsesModel if isinstance(server, ResponsesServer) else OpenAIModel
    model = AnthropicModel(chosen) if native else spoken(chosen)
    try:
        yield model
    finally:
        await model.close()


def connector_of(model: Client) -> Any:
    """Return what keeps the connections of a model that was asked."""
    if not isinstance(model, AnthropicModel):
        assert model._server.session is not None
        return model._server.session.connector
    transport: Any = model._client._client._transport
    return transport.client.connector


async def ask(
    server: ModelServer, request: ModelRequest | None = None, **settings: object
) -> Completion:
    """Return the answer to one request."""
    async with connected(server, **settings) as model:
        return await model.complete(request or ModelRequest(ASK), SinkSpy())


def call(call_id: str, arguments: str = "{}", name: str = "current_time") -> ToolCall:
    """Return a call as it is stored."""
    return ToolCall(id=call_id, type="function", function={"name": name, "arguments": arguments})


def calling(*calls: ToolCall, text: str = "") -> ChatMessage:
    """Return an assistant message that makes calls."""
    return ChatMessage(role="assistant", content=text or None, tool_calls=list(calls))
