"""A model behind OpenAI's Responses API: one streaming call, and its request body.

This API returns earlier thoughts to OpenAI's reasoning models, between the calls of a turn and from
turn to turn; over Chat Completions they start over each time. The provider stores nothing
(`store: false`): each request carries the whole conversation, with encrypted thoughts.
`message["opaque"]["openai"]` holds

- `origin`: the server and the model family; the fields are not sent to any other server;
- `output`: the items of the answer in order: thoughts verbatim, texts as their length in characters
  and their phase, calls as a mark (the message itself has the texts and arguments);
- `reasoning_tokens`: the reported size of the thoughts, which are unreadable.
"""

from typing import Any

from typing_extensions import override

from agent.messages import ChatMessage, ToolCall, text_of
from agent.models import refusals
from agent.models.api import StreamClock
from agent.models.base import ModelRequest, StopReason
from agent.models.catalog import output_limit
from agent.models.draft import AnswerDraft, CallDraft
from agent.models.openai.client import OpenAIServerModel, OpenAIStream
from agent.models.openai.mode import Quirks, is_official
from agent.models.openai.transport import ServerError
from agent.models.openai.wire import (
    PROVIDER,
    Fields,
    sound_arguments,
    text_or_images,
    tool_fields,
    tools_of,
)
from agent.models.wire import (
    arguments_in,
    blank_to_empty,
    content_parts,
    field_in,
    text_in,
    tokens_in,
    wire_name,
)

OUTPUT = "output"
_KEPT = ("id", "type", "summary", "content", "encrypted_content")
"""Fields of a thought that are sent back; its `status` belongs to the answer."""
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_INCOMPLETE: dict[str | None, StopReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "refused",
}


class ResponsesAnswer(OpenAIStream):
    """An answer assembled from the events of one stream."""

    def __init__(self, draft: AnswerDraft, clock: StreamClock, origin: str = "") -> None:
        super().__init__(draft, clock, origin)
        self._items: list[Fields] = []
        self._reasoning_tokens = 0
        self._calls: dict[object, CallDraft] = {}
        self._said: set[object] = set()
        self._shown = 0
        self._ended: StopReason | None = None

    @property
    @override
    def _has_ended(self) -> bool:
        return self._ended is not None

    @override
    def _stop(self) -> StopReason:
        return "refused" if self._refused else self._ended or "stop"

    @override
    def _keep_opaque(self, message: ChatMessage) -> None:
        if any(item["type"] == "reasoning" or "phase" in item for item in self._items):
            kept: Fields = {"origin": self._origin, OUTPUT: self._items}
            if self._reasoning_tokens:
                kept["reasoning_tokens"] = self._reasoning_tokens
            message["opaque"] = {PROVIDER: kept}

    @override
    def _take(self, event: Fields) -> None:
        self._clock.note()
        kind, place = event.get("type"), event.get("output_index")
        if event.get("object") == "response" or (kind is None and "output" in event):
            self._take_whole(event)
        elif kind == "response.output_text.delta":
            self._say(event)
        elif kind == "response.function_call_arguments.delta" and place in self._calls:
            self._draft.grow(self._calls[place], arguments=arguments_in(event.get("delta")))
        elif kind in _THOUGHTS:
            self._draft.think(text_in(event.get("delta")))
        elif kind == "response.refusal.delta":
            self._refused = True
            self._say(event)
        elif kind == "response.output_item.added":
            self._begin_item(event, event["item"])
        elif kind == "response.output_item.done":
            self._end_item(event, event["item"])
        elif kind == "response.created":
            self._model = text_in(event["response"].get("model"))
        elif kind in _ENDS:
            self._end(str(kind), event)

    def _take_whole(self, response: Fields) -> None:
        """Process a complete answer from a server that does not stream."""
        self._model = text_in(response.get("model"))
        for place, item in enumerate(response.get("output") or []):
            self._end_item({"output_index": place}, item)
        status = text_in(response.get("status")) or "completed"
        self._end(f"response.{status}", {"response": response})

    def _say(self, event: Fields) -> None:
        self._draft.say(text_in(event.get("delta")))
        self._said.add(event.get("output_index"))

    def _begin_item(self, event: Fields, item: Fields) -> None:
        if item.get("type") == "function_call":
            call = self._calls[event.get("output_index")] = self._draft.begin_call()
            self._draft.grow(call, text_in(item.get("call_id")), text_in(item.get("name")))

    def _end_item(self, event: Fields, item: Fields) -> None:
        """Process a complete item; use its text and arguments if their deltas did not arrive."""
        place, kind = event.get("output_index"), item.get("type")
        if kind == "reasoning":
            self._draft.count(len(str(item)))
            # Without its encrypted part a thought is useless to the model.
            if item.get("encrypted_content"):
                self._items.append({key: item[key] for key in _KEPT if key in item})
        elif kind == "message":
            self._draft.count()
            for part in item.get("content") or [] if place not in self._said else []:
                is_refusal = part.get("type") == "refusal"
                self._refused = self._refused or is_refusal
                self._draft.say(text_in(part.get("refusal" if is_refusal else "text")))
            self._draft.end_text()
            before, self._shown = self._shown, len(self._draft.text)
            named = {"phase": item["phase"]} if isinstance(item.get("phase"), str) else {}
            self._items.append({"type": "message", "chars": self._shown - before, **named})
        elif kind == "function_call":
            if place not in self._calls:
                self._begin_item(event, item)
            call = self._calls[place]
            if not call.arguments:
                self._draft.grow(call, arguments=arguments_in(item.get("arguments")))
            self._items.append({"type": "function_call"})

    def _end(self, kind: str, event: Fields) -> None:
        response = event.get("response")
        reported = field_in(response, "usage")
        self._note_usage(reported, "input", "output")
        details = field_in(reported, "output_tokens_details")
        self._reasoning_tokens = tokens_in(details, "reasoning_tokens")
        if kind in {"response.failed", "error"}:
            raise ServerError(refusals.parse_stream_error(field_in(response, "error") or event))
        reason = field_in(field_in(response, "incomplete_details"), "reason")
        incomplete = kind == "response.incomplete"
        self._ended = _INCOMPLETE.get(reason, "length") if incomplete else "stop"


