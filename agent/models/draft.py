"""One assistant message as it grows out of the deltas of a stream, whatever the provider.

The fields of a stream are read with distrust: proxies omit them, null them or change their type.
What cannot be used is left out; what cannot be read at all ends the call as a cut stream does.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Any

import orjson

from agent.errors import ModelUnreachable
from agent.messages import ChatMessage, FunctionCall, ToolCall
from agent.models.arguments import canonical_arguments, parse_object, read_arguments
from agent.models.base import Completion, StopReason, TextSink
from agent.models.reasoning import ReasoningFilter
from agent.usage import Usage

MOST_TOKENS = 1_000_000_000
"""A report of more is none: no window comes near, and the database could not keep it."""
PART_CHARS = 100
"""What a call or a block counts beside its text: a stream of empty ones is endless, too."""

_HIGH_SURROGATE_END = re.compile("[\ud800-\udbff]\\Z")


@dataclass(slots=True)
class CallDraft:
    """A tool call as it grows; `opaque` is what the provider wants back with it, if anything."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    opaque: Any = None


class AnswerDraft:
    """Collects deltas and pushes the visible ones; thoughts in the text are none of these.

    Every piece of a stream is counted, whatever it belongs to: text, thoughts, calls and opaque
    fields together have a limit.

    Attributes:
        calls: Tool calls in the order in which they began.
        is_full: Whether more came than one call may bring; the stream is to be left then.
        opaque_calls: Provider fields of the finished calls, by the calls' ids.
    """

    def __init__(
        self, sink: TextSink, before: Sequence[ChatMessage], max_chars: int, *, opened: bool = False
    ) -> None:
        """Start empty; `before` are the messages of the request.

        `max_chars` is the limit; `opened` is for `ReasoningFilter`.
        """
        self.is_full = False
        self.calls: list[CallDraft] = []
        self.opaque_calls: dict[str, Any] = {}
        self._sink = sink
        self._filter = ReasoningFilter(opened=opened)
        self._before = before
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._half = ""
        self._room = max_chars

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show and nothing to call."""
        return not self.calls and not self.text.strip()

    @property
    def may_be_whole(self) -> bool:
        """Whether no call is half written: the answer may be over if its server says so."""
        return all(read_arguments("".join(call.arguments)) is not None for call in self.calls)

    @property
    def text(self) -> str:
        """The visible text so far."""
        return "".join(self._text)

    @property
    def streamed(self) -> str:
        """All that was written so far: thoughts, text, calls."""
        calls = (part for call in self.calls for part in (call.name, *call.arguments))
        return "".join((*self._thoughts, *self._text, self._filter.held_back, *calls))

    @property
    def began_inside(self) -> bool:
        """Whether the text began with a thought that had no opening mark."""
        return self._filter.began_inside

    @property
    def written(self) -> str:
        """The visible text, and the thoughts that stood in it."""
        return f"{self.text}\n{self._filter.reasoning}"

    def count(self, chars: int = 0) -> None:
        """Count a call, a block, or `chars` of what is not text."""
        self._admitted_chars(PART_CHARS + chars)

    def begin_call(self) -> CallDraft:
        """Return a call that begins."""
        self.count()
        self.calls.append(CallDraft())
        return self.calls[-1]

    def grow(self, call: CallDraft, call_id: str = "", name: str = "", arguments: str = "") -> None:
        """Take what came of a call: its id and name the first time, a piece of its arguments."""
        call.id = call.id or call_id
        call.name = call.name or self._admitted(name)
        if arguments:
            call.arguments.append(self._admitted(arguments))

    def _admitted(self, delta: str) -> str:
        """Return what there is room for of a piece of text."""
        return delta[: self._admitted_chars(len(delta))]

    def _admitted_chars(self, chars: int) -> int:
        room, self._room = self._room, max(self._room - chars, 0)
        self.is_full = self.is_full or chars > room
        return min(chars, room)

    def say(self, delta: str) -> None:
        """Append text as it comes."""
        self._show(self._filter.feed(self._admitted(delta)))

    def end_text(self, *, cut: bool = False) -> None:
        """Take the end of a part of the text: what may have become a mark is none.

        `cut`: the model was not done.
        """
        self._show(self._filter.close(cut=cut))

    def _show(self, delta: str) -> None:
        """Append visible text. Half a surrogate pair waits for its other half."""
        if self._filter.takes_back:
            self._text.clear()
            self._half = ""
            self._sink.restart()
        delta = self._half + delta
        cut = _HIGH_SURROGATE_END.search(delta)
        self._half = cut[0] if cut else ""
        visible = mend_surrogates(delta.removesuffix(self._half))
        # The sink shows at once what it gets: half a pair would be seen as a broken character.
        if visible:
            self._text.append(visible)
            self._sink.push(visible)

    def think(self, delta: str) -> None:
        """Append reasoning, which is never pushed."""
        if delta:
            self._thoughts.append(self._admitted(delta))

    def completion(self, stop: StopReason, usage: Usage | None, model: str) -> Completion:
        """Return the finished message.

        The stop reason follows from the calls where both disagree: servers call "stop" what ends
        in tool calls. A call that was cut by the output limit is left out, and of an answer that
        Parley cut all of them are: nobody knows what the model was about to do.
        """
        self.end_text(cut=stop == "length")
        if not self._thoughts:
            self._thoughts.append(self._filter.reasoning)
        if self.is_full:
            stop = "endless"
        calls = self._finished_calls(stop)
        text = self.text
        # In OpenAI's format the content is null beside calls alone.
        message = ChatMessage(role="assistant", content=text or (None if calls else ""))
        if calls:
            message["tool_calls"] = calls
        if thoughts := mend_surrogates("".join(self._thoughts)):
            message["reasoning"] = thoughts
        if calls or stop == "tool_calls":
            stop = "tool_calls" if calls else "stop"
        return Completion(message, stop, usage, model)

    def _finished_calls(self, stop: StopReason) -> list[ToolCall]:
        if stop in {"refused", "endless"}:
            return []
        calls: list[ToolCall] = []
        # Anthropic refuses two calls of one id in a request, and a result would not know its call;
        # some servers number the calls of each message anew.
        before = self._before if self.calls else ()
        taken = {call["id"] for each in before for call in each.get("tool_calls") or ()}
        for index, draft in enumerate(self.calls):
            arguments = mend_surrogates("".join(draft.arguments))
            # Only the newest call can be cut by the limit; the others are whole even where they are
            # no JSON.
            if stop == "length" and draft is self.calls[-1] and parse_object(arguments) is None:
                continue
            call = self._finish(draft, index, arguments, taken)
            calls.append(call)
            taken.add(call["id"])
            if draft.opaque is not None:
                self.opaque_calls[call["id"]] = draft.opaque
        return calls

    def _finish(self, draft: CallDraft, index: int, arguments: str, taken: set[str]) -> ToolCall:
        arguments = canonical_arguments(arguments)
        call_id = draft.id
        if not call_id or call_id in taken:
            # From the content and not from chance: the same answer, played again, has the same id.
            digest = blake2s(f"{draft.name}\n{arguments}".encode(), digest_size=4).hexdigest()
            call_id = f"call_{len(self._before)}_{index}_{digest}"
        while call_id in taken:
            # A compaction has made the conversation shorter than it was at an equal call.
            call_id += "_"
        function = FunctionCall(name=draft.name, arguments=arguments)
        return ToolCall(id=call_id, type="function", function=function)


def mend_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined; a lone surrogate becomes U+FFFD.

    Servers that split an emoji's JSON escape over two deltas make them.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@contextmanager
def readable(provider: str) -> Iterator[None]:
    """Take a stream that cannot be read for one that was cut.

    Raises:
        ModelUnreachable: Something in it is not what it should be.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
        raise ModelUnreachable(f"{provider}: malformed stream") from exc


def text_in(value: object) -> str:
    """Return a text: itself, or that of the text parts in a list; "" where there is none."""
    if isinstance(value, list):
        parts = (part for part in value if isinstance(part, dict) and part.get("type") == "text")
        return "".join(text_in(part.get("text")) for part in parts)
    return value if isinstance(value, str) else ""


def arguments_in(value: object) -> str:
    """Return the arguments of a call, or a piece of them, as JSON text: some send the object."""
    if isinstance(value, dict):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text_in(value)


def field_in(report: object, name: str) -> Any:
    """Return a field of an object that may be anything; None where there is none."""
    return report.get(name) if isinstance(report, dict) else None


def tokens_in(report: object, name: str, default: int = 0) -> int:
    """Return a number of tokens out of a report; `default` where it holds none."""
    value = field_in(report, name)
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return value if 0 <= value <= MOST_TOKENS else default


def usd_in(value: object) -> float | None:
    """Return an amount of money; None for what is none: below 0, infinite, not a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= sys.float_info.max else None
