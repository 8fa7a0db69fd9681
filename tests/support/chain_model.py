"""What loopback providers answer to gateways that are killed: the chain of crash_script.py.

The oracle of the crash tests (crash_oracle.py) then judges real SDKs as it does the scripted model.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from agent.messages import ChatMessage, ToolCall, assistant_message, tool_message, user_message
from tests.support.crash_script import SUMMARY, answer, calls_for, split_view
from tests.support.faulty_models import Answer, ProviderName
from tests.support.model_server import Reply, asks_for_summary

Body = dict[str, Any]


def chain_of(provider: ProviderName, note: Callable[[str], None]) -> Answer:
    """Return what answers every request of one provider; `note` is told what was asked."""

    def reply(body: Body) -> Reply:
        if asks_for_summary(body):
            return Reply(text=SUMMARY)
        previous, text, own = split_view(view_of(provider, body))
        note(text)
        calls = calls_for(text)
        if calls and not own:
            return _calling(provider, calls)
        return Reply(text=answer(previous, text, [each for each in own if each["role"] == "tool"]))

    return reply


def has_results(provider: ProviderName, body: Body) -> bool:
    """Whether tools have run in the newest turn of a request."""
    view = view_of(provider, body)
    return not asks_for_summary(body) and any(
        each["role"] == "tool" for each in split_view(view)[2]
    )


def view_of(provider: ProviderName, body: Body) -> list[ChatMessage]:
    """Return the messages of a request."""
    if provider == "openai":
        messages: list[ChatMessage] = body["messages"]
        return messages
    return [message for turn in body["messages"] for message in _of_turn(turn)]


def _of_turn(turn: Body) -> Iterator[ChatMessage]:
    said = "".join(block["text"] for block in turn["content"] if block["type"] == "text")
    if turn["role"] == "assistant":
        uses = [block for block in turn["content"] if block["type"] == "tool_use"]
        message = assistant_message(said)
        if uses:
            message["tool_calls"] = [_call(use["id"], use["name"], use["input"]) for use in uses]
        yield message
        return
    for block in turn["content"]:
        if block["type"] == "tool_result":
            yield tool_message(block["tool_use_id"], "", block["content"])
        elif block["type"] == "text":
            yield user_message(block["text"])


def _call(call_id: str, name: str, values: dict[str, Any]) -> ToolCall:
    function = {"name": name, "arguments": json.dumps(values)}
    return ToolCall(id=call_id, type="function", function=function)  # type: ignore[typeddict-item]


def _calling(provider: ProviderName, calls: list[ToolCall]) -> Reply:
    """Return a reply with calls whose ids are the script's."""
    if provider == "openai":
        deltas = [{"index": n, **call} for n, call in enumerate(calls)]
        return Reply(stop="tool_calls", extra={"raw": [{"tool_calls": [each]} for each in deltas]})
    blocks = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in calls
    ]
    return Reply(stop="tool_use", extra={"blocks": blocks})
