"""A model behind OpenAI's Responses API: one streaming call, and the body of its request.

It is the API in which OpenAI's reasoning models get back what they thought, between the calls of a
turn and from turn to turn; over Chat Completions they begin anew each time. The provider keeps
nothing (`store: false`): each request brings the whole conversation, and what the model thought
comes back to it encrypted. `message["opaque"]["openai"]` holds

- `origin`: the server and the family of the model; nobody else gets any of it back;
- `output`: the items of the answer in their order. What the model thought stands in it verbatim;
  of a text only how many characters it has, and its phase; of a call only that there is one: texts
  and arguments are the message's own.
- `reasoning_tokens`: how many tokens the thoughts have, as reported; they cannot be read.
"""

from collections.abc import Iterable, Iterator
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
    offered,
    sound_arguments,
    text_or_images,
    tools_of,
)
from agent.models.wire import (
    arguments_in,
    content_parts,
    field_in,
    spoken_text,
    text_in,
    tokens_in,
    wire_name,
)

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_INCOMPLETE: dict[str | None, StopReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "refused",
}


class ResponsesAnswer(OpenAIStream):
    """Grows with the events of one stream."""

    def __init__(self, draft: AnswerDraft, clock: StreamClock, origin: str) -> None:
        """`draft` collects the answer; `clock` notes each event; `origin` names the sender."""
        super().__init__(draft, clock)
        self._items = OutputItems(origin)
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
        self._items.add_to(message)

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
        """Take an answer that did not come as a stream."""
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
        """Take a whole item; of one whose deltas did not come, its text and arguments too."""
        place, kind = event.get("output_index"), item.get("type")
        if kind == "reasoning":
            self._draft.count(len(str(item)))
            self._items.think(item)
        elif kind == "message":
            self._draft.count()
            for part in item.get("content") or [] if place not in self._said else []:
                is_refusal = part.get("type") == "refusal"
                self._refused = self._refused or is_refusal
                self._draft.say(text_in(part.get("refusal" if is_refusal else "text")))
            self._draft.end_text()
            before, self._shown = self._shown, len(self._draft.text)
            self._items.say(self._shown - before, item.get("phase"))
        elif kind == "function_call":
            if place not in self._calls:
                self._begin_item(event, item)
            call = self._calls[place]
            if not call.arguments:
                self._draft.grow(call, arguments=arguments_in(item.get("arguments")))
            self._items.call()

    def _end(self, kind: str, event: Fields) -> None:
        response = event.get("response")
        reported = field_in(response, "usage")
        self._note_usage(reported, "input", "output")
        details = field_in(reported, "output_tokens_details")
        self._items.reasoning_tokens = tokens_in(details, "reasoning_tokens")
        if kind in {"response.failed", "error"}:
            raise ServerError(refusals.read_event(field_in(response, "error") or event))
        reason = field_in(field_in(response, "incomplete_details"), "reason")
        incomplete = kind == "response.incomplete"
        self._ended = _INCOMPLETE.get(reason, "length") if incomplete else "stop"


