"""What Anthropic's Messages API refuses; the double in anthropic_server.py is as strict."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tests.support.model_server import Refusal, require

Block = dict[str, Any]

TOP_KEYS = {
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
}
BLOCK_KEYS = {
    "text": {"type", "text", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "image": {"type", "source", "cache_control"},
}
BY_ROLE = {
    "user": {"text", "tool_result", "image"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}
THOUGHTS = {"thinking", "redacted_thinking"}
MOST_BREAKPOINTS = 4
_ID = re.compile(r"[a-zA-Z0-9_-]+")


def check_body(body: dict[str, Any], max_output_tokens: int) -> None:
    """Raise Refusal for a body that the API does not take."""
    _check_parameters(body, max_output_tokens)
    _check_tools(body)
    _check_messages(body["messages"], tools=bool(body.get("tools")))
    _check_breakpoints(body)


def positions(body: dict[str, Any]) -> Iterator[tuple[str, Block]]:
    """Yield every part of a prompt that can have a breakpoint, with whose it is, in order."""
    for tool in body.get("tools", []):
        yield "tools", tool
    for block in body.get("system", []):
        yield "system", block
    for message in body["messages"]:
        for block in _content(message):
            yield str(message["role"]), block


def _check_parameters(body: dict[str, Any], max_output_tokens: int) -> None:
    unknown = set(body) - TOP_KEYS
    require(not unknown, f"{', '.join(sorted(unknown))}: Extra inputs are not permitted")
    require(isinstance(body.get("model"), str), "model: Field required")
    limit = body.get("max_tokens", 0)
    require(isinstance(limit, int) and limit >= 1, "max_tokens: Field required")
    require(
        limit <= max_output_tokens,
        f"max_tokens: {limit} > {max_output_tokens}, which is the maximum allowed number of output"
        f" tokens for {body['model']}",
    )
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
        require(message.get("role") in BY_ROLE, f"messages: Unexpected role {message.get('role')}")
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
        _check_turn(place, role, blocks)
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        before = turns[place - 1][1] if place else []
        _check_pairs([b["id"] for b in before if b["type"] == "tool_use"], results, blocks)
        used = [b["id"] for b in blocks if b["type"] == "tool_use"]
        require(len(used) == len(set(used)), "`tool_use` ids must be unique")
        require(not seen & set(used), "`tool_use` ids must be unique")
        require(tools or not used, "Requests with `tool_use` blocks must define tools")
        seen |= set(used)


def _check_turn(place: int, role: str, blocks: list[Block]) -> None:
    for block in blocks:
        require(block.get("type") in BY_ROLE[role], f"{block.get('type')} in a {role} message")
        _check_block(block)
    last = blocks[-1]["type"]
    require(
        last not in THOUGHTS,
        f"messages.{place}: The final block in an assistant message cannot be `{last}`",
    )


def _content(message: dict[str, Any]) -> list[Block]:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    require(blocks, "messages: content must be non-empty")
    return blocks


def _check_pairs(used: list[str], results: list[str], blocks: list[Block]) -> None:
    missing, orphans = set(used) - set(results), set(results) - set(used)
    require(
        not missing, f"`tool_use` ids without `tool_result` blocks immediately after: {missing}"
    )
    require(not orphans, f"unexpected `tool_use_id` in `tool_result` blocks: {orphans}")
    require(len(results) == len(set(results)), "each tool_use must have a single result")
    first = [block["type"] for block in blocks[: len(results)]]
    require(set(first) <= {"tool_result"}, "`tool_result` blocks must come first")


def _check_block(block: Block) -> None:
    kind = block["type"]
    extra = set(block) - BLOCK_KEYS[kind]
    require(not extra, f"{kind}.{', '.join(sorted(extra))}: Extra inputs are not permitted")
    if kind == "text":
        blank = not block["text"].strip()
        marked = blank and "cache_control" in block
        require(not marked, "cache_control cannot be set for empty text blocks")
        require(block["text"], "text content blocks must be non-empty")
        require(not blank, "text content blocks must contain non-whitespace text")
    elif kind == "tool_use":
        require(_ID.fullmatch(block["id"]), "tool_use.id: String should match pattern")
        require(_ID.fullmatch(block["name"]), "tool_use.name: String should match pattern")
        require(isinstance(block["input"], dict), "tool_use.input: Input should be an object")
    elif kind == "tool_result":
        content = block.get("content")
        require(content != [], "tool_result.content: must be non-empty")
        inner = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        for each in inner:
            _check_block(each)


def _check_breakpoints(body: dict[str, Any]) -> None:
    lives = [_lifetime(marker) for marker in _markers(body)]
    require(
        len(lives) <= MOST_BREAKPOINTS,
        f"A maximum of {MOST_BREAKPOINTS} blocks with cache_control may be provided."
        f" Found {len(lives)}.",
    )
    falling = "5m" not in lives or "1h" not in lives[lives.index("5m") :]
    require(
        falling,
        "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note"
        " that blocks are processed in the following order: `tools`, `system`, `messages`.",
    )


def _markers(body: dict[str, Any]) -> Iterator[Any]:
    for _, block in positions(body):
        nested = block.get("content")
        for inner in nested if isinstance(nested, list) else []:
            if "cache_control" in inner:
                yield inner["cache_control"]
        if "cache_control" in block:
            yield block["cache_control"]
    if "cache_control" in body:
        yield body["cache_control"]


def _lifetime(marker: Any) -> str:
    valid = isinstance(marker, dict) and set(marker) <= {"type", "ttl"}
    if not valid or marker.get("type") != "ephemeral":
        raise Refusal(400, "invalid_request_error", "cache_control: Input should be 'ephemeral'")
    ttl = str(marker.get("ttl", "5m"))
    require(ttl in {"5m", "1h"}, "cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
    return ttl