class ResponsesModel(OpenAIServerModel):
    """A model behind the Responses API."""

    answer = ResponsesAnswer
    path = "/responses"
    ends = _ENDS

    @override
    def _body(self, request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
        body = responses_body(request, self.name, self._origin, quirks)
        if request.conversation and is_official(self._server.base_url):
            # Routes requests of one conversation to the same cache.
            body["prompt_cache_key"] = request.conversation
        return body


def responses_body(
    request: ModelRequest, model: str, origin: str, quirks: Quirks = frozenset()
) -> dict[str, Any]:
    """Build the arguments of `responses.create` for one call, without `stream`.

    `origin` is the receiver; see `agent.models.openai.wire.origin_of`.
    """
    system, others = "", request.messages
    if others and others[0]["role"] == "system":
        system, others = blank_to_empty(text_of(others[0])), others[1:]
    body: dict[str, Any] = {
        "model": model,
        "input": [item for each in others for item in _items(each, origin)],
        "max_output_tokens": output_limit(model, request.max_output_tokens),
        "store": False,
    }
    if system:
        body["instructions"] = system
    if "no_encrypted_reasoning" not in quirks:
        body["include"] = ["reasoning.encrypted_content"]
    # Strict schemas would have to list every property as required.
    tools = [{"type": "function", **it, "strict": False} for it in tools_of(request, quirks)]
    return body | tool_fields(request, quirks, tools)


def _items(message: ChatMessage, origin: str) -> list[Fields]:
    kept: Fields = (message.get("opaque") or {}).get(PROVIDER) or {}
    # OpenAI refuses thoughts of another model.
    is_replayed = OUTPUT in kept and kept.get("origin") == origin
    return _replayed_items(message) if is_replayed else _plain_items(message)


def _plain_items(message: ChatMessage) -> list[Fields]:
    """Return a message as items, without opaque fields."""
    if message["role"] == "tool":
        text = blank_to_empty(text_of(message))
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": text}]
    if message["role"] != "assistant":
        content = text_or_images(message, map(_part, content_parts(message)))
        said = {"type": "message", "role": message["role"], "content": content}
        return [said] if content else []
    return [*_said(text_of(message)), *map(_call, message.get("tool_calls") or ())]


def _replayed_items(message: ChatMessage) -> list[Fields]:
    """Return an answer's original items, or plain ones if the message has changed since."""
    text, calls = text_of(message), list(message.get("tool_calls") or ())
    output = message["opaque"][PROVIDER][OUTPUT]
    kinds = [item["type"] for item in output]
    chars = sum(item.get("chars", 0) for item in output if item["type"] == "message")
    if (chars, kinds.count("function_call")) != (len(text), len(calls)):
        return _plain_items(message)
    items: list[Fields] = []
    for item in output:
        if item["type"] == "message":
            items += _said(text[: item["chars"]], item.get("phase"))
            text = text[item["chars"] :]
        else:
            items.append(_call(calls.pop(0)) if item["type"] == "function_call" else item)
    # Blank text is not sent, and the API refuses a trailing thought.
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _said(text: str, phase: str | None = None) -> list[Fields]:
    if not blank_to_empty(text):
        return []
    said: Fields = {"type": "message", "role": "assistant", "content": text}
    return [said | {"phase": phase} if phase else said]


def _part(part: Fields) -> Fields:
    """Return one part of a question, or an empty dict if it cannot be sent."""
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        return {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
    return {}


def _call(call: ToolCall) -> Fields:
    name, arguments = wire_name(call["function"]["name"]), sound_arguments(call)
    return {"type": "function_call", "call_id": call["id"], "name": name, "arguments": arguments}