class ResponsesModel(OpenAIServerModel[ResponsesAnswer]):
    """A model behind the Responses API."""

    path = "/responses"
    ends = _ENDS

    @override
    def _begun(self, draft: AnswerDraft, clock: StreamClock) -> ResponsesAnswer:
        return ResponsesAnswer(draft, clock, self._origin)

    @override
    def _body(self, request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
        body = responses_body(request, self.name, self._origin, quirks)
        if request.conversation and is_official(self._server.base_url):
            # Requests of one conversation are sent to where its prefix is cached.
            body["prompt_cache_key"] = request.conversation
        return body


ENCRYPTED = "reasoning.encrypted_content"
OUTPUT = "output"


def responses_body(
    request: ModelRequest, model: str, origin: str, quirks: Quirks = frozenset()
) -> dict[str, Any]:
    """Return the arguments of `responses.create` for one call, without `stream`.

    Args:
        origin: Who it goes to, see `agent.models.openai.wire.origin_of`.
    """
    system, others = "", request.messages
    if others and others[0]["role"] == "system":
        system, others = spoken_text(text_of(others[0])), others[1:]
    body: dict[str, Any] = {
        "model": model,
        "input": [item for each in others for item in _items(each, origin)],
        "max_output_tokens": output_limit(model, request.max_output_tokens),
        "store": False,
    }
    if system:
        body["instructions"] = system
    if "no_encrypted_reasoning" not in quirks:
        body["include"] = [ENCRYPTED]
    # Strict schemas would have to name every property as required.
    tools = [{"type": "function", **it, "strict": False} for it in tools_of(request, quirks)]
    return body | offered(request, quirks, tools)


def _items(message: ChatMessage, origin: str) -> list[Fields]:
    kept: Fields = (message.get("opaque") or {}).get(PROVIDER) or {}
    # Nobody else can read it; to another model OpenAI refuses it.
    if OUTPUT in kept and kept.get("origin") == origin:
        return _replayed_items(message)
    return _plain_items(message)


def _plain_items(message: ChatMessage) -> list[Fields]:
    """Return a message as items, without anything that only its server understands."""
    if message["role"] == "tool":
        text = spoken_text(text_of(message))
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": text}]
    if message["role"] != "assistant":
        content = text_or_images(message, map(_part, content_parts(message)))
        said = {"type": "message", "role": message["role"], "content": content}
        return [said] if content else []
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return [*_said(text_of(message)), *calls]


def _replayed_items(message: ChatMessage) -> list[Fields]:
    """Return an answer as the items that it came as; plain ones where it was changed since."""
    text, calls = text_of(message), list(message.get("tool_calls") or ())
    output = message["opaque"][PROVIDER][OUTPUT]
    kinds = [item["type"] for item in output]
    chars = sum(item.get("chars", 0) for item in output if item["type"] == "message")
    if (chars, kinds.count("function_call")) != (len(text), len(calls)):
        return _plain_items(message)
    items = list(_as_it_came(output, text, calls))
    # A blank text is not sent, and thoughts that nothing follows are refused.
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _as_it_came(output: Iterable[Fields], text: str, calls: list[ToolCall]) -> Iterator[Fields]:
    begun, called = 0, 0
    for item in output:
        if item["type"] == "message":
            end = begun + item["chars"]
            yield from _said(text[begun:end], item.get("phase"))
            begun = end
        elif item["type"] == "function_call":
            yield _call(calls[called])
            called += 1
        else:
            yield item


def _said(text: str, phase: str | None = None) -> list[Fields]:
    if not spoken_text(text):
        return []
    said: Fields = {"type": "message", "role": "assistant", "content": text}
    return [said | {"phase": phase} if phase else said]


def _part(part: Fields) -> Fields:
    """Return a part of a question; an empty one for what cannot go out."""
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        return {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
    return {}


def _call(call: ToolCall) -> Fields:
    return {
        "type": "function_call",
        "call_id": call["id"],
        "name": wire_name(call["function"]["name"]),
        "arguments": sound_arguments(call),
    }


class OutputItems:
    """Collects the items of an answer as its stream brings them, for `opaque`."""

    def __init__(self, origin: str) -> None:
        """`origin` is who writes them, see `agent.models.openai.wire.origin_of`."""
        self._origin = origin
        self._items: list[Fields] = []
        self.reasoning_tokens = 0

    def say(self, chars: int, phase: object) -> None:
        """Take note of a text."""
        named = {"phase": phase} if isinstance(phase, str) else {}
        self._items.append({"type": "message", "chars": chars, **named})

    def call(self) -> None:
        """Take note of a call."""
        self._items.append({"type": "function_call"})

    def think(self, item: Fields) -> None:
        """Take what the model thought; without the encrypted part nobody can read it again."""
        if item.get("encrypted_content"):
            self._items.append({key: item[key] for key in _KEPT if key in item})

    def add_to(self, message: ChatMessage) -> None:
        """Store in a finished message what there is to keep."""
        if any(item["type"] == "reasoning" or "phase" in item for item in self._items):
            kept: Fields = {"origin": self._origin, OUTPUT: self._items}
            if self.reasoning_tokens:
                kept["reasoning_tokens"] = self.reasoning_tokens
            message["opaque"] = {PROVIDER: kept}


_KEPT = ("id", "type", "summary", "content", "encrypted_content")
"""What goes back of a thought; its `status` belongs to the answer."""
