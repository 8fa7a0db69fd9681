"""Conversations decoded from bytes, so that hypothesis draws and shrinks them quickly."""

from collections.abc import Iterator
from typing import Any

import orjson

from agent.messages import ChatMessage, ToolCall, assistant_message, tool_message, user_message
from agent.view.view import Summary, ViewPlan, summary_messages
from tests.support.scripted_model import tool_call

SENTENCE = "the order 4711 of Ada Lovelace was shipped to Rome on 2026-05-07 after the audit"
WORDS = SENTENCE.split()
HAN = "订单已于五月七日寄往罗马并由审计人员确认无误"
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

SIZES = (3, 40, 250, 900, 4_000, 20_000, 60_000)
"""Characters of a text, by the low bits of its byte."""


def conversation_of(program: bytes) -> list[ChatMessage]:
    """Return the messages behind the system prompt; two bytes make one step of a conversation.

    Groups of calls are always complete, as the loop writes them; roles may follow in any order.
    """
    messages: list[ChatMessage] = []
    for n, (what, size) in enumerate(zip(program[::2], program[1::2], strict=False)):
        messages += _step(n, what, SIZES[size % len(SIZES)])
    return messages


def _step(n: int, what: int, chars: int) -> Iterator[ChatMessage]:
    kind = what % 10
    if kind in {0, 1, 2}:
        yield user_message(_text(n, chars, han=what & 64 > 0))
    elif kind in {3, 4}:
        yield assistant_message(_text(n, chars, han=what & 64 > 0))
    elif kind in {5, 6}:
        yield from _group(n, [chars] * (1 + what // 64), arguments=20)
    elif kind == 7:
        yield from _group(n, [30], arguments=chars)
    elif kind == 8:
        yield ChatMessage(role="user", content=[{"type": "text", "text": f"picture {n}"}, PNG])
    else:
        yield from _group(0, [400], arguments=20)


def _group(n: int, sizes: list[int], arguments: int) -> Iterator[ChatMessage]:
    calls: list[ToolCall] = [
        tool_call("look", {"what": _text(n + k, arguments)}, f"c{n}-{k}") for k in range(len(sizes))
    ]
    yield ChatMessage(role="assistant", content=None, tool_calls=calls)
    for k, (call, chars) in enumerate(zip(calls, sizes, strict=True)):
        yield tool_message(call["id"], "look", _text(n + k, chars))


def _text(n: int, chars: int, *, han: bool = False) -> str:
    if han:
        return (f"{n}号" + HAN * (1 + chars // len(HAN)))[:chars]
    start = n % len(WORDS)
    phrase = f"no {n}: " + " ".join(WORDS[start:] + WORDS[:start]) + ". "
    return (phrase * (1 + chars // len(phrase)))[:chars]


def faults(messages: list[ChatMessage]) -> list[str]:
    """Return what a strict provider would refuse in a request."""
    found = []
    body = [m for m in messages if m["role"] != "system"]
    if body and body[0]["role"] != "user":
        found.append("the first message is not the user's")
    if any(m["role"] == "system" for m in messages[1:]):
        found.append("a system message is not first")
    open_ids: set[str] = set()
    for message in [*body, user_message("")]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                found.append(f"orphaned result {message['tool_call_id']}")
            open_ids.discard(message["tool_call_id"])
            continue
        found += [f"dangling call {call_id}" for call_id in sorted(open_ids)]
        open_ids = {call["id"] for call in message.get("tool_calls", ())}
        found += _bad_arguments(message)
    return found


def _bad_arguments(message: ChatMessage) -> list[str]:
    found = []
    for call in message.get("tool_calls", ()):
        try:
            orjson.loads(call["function"]["arguments"])
        except orjson.JSONDecodeError:
            found.append(f"arguments of {call['id']} are no JSON")
    return found


def plain(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as a user of the library has them."""
    return [dict(message) for message in messages]


def summary_message(summary: Summary) -> ChatMessage:
    """Return the message that shows a summary."""
    [message] = summary_messages(ViewPlan(summaries=(summary,)))
    return message
