"""The request body of Anthropic's Messages API, built from Parley's messages; pure functions.

Every text is sent as a block, marked or not, so a prompt-cache breakpoint changes no byte of the
prefix. If a block cannot carry a marker (empty text, thinking, an empty message), the marker moves
to the block before it, within the same message if possible.

Claude's signed thinking is stored with its message and sent back at its original position:
`opaque["anthropic"]` holds the original blocks, `opaque["anthropic_places"]` their positions
(characters of text and number of tool calls before each), unless they all came first.
"""

import re
from collections.abc import Iterable
from hashlib import blake2s
from itertools import pairwise
from typing import Any

from agent.messages import ChatMessage, ToolCall
from agent.models.base import ModelRequest
from agent.models.catalog import output_limit
from agent.models.wire import (
    FOREIGN,
    Part,
    arguments_object,
    blank_to_empty,
    canonical_schema,
    drop_blank_texts,
    lay_out,
    wire_name,
    wired_parts,
)
from agent.prompt_caching import KEY, marker_of

Block = dict[str, Any]
Place = tuple[int, int]
"""Position of a thinking block: characters of text and number of tool calls before it."""

_THINKING = frozenset({"thinking", "redacted_thinking"})

_READABLE_ID = 40
_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "user"}
_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,", re.ASCII)


def request_body(request: ModelRequest, model: str) -> dict[str, Any]:
    """Build the arguments of `messages.create` for one call, without `stream`."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": output_limit(model, request.max_output_tokens),
    }
    system, turns = _laid_out(request.messages)
    if system:
        body["system"] = system
    body["messages"] = turns
    if request.tools:
        body["tools"] = [
            {"name": it.name, "description": it.description, "input_schema": canonical_schema(it)}
            for it in request.tools
        ]
        if not request.allow_tools:
            # Keep the tools: removing them would change the prefix and invalidate their calls.
            body["tool_choice"] = {"type": "none"}
    if request.conversation:
        # The API asks for a user id that contains no personal data.
        body["metadata"] = {"user_id": request.conversation}
    return body


def wire_id(call_id: str) -> str:
    """Return a call id in the API's alphabet; different ids stay different."""
    # Source: the API refuses other ids ("String should match pattern '^[a-zA-Z0-9_-]+$'").
    if call_id and not FOREIGN.search(call_id):
        return call_id
    digest = blake2s(call_id.encode(), digest_size=4).hexdigest()
    return f"{FOREIGN.sub('_', call_id)[:_READABLE_ID]}_{digest}"


def _laid_out(messages: list[ChatMessage]) -> tuple[list[Block], list[dict[str, Any]]]:
    """Return the system blocks and the messages, which alternate between user and assistant.

    Tool results become one user message, ordered like their calls, followed by any user text.
    """
    system: list[Block] = []
    turns: list[dict[str, Any]] = []
    for message, blocks in zip(messages, lay_out(messages, _blocks), strict=True):
        role = _ROLES[message["role"]]
        if role == "system":
            system += blocks
        # The API requires alternating roles, and all results of a message in the next one.
        elif blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for asked, answered in pairwise(turns):
        if answered["role"] == "user" and len(answered["content"]) > 1:
            # The API requires results first. Their order is free but must stay fixed to keep the
            # prefix.
            places = {block["id"]: n for n, block in enumerate(asked["content"]) if "id" in block}
            last = len(asked["content"])
            answered["content"].sort(key=lambda it: places.get(it.get("tool_use_id"), last))
    return system, turns


def _blocks(message: ChatMessage) -> list[Block]:
    """Return new blocks; markers not attached to any of them become blocks of their own."""
    role = message["role"]
    if role == "tool":
        return [_result(message)]
    blocks = wired_parts(message, _block)
    if role == "assistant":
        blocks += [_tool_use(call) for call in message.get("tool_calls") or ()]
        blocks = with_thinking(message, blocks)
    if KEY in message:
        blocks.append({KEY: message["cache_control"]})
    blocks = drop_blank_texts(blocks)
    # The API refuses a message that ends with a thinking block.
    silent = {None, *_THINKING}
    end = max((n for n, it in enumerate(blocks, 1) if it.get("type") not in silent), default=0)
    return [*blocks[:end], *(block for block in blocks[end:] if "type" not in block)]


