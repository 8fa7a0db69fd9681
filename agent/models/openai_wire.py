"""The request body of OpenAI's Chat Completions API, built from Parley's messages; pure."""

from typing import TYPE_CHECKING, Any

import orjson

from agent.messages import text_of
from agent.models.catalog import output_limit
from agent.models.draft import parse_object

if TYPE_CHECKING:
    from agent.messages import ChatMessage, ToolCall
    from agent.models.base import ModelRequest, ToolSchema


def request_body(request: "ModelRequest", model: str, limit_key: str) -> dict[str, Any]:
    """Return the arguments of `chat.completions.create` for one call, without `stream`.

    Args:
        request: The call.
        model: The provider's name of the model.
        limit_key: What this server calls the output limit.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [_wire(message) for message in request.messages if not _is_empty(message)],
        limit_key: output_limit(model, request.max_output_tokens),
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if not request.allow_tools:
            body["tool_choice"] = "none"
    return body


def _is_empty(message: "ChatMessage") -> bool:
    """Return whether nothing of an assistant message would go out (it only thought)."""
    said = text_of(message).strip() or message.get("tool_calls")
    return message["role"] == "assistant" and not said


def _wire(message: "ChatMessage") -> dict[str, Any]:
    text = text_of(message)
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": text}
    if calls := message.get("tool_calls"):
        wire_calls = [_tool_call(call) for call in calls]
        return {"role": "assistant", "content": text or None, "tool_calls": wire_calls}
    return {"role": message["role"], "content": text}


def _tool_call(call: "ToolCall") -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if parse_object(arguments) is None:
        # Servers that parse the arguments (vLLM, Ollama) refuse what is not an object.
        arguments = orjson.dumps({"_invalid": arguments}).decode()
    function = {"name": name, "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


def _tool(tool: "ToolSchema") -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}
