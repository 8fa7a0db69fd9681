"""From the body of a request to the blocks that its prompt cache sees (see cache_simulator.py).

Order: tools, system, messages, whatever the order in the body. A block's key is the hash of its
bytes without markers, so a marker changes no prefix; a text that is a string equals one text block.
Values keep the order of their keys: the input of a tool call in another order is another prefix.

What is no block but part of the prefix goes into the key of the first block behind it:

- the model's name, before everything: caches are kept for each model;
- speed and citations, before the system prompt;
- tool choice, thinking, effort, and whether there are images, before the messages.

docs/caching.md, "What a provider bills", has the rules. Search by the provider needs no rule of its
own: it is a tool, and another list of tools is another prefix.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from agent.messages import IMAGE_PARTS, is_image
from agent.tokens.estimate import CALL_TOKENS, IMAGE_TOKENS, Count

MARKER = "cache_control"
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
KEY_BYTES = 16

_VERSION = re.compile(r"claude-(opus|sonnet)-(\d+)(?:-(\d{1,2})(?!\d))?")
# See `strips_thoughts`.
_KEEPS_THOUGHTS_FROM = {"opus": (4, 5), "sonnet": (4, 6)}
_OLD_STYLE = re.compile(r"claude-\d")
_AUTO = {"type": "auto"}


class Block(NamedTuple):
    """One block of a request.

    Attributes:
        key: Hash of role and bytes, markers left out.
        kind: "tool", "text", "tool_use", "tool_result", "thinking", … as the wire calls it.
        ttl: "5m" or "1h" where a breakpoint stands behind it, else None.
    """

    key: bytes
    tokens: int
    kind: str
    ttl: str | None = None


def blocks_of(body: Mapping[str, Any], count: Count) -> list[Block]:
    """Return the blocks of a body of either wire module in the order of the prefix.

    `count` returns the tokens of a text.
    """
    tools = [{**tool, "type": "tool", "kind": tool.get("type")} for tool in body.get("tools") or ()]
    shown = list(_shown(body))
    parts = [part for _, block in shown for part in (block, *_listed(block.get("content")))]
    settings = (
        [body.get("model")],
        [body.get("speed"), any((part.get("citations") or {}).get("enabled") for part in parts)],
        [
            body.get("tool_choice") or _AUTO,
            body.get("thinking"),
            body.get("output_config"),
            body.get("reasoning_effort"),
            any(map(is_image, parts)),
        ],
    )
    sections = (
        [_block("tools", tool, count) for tool in tools],
        [_block("system", block, count) for block in _listed(body.get("system"))],
        [_block(role, block, count) for role, block in shown],
    )
    return _salted(settings, sections)


def _shown(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the blocks of messages with their roles, without thoughts that are forgotten."""
    messages = body["messages"]
    thoughtless = _last_asking(messages) if strips_thoughts(str(body.get("model"))) else 0
    for place, message in enumerate(messages):
        for block in _wire_blocks(message):
            if place >= thoughtless or block.get("type") not in THOUGHTS:
                yield message["role"], block


def _block(role: str, block: Mapping[str, Any], count: Count) -> Block:
    plain = _plain({**block, "content": _listed(block.get("content"))})
    # The keys of a block may stand in any order; those inside a value may not (see above).
    data = orjson.dumps([role, sorted(plain.items())])
    key = blake2b(data, digest_size=KEY_BYTES).digest()
    tokens = sum(_tokens(part, count) for part in plain["content"] or [plain])
    marker = _marker(block)
    ttl = marker.get("ttl", "5m") if marker else None
    return Block(key, tokens, str(block.get("type", "text")), ttl)


def _tokens(part: Mapping[str, Any], count: Count) -> int:
    match part.get("type"):
        case "text":
            return count(str(part.get("text", "")))
        case "thinking":
            return count(str(part.get("thinking", "")))
        case "tool_use":
            called = f"{part.get('name')}{orjson.dumps(part.get('input')).decode()}"
            return count(called) + CALL_TOKENS
        case kind if kind in IMAGE_PARTS:
            return IMAGE_TOKENS
        case _:
            said = {name: value for name, value in part.items() if name != "content"}
            return count(orjson.dumps(said).decode())


def strips_thoughts(model: str) -> bool:
    """Return whether a model forgets its earlier thinking when the user says something new.

    From there on its cache is of no use. Source: Anthropic's documentation ("earlier Opus/Sonnet
    and all Haiku models"). It does not say which is the first that keeps them: for Opus it is 4.5,
    as the billed sessions of the pi client show, where nothing is lost behind kept thoughts; for
    Sonnet 4.6 is a guess. A name without a known version is taken for one that keeps them.
    """
    plain = model.lower().replace(".", "-")
    if "haiku" in plain or _OLD_STYLE.search(plain):
        return "claude" in plain
    version = _VERSION.search(plain)
    if version is None:
        return False
    return (int(version[2]), int(version[3] or 0)) < _KEEPS_THOUGHTS_FROM[version[1]]


def _salted(settings: Iterable[list[Any]], sections: Iterable[list[Block]]) -> list[Block]:
    """Return the blocks of all sections, the settings before each in the key of the next block."""
    blocks: list[Block] = []
    salt = b""
    for values, section in zip(settings, sections, strict=True):
        salt += orjson.dumps(values)
        if section:
            first = blake2b(salt + section[0].key, digest_size=KEY_BYTES).digest()
            blocks += [section[0]._replace(key=first), *section[1:]]
            # An empty section hands its settings on to the next block there is.
            salt = b""
    return blocks


def _last_asking(messages: list[dict[str, Any]]) -> int:
    """Return the place of the newest user message with more than tool results, or 0."""
    for place in range(len(messages) - 1, 0, -1):
        if messages[place]["role"] == "user" and any(
            block.get("type") != "tool_result" for block in _wire_blocks(messages[place])
        ):
            return place
    return 0


def _wire_blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a message in either layout: an OpenAI-like one has calls beside it."""
    if message["role"] == "tool":
        answer = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
        return [{**answer, "content": message.get("content")}]
    calls = message.get("tool_calls")
    said = _listed(message.get("content"))
    return [*said, *map(_call, calls)] if calls else said


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "type": "tool_use",
        "id": call["id"],
        "name": function["name"],
        "input": function["arguments"],
    }


def _listed(content: Any) -> list[dict[str, Any]]:
    """Return content as blocks: a string is one, nothing is none."""
    if not content:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content)


def _plain(value: Any) -> Any:
    """Return a value without markers, inside it too."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if name != MARKER}
    return value


def _marker(block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the marker of a block, or of a part inside it."""
    if own := block.get(MARKER):
        return own  # type: ignore[no-any-return]
    content = block.get("content")
    if isinstance(content, list):
        return next(filter(None, map(_marker, content)), None)
    return None
