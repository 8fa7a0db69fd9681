"""A model behind OpenAI's Responses API: one streaming call.

It is the API in which OpenAI's reasoning models get back what they thought, between the calls of a
turn and from turn to turn; over Chat Completions they begin anew each time. The provider stores
nothing: see `responses_wire.py`.
"""

from collections.abc import AsyncIterable
from dataclasses import replace
from typing import Any

from typing_extensions import override

from agent.errors import ModelUnreachable
from agent.models.api import StreamClock, StreamedAnswer
from agent.models.base import Completion, ModelRequest, StopReason
from agent.models.draft import (
    AnswerDraft,
    CallDraft,
    arguments_in,
    field_in,
    storable,
    text_in,
    tokens_in,
    usd_in,
)
from agent.models.openai.client import OpenAIServerModel
from agent.models.openai.mode import Quirks, is_official
from agent.models.openai.responses_wire import OutputItems, responses_body
from agent.models.openai.transport import Disconnected, failed_inside
from agent.models.openai.wire import Fields
from agent.usage import Usage

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_INCOMPLETE: dict[str | None, StopReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "refused",
}


class ResponsesAnswer(StreamedAnswer):
    """Grows with the events of one stream."""

    def __init__(self, draft: AnswerDraft, clock: StreamClock, origin: str) -> None:
        """`draft` collects what is said; `clock` is told of it; `origin` is who says it."""
        super().__init__(draft, clock)
        self._items = OutputItems(origin)
        self._calls: dict[object, CallDraft] = {}
        self._said: dict[object, int] = {}
        self._refused = False
        self._stop: StopReason | None = None
        self._cost_usd: float | None = None

    @override
    async def read(self, stream: AsyncIterable[Any]) -> None:
        """Take every event; what happens to the connection after the last one does not matter.

        An answer that is larger than it may be is left.
        """
        try:
            async for event in stream:
                if not isinstance(event, dict):
                    continue  # `data: null`
                self._clock.note()
                self._take(event)
                if self._draft.is_full:
                    break
        except Disconnected:
            if self._stop is None:
                raise

    @override
    def completion(self, name: str) -> Completion:
        if self._stop is None and not self._draft.is_full:
            raise ModelUnreachable("OpenAI API: the stream was cut")
        stop = "refused" if self._refused else self._stop or "stop"
        usage = self._usage if self._usage.prompt_tokens else None
        done = self._draft.completion(stop, usage, self._model or name)
        if not self._draft.is_full:
            self._items.add_to(done.message)
        return storable(replace(done, cost_usd=self._cost_usd))

    def _take(self, event: Fields) -> None:
        kind = event.get("type")
        if kind == "response.output_text.delta":
            self._say(event, "delta")
        elif kind == "response.function_call_arguments.delta":
            self._grow_call(event)
        elif kind in _THOUGHTS:
            self._draft.think(self._draft.admit(text_in(event.get("delta"))))
        elif kind == "response.refusal.delta":
            self._refused = True
            self._say(event, "delta")
        elif kind == "response.output_item.added":
            self._begin_item(event, event["item"])
        elif kind == "response.output_item.done":
            self._end_item(event, event["item"])
        elif kind == "response.created":
            self._model = text_in(event["response"].get("model"))
        elif kind in _ENDS:
            self._end(str(kind), event)

    def _say(self, event: Fields, name: str) -> None:
        said = self._draft.admit(text_in(event.get(name)))
        before = len(self._draft.text)
        self._draft.say(said)
        place = event.get("output_index")
        self._said[place] = self._said.get(place, 0) + len(self._draft.text) - before

    def _begin_item(self, event: Fields, item: Fields) -> None:
        self._draft.admit_part()
        if item.get("type") == "function_call":
            name = self._draft.admit(text_in(item.get("name")))
            call = CallDraft(text_in(item.get("call_id")), name)
            self._calls[event.get("output_index")] = call
            self._draft.calls.append(call)

    def _grow_call(self, event: Fields) -> None:
        call = self._calls.get(event.get("output_index"))
        if call is not None and (piece := arguments_in(event.get("delta"))):
            call.arguments.append(self._draft.admit(piece))

    def _end_item(self, event: Fields, item: Fields) -> None:
        """Take a whole item; of one whose deltas did not come, its text and arguments too."""
        place, kind = event.get("output_index"), item.get("type")
        if kind == "reasoning":
            self._draft.admit_part(len(str(item)))
            self._items.think(item)
        elif kind == "message":
            if place not in self._said:
                self._say_whole(event, item)
            self._items.say(self._said.get(place, 0), item.get("phase"))
        elif kind == "function_call":
            if place not in self._calls:
                self._begin_item(event, item)
            call = self._calls[place]
            if not call.arguments and (whole := arguments_in(item.get("arguments"))):
                call.arguments.append(self._draft.admit(whole))
            self._items.call()

    def _say_whole(self, event: Fields, item: Fields) -> None:
        for part in item.get("content") or []:
            self._refused = self._refused or part.get("type") == "refusal"
            self._say({**event, **part}, "refusal" if part.get("type") == "refusal" else "text")

    def _end(self, kind: str, event: Fields) -> None:
        response = event.get("response")
        self._note_usage(field_in(response, "usage"))
        if kind in {"response.failed", "error"}:
            raise failed_inside(field_in(response, "error") or event)
        reason = field_in(field_in(response, "incomplete_details"), "reason")
        incomplete = kind == "response.incomplete"
        self._stop = _INCOMPLETE.get(reason, "length") if incomplete else "stop"

    def _note_usage(self, reported: object) -> None:
        self._usage = _usage(reported)
        self._cost_usd = usd_in(field_in(reported, "cost"))
        details = field_in(reported, "output_tokens_details")
        self._items.reasoning_tokens = tokens_in(details, "reasoning_tokens")


def _usage(reported: object) -> Usage:
    details = field_in(reported, "input_tokens_details")
    cached = tokens_in(details, "cached_tokens")
    written = tokens_in(details, "cache_write_tokens")
    return Usage(
        input_tokens=max(tokens_in(reported, "input_tokens") - cached - written, 0),
        output_tokens=tokens_in(reported, "output_tokens"),
        cache_read_tokens=cached,
        cache_write_5m_tokens=written,
    )


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