def _block(part: Part) -> Block:
    """Return a part as a block, or an empty dict if the API does not accept it."""
    match part["type"]:
        case "text":
            return {"type": "text", "text": part["text"]}
        case "image":
            return {"type": "image", "source": part["source"]}
        case "image_url":
            url = part["image_url"]["url"]
            if (inline := _DATA_URL.match(url)) is None:
                return {"type": "image", "source": {"type": "url", "url": url}}
            data = url[inline.end() :]
            source = {"type": "base64", "media_type": inline[1], "data": data}
            return {"type": "image", "source": source}
    return {}


def _tool_use(call: ToolCall) -> Block:
    name, given = wire_name(call["function"]["name"]), arguments_object(call)
    return {"type": "tool_use", "id": wire_id(call["id"]), "name": name, "input": given}


def _result(message: ChatMessage) -> Block:
    """Return a tool result; a marker on one of its parts moves to the result itself."""
    block: Block = {"type": "tool_result", "tool_use_id": wire_id(message["tool_call_id"])}
    content, marker = message.get("content"), message.get("cache_control")
    if isinstance(content, list):
        content, marker = drop_blank_texts(filter(None, map(_block, content))), marker_of(message)
        # Send a single string if all parts are text: its bytes do not depend on how the tool split
        # it.
        if all(block["type"] == "text" for block in content):
            content = "\n".join(block["text"] for block in content)
    if isinstance(content, str):
        content = blank_to_empty(content)
    if content:
        block["content"] = content
    if marker:
        block[KEY] = marker
    return block


def opaque_fields(thoughts: Iterable[tuple[Block, Place]]) -> dict[str, Any]:
    """Return the thinking that a message keeps: signed blocks and their positions."""
    # The API does not accept an unsigned block back.
    kept = [
        (block, place)
        for block, place in thoughts
        if block["type"] == "redacted_thinking" or block.get("signature")
    ]
    if not kept:
        return {}
    fields: dict[str, Any] = {"anthropic": [block for block, _ in kept]}
    if any(place != (0, 0) for _, place in kept):
        fields["anthropic_places"] = [list(place) for _, place in kept]
    return fields


def with_thinking(message: ChatMessage, said: list[Block]) -> list[Block]:
    """Return the blocks of an assistant message with its thinking at its original positions.

    Args:
        said: Its text and tool_use blocks in wire order; not modified. A text block with thinking
            in the middle is split, and its marker stays with the second half.
    """
    opaque = message.get("opaque") or {}
    thoughts: list[Block] = opaque.get("anthropic") or []
    places = opaque.get("anthropic_places") or [(0, 0)] * len(thoughts)
    # Work backwards, so that earlier positions stay valid.
    blocks = list(said)
    for thought, (chars, calls) in reversed(list(zip(thoughts, places, strict=False))):
        if calls:
            ends = [n for n, block in enumerate(blocks, 1) if block.get("type") == "tool_use"]
            index = ends[calls - 1] if calls <= len(ends) else len(blocks)
        else:
            index = _behind_text(blocks, chars)
        blocks.insert(index, thought)
    return blocks


def _behind_text(blocks: list[Block], chars: int) -> int:
    """Return the block index after `chars` characters of text; split the block that contains it."""
    for index, block in enumerate(blocks):
        if chars <= 0 or block.get("type") == "tool_use":
            return index
        size = len(block.get("text", ""))
        if chars < size:
            text = block["text"]
            halves = {"type": "text", "text": text[:chars]}, {**block, "text": text[chars:]}
            blocks[index : index + 1] = halves
            return index + 1
        chars -= size
    return len(blocks)
