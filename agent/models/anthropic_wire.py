"""The request body of Anthropic's Messages API, built from Parley's messages; pure functions."""

import re
from hashlib import blake2s
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from agent.messages import text_of
from agent.models.catalog import output_limit
from agent.models.draft import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.messages import ChatMessage, ToolCall
    from agent.models.base import ModelRequest, ToolSchema

Block = dict[str, Any]

# Source: the API refuses other ids ("String should match pattern '^[a-zA-Z0-9_-]+$'").
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_READABLE_ID = 40


def request_body(request: "ModelRequest", model: str) -> dict[str, Any]:
    """Return the arguments of `messages.create` for one call, without `stream`."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": output_limit(model, request.max_output_tokens),
    }
    if system := _system_blocks(request.messages):
        body["system"] = system
    body["messages"] = wire_messages(request.messages)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if not request.allow_tools:
            body["tool_choice"] = {"type": "none"}
    if request.conversation:
        body["metadata"] = {"user_id": request.conversation}
    return body


def wire_messages(messages: "Iterable[ChatMessage]") -> list[dict[str, Any]]:
    """Return alternating user and assistant messages made of blocks, none of them empty.

    Tool results become one user message, in the order of their calls; text of the user that
    follows stands behind them in the same message.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        blocks = _blocks(message)
        role = "assistant" if message["role"] == "assistant" else "user"
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for asked, answered in pairwise(turns):
        answered["content"] = _in_call_order(asked["content"], answered["content"])
    return turns


def wire_id(call_id: str) -> str:
    """Return the id as the API takes it; a changed one keeps apart what was apart."""
    if call_id and not _FOREIGN.search(call_id):
        return call_id
    digest = blake2s(call_id.encode(), digest_size=4).hexdigest()
    return f"{_FOREIGN.sub('_', call_id)[:_READABLE_ID]}_{digest}"


def _system_blocks(messages: "Iterable[ChatMessage]") -> list[Block]:
    return [
        block for message in messages if message["role"] == "system" for block in _text(message)
    ]


def _blocks(message: "ChatMessage") -> list[Block]:
    if message["role"] == "user":
        return _text(message)
    if message["role"] == "tool":
        return [_result(message)]
    if message["role"] == "assistant":
        said = _text(message) + [_tool_use(call) for call in message.get("tool_calls") or []]
        # The API refuses a message that is nothing but thinking.
        return [*_thinking(message), *said] if said else []
    return []


def _text(message: "ChatMessage") -> list[Block]:
    text = text_of(message)
    return [{"type": "text", "text": text}] if text.strip() else []


def _thinking(message: "ChatMessage") -> list[Block]:
    blocks: list[Block] = message.get("opaque", {}).get("anthropic", [])
    return blocks


def _tool_use(call: "ToolCall") -> Block:
    function = call["function"]
    arguments = parse_object(function["arguments"])
    if arguments is None:
        arguments = {"_invalid": function["arguments"]}
    return {
        "type": "tool_use",
        "id": wire_id(call["id"]),
        "name": function["name"],
        "input": arguments,
    }


def _result(message: "ChatMessage") -> Block:
    block = {"type": "tool_result", "tool_use_id": wire_id(message["tool_call_id"])}
    text = text_of(message)
    return block | {"content": text} if text else block


def _tool(tool: "ToolSchema") -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.parameters,
    }


def _in_call_order(calls: list[Block], blocks: list[Block]) -> list[Block]:
    """Return the blocks with tool results first, ordered as the calls; the rest stays behind."""
    order = {block["id"]: place for place, block in enumerate(calls) if "id" in block}
    return sorted(blocks, key=lambda block: order.get(block.get("tool_use_id"), len(calls)))
