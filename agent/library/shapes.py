"""A caller's messages as chat messages, and back: OpenAI's shape is ours, Anthropic's is converted.

A message of Anthropic's shape may be several chat messages: each `tool_result` block is a tool
message of its own, so that a call and its result can be told to belong together. On the way back
what is unchanged is the caller's own dict, and what was shortened is built of new blocks.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, pairwise
from operator import is_
from typing import Any, cast

from agent.context.phases.sanitise import OPENING
from agent.messages import ChatMessage, ToolCall
from agent.models.arguments import parse_object
from agent.view.view import MARKER, Entry

Message = dict[str, Any]
Block = dict[str, Any]

_THINKING = frozenset({"thinking", "redacted_thinking"})
_OF_ANTHROPIC = frozenset({"tool_use", "tool_result", *_THINKING})
"""Blocks that OpenAI's shape does not have. A list without any of them is the same in both."""


def is_anthropic(message: Mapping[str, Any]) -> bool:
    """Whether a message can only be one of Anthropic's Messages API.

    So it is, too, where its blocks are objects of their SDK (`response.content`).
    """
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(
        _is_object(part) or part["type"] in _OF_ANTHROPIC for part in content if _typed(part)
    )


def _typed(part: object) -> bool:
    return _is_object(part) or (isinstance(part, dict) and "type" in part)


def _is_object(part: object) -> bool:
    return not isinstance(part, dict) and hasattr(part, "model_dump")


def _blocks(content: list[Any]) -> list[Block]:
    return [part.model_dump(exclude_none=True) if _is_object(part) else part for part in content]


def asks(message: Message) -> bool:
    """Whether a message as it is sent is a person's: with it a round begins."""
    content = message.get("content")
    if message["role"] != "user" or message.get("synthetic"):
        return False
    if isinstance(content, list) and content:
        return not all(block.get("type") == "tool_result" for block in _blocks(content))
    return content != OPENING and not str(content).startswith(MARKER)


