"""A strict loopback double of Anthropic's Messages API (streaming only)."""

import hashlib
import json
import re
from itertools import groupby
from typing import Any

from typing_extensions import override

from tests.support.model_server import Fault, ModelServer, Refusal, Reply, pieces, require

_TOP_KEYS = {
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "metadata",
    "stream",
    "stop_sequences",
    "thinking",
    "output_config",
    "service_tier",
    "cache_control",
    "diagnostics",
}
_BLOCK_KEYS = {
    "text": {"type", "text", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "image": {"type", "source", "cache_control"},
}
_BY_ROLE = {
    "user": {"text", "tool_result", "image"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}
# Source: https://platform.claude.com/docs/en/api/migration-2026-10-21 (the SDK 2.x sends it, and
# the key as a bearer token).
_VERSIONS = {"2023-06-01", "2026-10-21"}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MOST_BREAKPOINTS = 4


def signature(thinking: str) -> str:
    """Return the double's signature of a thinking block."""
    return "sig-" + hashlib.sha256(thinking.encode()).hexdigest()[:16]


class AnthropicServer(ModelServer):
    """Answers POST /v1/messages; `url` has no /v1, as the SDK wants it."""

    path = "/v1/messages"

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not key or (self.api_key and key != self.api_key):
            raise Refusal(401, "authentication_error", f"invalid key {key}")
        require(headers.get("anthropic-version") in _VERSIONS, "anthropic-version: invalid")
        if self.models is not None and body.get("model") not in self.models:
            raise Refusal(404, "not_found_error", f"model: {body.get('model')}")
        _check_parameters(body)
        _check_tools(body)
        _check_messages(body["messages"], tools=bool(body.get("tools")))
        count = json.dumps(body).count('"cache_control"')
        require(count <= _MOST_BREAKPOINTS, f"at most 4 blocks with cache_control, found {count}")

    @override
    def error_body(self, fault: Fault) -> dict[str, Any]:
        error = {"type": fault.error or "api_error", "message": fault.message}
        return {"type": "error", "error": error, "request_id": "req_1"}

    @override
    def frames(self, body: dict[str, Any], reply: Reply) -> list[bytes]:
        events = [_start(body, reply), {"type": "ping"}, *_blocks(reply)]
        if reply.error:
            error = {"type": reply.error, "message": "scripted error event"}
            events.append({"type": "error", "error": error})
        elif reply.trouble not in {"cut", "stall"}:
            events += [_delta(reply), {"type": "message_stop"}]
        return [_frame(event) for event in events]


def _frame(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _start(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    usage = {
        "input_tokens": len(json.dumps(body)) // 4,
        "output_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | (reply.usage or {}),
    }
    return {"type": "message_start", "message": message}


def _delta(reply: Reply) -> dict[str, Any]:
    reason = reply.stop or ("tool_use" if reply.calls else "end_turn")
    usage = {"output_tokens": len(reply.text) // 4 + 1} | reply.extra.get("final_usage", {})
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": usage}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    contents: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if "redacted" in reply.extra:
        contents.append(({"type": "redacted_thinking", "data": reply.extra["redacted"]}, []))
    if reply.thinking:
        parts = [
            {"type": "thinking_delta", "thinking": part}
            for part in pieces(reply.thinking, reply.piece)
        ]
        signed = reply.extra.get("signature", signature(reply.thinking))
        parts.append({"type": "signature_delta", "signature": signed})
        contents.append(({"type": "thinking", "thinking": "", "signature": ""}, parts))
    if reply.text:
        parts = [{"type": "text_delta", "text": part} for part in pieces(reply.text, reply.piece)]
        contents.append(({"type": "text", "text": ""}, parts))
    contents += [_call(number, *call) for number, call in enumerate(reply.calls)]
    events: list[dict[str, Any]] = []
    for index, (block, deltas) in enumerate(contents):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    return events


def _call(
    number: int, name: str, arguments: dict[str, Any] | str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    digest = hashlib.sha256(f"{name}{text}".encode()).hexdigest()[:12]
    block = {"type": "tool_use", "id": f"toolu_{number}{digest}", "name": name, "input": {}}
    parts = ["", *pieces(text, 5)]
    return block, [{"type": "input_json_delta", "partial_json": part} for part in parts]


def _check_parameters(body: dict[str, Any]) -> None:
    unknown = set(body) - _TOP_KEYS
    require(not unknown, f"{', '.join(sorted(unknown))}: Extra inputs are not permitted")
    require(isinstance(body.get("model"), str), "model: Field required")
    limit = body.get("max_tokens")
    require(isinstance(limit, int) and limit >= 1, "max_tokens: Field required")
    require(body.get("stream") is True, "the double only streams")
    require(isinstance(body.get("messages"), list) and body["messages"], "messages: Field required")
    require(set(body.get("metadata", {})) <= {"user_id"}, "metadata: Extra inputs")
    for block in body.get("system", []):
        require(block.get("type") == "text", "system: only text blocks")
        _check_block(block)


def _check_tools(body: dict[str, Any]) -> None:
    names = [tool.get("name", "") for tool in body.get("tools", [])]
    require(len(names) == len(set(names)), "tools: Tool names must be unique")
    for tool in body.get("tools", []):
        allowed = {"name", "description", "input_schema", "cache_control"}
        require(set(tool) <= allowed, "tools: Extra inputs are not permitted")
        require(_ID.fullmatch(tool["name"]), "tools.name: String should match pattern")
        require(tool.get("input_schema", {}).get("type") == "object", "tools.input_schema: type")
    if "tool_choice" in body:
        require(names, "tool_choice may only be specified while providing tools")
        require(body["tool_choice"].get("type") in {"auto", "any", "tool", "none"}, "tool_choice")


def _check_messages(messages: list[dict[str, Any]], *, tools: bool) -> None:
    for message in messages:
        require(message.get("role") in _BY_ROLE, f"messages: Unexpected role {message['role']}")
        require(set(message) == {"role", "content"}, "messages: Extra inputs are not permitted")
    # The API combines consecutive messages of one role.
    turns = [
        (role, [block for message in group for block in _content(message)])
        for role, group in groupby(messages, key=lambda message: str(message["role"]))
    ]
    require(turns[0][0] == "user", "messages: first message must use the user role")
    require(turns[-1][0] == "user", "This model does not support assistant message prefill")
    seen: set[str] = set()
    for place, (role, blocks) in enumerate(turns):
        for block in blocks:
            require(block.get("type") in _BY_ROLE[role], f"{block.get('type')} in a {role} message")
            _check_block(block)
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        before = turns[place - 1][1] if place else []
        _check_pairs([b["id"] for b in before if b["type"] == "tool_use"], results, blocks)
        used = [b["id"] for b in blocks if b["type"] == "tool_use"]
        require(len(used) == len(set(used)), "`tool_use` ids must be unique")
        require(not seen & set(used), "`tool_use` ids must be unique")
        require(tools or not used, "Requests with `tool_use` blocks must define tools")
        seen |= set(used)


def _content(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    require(blocks, "messages: content must be non-empty")
    types = {block.get("type") for block in blocks}
    thoughts = {"thinking", "redacted_thinking"}
    require(not types <= thoughts, "messages: the content cannot be only thinking")
    return blocks


def _check_pairs(used: list[str], results: list[str], blocks: list[dict[str, Any]]) -> None:
    missing, orphans = set(used) - set(results), set(results) - set(used)
    require(
        not missing, f"`tool_use` ids without `tool_result` blocks immediately after: {missing}"
    )
    require(not orphans, f"unexpected `tool_use_id` in `tool_result` blocks: {orphans}")
    require(len(results) == len(set(results)), "each tool_use must have a single result")
    first = [block["type"] for block in blocks[: len(results)]]
    require(set(first) <= {"tool_result"}, "`tool_result` blocks must come first")


def _check_block(block: dict[str, Any]) -> None:
    kind = block["type"]
    extra = set(block) - _BLOCK_KEYS[kind]
    require(not extra, f"{kind}.{', '.join(sorted(extra))}: Extra inputs are not permitted")
    if kind == "text":
        require(block["text"].strip(), "text content blocks must contain non-whitespace text")
    elif kind == "tool_use":
        require(_ID.fullmatch(block["id"]), "tool_use.id: String should match pattern")
        require(isinstance(block["input"], dict), "tool_use.input: Input should be an object")
    elif kind == "tool_result":
        require(block.get("content") != [], "tool_result.content: must be non-empty")
    elif kind == "thinking":
        valid = block.get("signature") == signature(block["thinking"])
        require(valid, "Invalid `signature` in `thinking` block")