@dataclass(slots=True)
class ShapedMessages:
    """A caller's messages in order, as numbered chat messages.

    Attributes:
        first_seq: Number of the first chat message.
        given: The caller's own dicts.
        entries: The chat messages; in OpenAI's shape they are these dicts.
        starts: For each of `given` where its part of `entries` begins.
        anthropic: Whether any message was of Anthropic's shape; then `shown` returns that.
    """

    first_seq: int = 1
    given: list[Message] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    anthropic: bool = False

    def extend(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Take messages; many of OpenAI's shape at once are as good as free.

        Raises:
            ValueError: One has no role.
        """
        given = [each if isinstance(each, dict) else dict(each) for each in messages]
        if self.given or any("role" not in each or is_anthropic(each) for each in given):
            for each in given:
                self.append(each)
            return
        self.given = given
        self.entries = list(map(Entry, count(self.first_seq), cast("list[ChatMessage]", given)))
        self.starts = list(range(len(given)))

    def append(self, message: Mapping[str, Any]) -> list[Entry]:
        """Take one more message; returns what it became.

        Raises:
            ValueError: It has no role.
        """
        if "role" not in message:
            raise ValueError(f"message {len(self.given)} has no role")
        # Of the dict itself: what comes back unchanged is to be the caller's own.
        own = message if isinstance(message, dict) else dict(message)
        seq = self.first_seq + len(self.entries)
        if is_anthropic(own):
            self.anthropic = True
            fresh = [Entry(seq + n, part) for n, part in enumerate(_chat_messages(own))]
        else:
            fresh = [Entry(seq, cast("ChatMessage", own))]
        self.given.append(own)
        self.starts.append(len(self.entries))
        self.entries += fresh
        return fresh

    def hidden(self, shown: Iterable[int]) -> list[int]:
        """Return the positions of the messages of which none of these seqs shows any part."""
        seen = {bisect_right(self.starts, seq - self.first_seq) - 1 for seq in shown}
        return [place for place in range(len(self.given)) if place not in seen]

    def shown(self, messages: Sequence[ChatMessage]) -> list[Message]:
        """Return chat messages as the caller sends them, without Parley's own keys."""
        if not self.anthropic:
            return [_plain(message) for message in messages]
        return list(self._regrouped(messages))

    def _regrouped(self, messages: Sequence[ChatMessage]) -> Iterator[Message]:
        """Yield Anthropic's messages: what came from one message is one message again."""
        place_of = self._places()
        pieces = [(place_of(message), message) for message in messages]
        for (place, role), run in groupby(pieces, key=lambda piece: (piece[0], _role(piece[1]))):
            parts = [part for _, part in run]
            if place is not None and self._is_whole(place, parts):
                yield self.given[place]
            else:
                yield {"role": role, "content": [b for part in parts for b in _as_blocks(part)]}

    def _places(self) -> Callable[[ChatMessage], int | None]:
        """Return what tells which of the given messages one is a part of; None: it is new."""
        known: dict[int, int] = {}
        results: dict[str, int] = {}
        for place, (start, end) in enumerate(pairwise([*self.starts, len(self.entries)])):
            for entry in self.entries[start:end]:
                known[id(entry.message)] = place
                if entry.message["role"] == "tool":
                    results[entry.message.get("tool_call_id", "")] = place

        def place_of(message: ChatMessage) -> int | None:
            if message["role"] == "tool":
                # What was shortened is another object, but the result of the same call.
                return results.get(message["tool_call_id"])
            return known.get(id(message))

        return place_of

    def _is_whole(self, place: int, parts: Sequence[ChatMessage]) -> bool:
        start, behind = [*self.starts[place : place + 2], len(self.entries)][:2]
        own = [entry.message for entry in self.entries[start:behind]]
        return len(own) == len(parts) and all(map(is_, own, parts))


def _plain(message: ChatMessage) -> Message:
    plain = cast("Message", message)
    if "synthetic" not in message:
        return plain
    return {key: value for key, value in plain.items() if key != "synthetic"}


def _role(message: ChatMessage) -> str:
    return "user" if message["role"] == "tool" else message["role"]


def _chat_messages(message: Message) -> Iterator[ChatMessage]:
    """Yield the chat messages of one of Anthropic's: results first, as the API wants them."""
    blocks = _blocks(message["content"])
    if message["role"] == "assistant":
        yield _answer(blocks)
        return
    yield from (_result(block) for block in blocks if block.get("type") == "tool_result")
    if said := [block for block in blocks if block.get("type") != "tool_result"]:
        yield ChatMessage(role="user", content=said)


def _answer(blocks: Sequence[Block]) -> ChatMessage:
    said = [block for block in blocks if block.get("type") not in _OF_ANTHROPIC]
    answer = ChatMessage(role="assistant", content=said or None)
    if calls := [_call(block) for block in blocks if block.get("type") == "tool_use"]:
        answer["tool_calls"] = calls
    if thoughts := [block for block in blocks if block.get("type") in _THINKING]:
        answer["opaque"] = {"anthropic": thoughts}
    return answer


def _call(block: Block) -> ToolCall:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    name = str(block.get("name", ""))
    function = {"name": name, "arguments": arguments}
    return cast(
        "ToolCall", {"id": str(block.get("id", "")), "type": "function", "function": function}
    )


def _result(block: Block) -> ChatMessage:
    result = ChatMessage(role="tool", tool_call_id=str(block.get("tool_use_id", "")))
    result["content"] = block.get("content") or ""
    # Kept through every edit, and put back on the block.
    return cast("ChatMessage", {**result, "is_error": True}) if block.get("is_error") else result


def _as_blocks(message: ChatMessage) -> list[Block]:
    if message["role"] == "tool":
        block: Block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        if content := message.get("content"):
            block["content"] = content
        return [{**block, "is_error": True} if "is_error" in message else block]
    content = message.get("content")
    said = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    calls = [_as_tool_use(call) for call in message.get("tool_calls") or ()]
    thoughts = message.get("opaque", {}).get("anthropic", [])
    return [*thoughts, *said, *calls]


def _as_tool_use(call: ToolCall) -> Block:
    function = call["function"]
    arguments = parse_object(function["arguments"])
    if arguments is None:
        # The API takes objects alone; what is none stays readable.
        arguments = {"_invalid": function["arguments"]}
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
