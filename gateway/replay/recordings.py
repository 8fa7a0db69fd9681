"""Recorded conversations: normalized, and replayed by a model with a simulated bill.

Formats: tau-bench results, pi sessions, SWE-agent trajectories, plain lists of OpenAI messages.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from agent.errors import ContextOverflow, RecordingMismatch
from agent.messages import (
    ChatMessage,
    FunctionCall,
    ToolCall,
    ToolSchema,
    Usage,
    clean_text,
    text_of,
    tool_message,
)
from agent.models.anthropic.wire import request_body
from agent.models.base import Completion, ModelRequest, StopReason, TextSink
from agent.models.catalog import DEFAULT_NAMES, ModelFacts, facts_of
from agent.money.cache_simulator import Cache, CacheRules, Minimum, Tally, blocks_of, cache_for
from agent.prompt_caching import CacheLayout, is_claude
from agent.settings import FactsSettings
from agent.tokens import estimate_message, estimate_tokens
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.registry import Tool, ToolRegistry

NO_RESULT = "[no result in the recording]"
END_OF_RECORDING = "[end of the recording]"


class BadRecording(ValueError):
    """A file has an unknown format; the text names file, item and mistake."""


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """A user message and the following steps.

    Attributes:
        user: Never empty.
        steps: Assistant and tool messages up to the next user message. Each call is followed by its
            result; the last step is an assistant text.
    """

    user: str
    steps: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded conversation with unique call ids."""

    name: str
    exchanges: tuple[RecordedExchange, ...]


def load_recordings(path: Path) -> list[Recording]:
    r"""Return the conversations of a file, in its order.

    Normalised: system messages and everything before the first user message are left out, as are
    empty messages and results without a call; user messages without an answer between them are
    joined by a blank line, and so is an assistant text with the assistant message after it. A
    call without a result gets `NO_RESULT`, an exchange without a final text `END_OF_RECORDING`;
    a call id that was used before gets a number.

    Raises:
        BadRecording: The file is not in one of the formats.
        OSError: The file cannot be read.
    """
    try:
        found = _conversations(path.stem, _parse(path))
        return [Recording(name, _exchanges(heard)) for name, heard in found]
    except ValueError as exc:
        raise BadRecording(f"{path}: {exc}") from exc


def _parse(path: Path) -> Any:
    """Parse a file as JSON, or as JSON lines into a list marked as a session."""
    text = path.read_text("utf-8-sig")
    if path.suffix != ".jsonl":
        return json.loads(text)
    # Not splitlines(), since JSON strings may contain U+2028.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return {"session": [_line(number, line) for number, line in lines]}


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as exc:
        raise BadRecording(f"line {number}: {exc}") from exc


def _conversations(stem: str, data: Any) -> Iterator[tuple[str, list[ChatMessage]]]:
    match data:
        case {"session": list() as lines}:
            yield stem, _heard(lines, "line", first=1)
        case {"history": list() as history}:
            yield stem, _heard(history, "history item")
        case [{"traj": _}, *_]:
            for number, item in enumerate(data):
                if not isinstance(item, dict) or not isinstance(item.get("traj"), list):
                    raise BadRecording(f"item {number}: has no list `traj`")
                yield f"{stem}#{number}", _heard(item["traj"], f"item {number}, message")
        case [_, *_]:
            yield stem, _heard(data, "message")
        case _:
            raise BadRecording("neither a list of messages or trajectories nor a history")


def _heard(items: list[Any], where: str, first: int = 0) -> list[ChatMessage]:
    heard: list[ChatMessage] = []
    for number, item in enumerate(items, first):
        try:
            if not isinstance(item, dict):
                raise BadRecording("is not an object")
            heard.extend(_messages(item if first == 0 else _of_pi(item)))
        except ValueError as exc:
            raise BadRecording(f"{where} {number}: {exc}") from exc
    if not any(message["role"] == "user" and text_of(message) for message in heard):
        raise BadRecording(f"{where}s: there is no user message with text")
    return heard


def _of_pi(line: dict[str, Any]) -> dict[str, Any]:
    """Convert a pi line to an OpenAI message; other lines become system messages."""
    if line.get("type") != "message":
        return {"role": "system"}
    item = line.get("message")
    if not isinstance(item, dict):
        raise BadRecording("has no object `message`")
    roles = {"user": "user", "assistant": "assistant", "toolResult": "tool"}
    parts = _listed(item, "content")
    calls = [part for part in parts if part.get("type") == "toolCall"]
    thoughts = [str(part["thinking"]) for part in parts if part.get("thinking")]
    return {
        "role": roles.get(str(item.get("role")), "system"),
        "content": item.get("content"),
        "tool_calls": [{"id": call.get("id"), "function": call} for call in calls],
        "tool_call_id": item.get("toolCallId"),
        "name": item.get("toolName", ""),
        "reasoning": "\n\n".join(thoughts),
    }


def _messages(item: dict[str, Any]) -> Iterator[ChatMessage]:
    """Yield the message of an OpenAI item, repeated for each call of a result."""
    match item.get("role"):
        case "user":
            yield ChatMessage(role="user", content=_text(item.get("content")).strip())
        case "assistant":
            message = ChatMessage(role="assistant", content=_text(item.get("content")) or None)
            if calls := [_call(call) for call in _listed(item, "tool_calls")]:
                message["tool_calls"] = calls
            if reasoning := item.get("reasoning"):
                message["reasoning"] = clean_text(str(reasoning))
            yield message
        case "tool":
            text = _text(item.get("content"))
            # SWE-agent records a single result for all calls of a message.
            for call_id in item.get("tool_call_ids") or [item.get("tool_call_id")]:
                yield tool_message(str(call_id), str(item.get("name", "")), text)
        case "system" | "developer":
            return
        case role:
            raise BadRecording(f"unknown role {role!r}")


def _text(content: Any) -> str:
    """Return the text of content that is a string, None, or a list of parts."""
    if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
        raise BadRecording("`content` is a list with something else than objects")
    if content is not None and not isinstance(content, str | list):
        raise BadRecording("`content` is neither text nor a list")
    parts = content if isinstance(content, list) else []
    if any(part.get("type") == "text" and "text" not in part for part in parts):
        raise BadRecording("a text part of `content` has no `text`")
    return clean_text(text_of(ChatMessage(role="user", content=content)))


def _listed(item: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects; empty for a missing value or a text."""
    value = item.get(key) or []
    if isinstance(value, str):
        return []
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise BadRecording(f"`{key}` is not a list of objects")
    return cast("list[dict[str, Any]]", value)


def _call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecording("a tool call has no function name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        # Providers require JSON text, but some recordings contain the object itself.
        arguments = json.dumps(arguments or {}, ensure_ascii=False, separators=(",", ":"))
    named = FunctionCall(name=function["name"], arguments=clean_text(arguments))
    return ToolCall(id=str(call.get("id") or "call"), type="function", function=named)


def _exchanges(heard: Iterable[ChatMessage]) -> tuple[RecordedExchange, ...]:
    builder = _Builder()
    for message in heard:
        match message["role"]:
            case "user":
                builder.add_user(text_of(message))
            case "assistant":
                builder.add_assistant(message)
            case "tool":
                builder.add_result(message)
    return builder.finish()


@dataclass(slots=True)
class _Builder:
    """Builds exchanges message by message, with a method for each normalization rule."""

    exchanges: list[RecordedExchange] = field(default_factory=list)
    user: str = ""
    steps: list[ChatMessage] = field(default_factory=list)
    waiting: list[tuple[str, ToolCall]] = field(default_factory=list)
    used_ids: set[str] = field(default_factory=set)

    def add_user(self, text: str) -> None:
        if not text:
            return
        if self.steps:
            self._close()
        self.user = f"{self.user}\n\n{text}" if self.user else text

    def add_assistant(self, message: ChatMessage) -> None:
        calls = message.get("tool_calls", [])
        # Skip an assistant's greeting, since a turn must start with a question.
        if not self.user or not (calls or text_of(message)):
            return
        self._stub_missing_results()
        # Providers refuse ids that a recording may use twice.
        renamed = [ToolCall(**{**call, "id": self._unique(call["id"])}) for call in calls]
        self.waiting = [(old["id"], new) for old, new in zip(calls, renamed, strict=True)]
        if renamed:
            message["tool_calls"] = renamed
        if self.steps and self.steps[-1]["role"] == "assistant":
            # Merge two consecutive answers, since providers require alternating roles.
            message = _merged(self.steps.pop(), message)
        self.steps.append(message)

    def add_result(self, message: ChatMessage) -> None:
        recorded_id = message["tool_call_id"]
        for position, (call_id, call) in enumerate(self.waiting):
            if call_id == recorded_id:
                del self.waiting[position]
                self._append_result(call, text_of(message))
                return

    def finish(self) -> tuple[RecordedExchange, ...]:
        self._close()
        return tuple(self.exchanges)

    def _close(self) -> None:
        self._stub_missing_results()
        if not self.steps or self.steps[-1]["role"] != "assistant":
            self.steps.append(ChatMessage(role="assistant", content=END_OF_RECORDING))
        self.exchanges.append(RecordedExchange(self.user, tuple(self.steps)))
        self.user, self.steps = "", []

    def _stub_missing_results(self) -> None:
        for _, call in self.waiting:
            self._append_result(call, NO_RESULT)
        self.waiting = []

    def _append_result(self, call: ToolCall, text: str) -> None:
        self.steps.append(tool_message(call["id"], call["function"]["name"], text))

    def _unique(self, call_id: str) -> str:
        candidates = (f"{call_id}_{number}" if number > 1 else call_id for number in count(1))
        unused = next(candidate for candidate in candidates if candidate not in self.used_ids)
        self.used_ids.add(unused)
        return unused


def _merged(text: ChatMessage, after: ChatMessage) -> ChatMessage:
    """Prepend the text and reasoning of the previous message to `after`."""
    merged = after.copy()
    merged["content"] = "\n\n".join(filter(None, (text_of(text), text_of(after))))
    if reasoning := "\n\n".join(filter(None, (m.get("reasoning") for m in (text, after)))):
        merged["reasoning"] = reasoning
    return merged


STEP_S = 10.0
"""Simulated seconds between two requests of a turn."""
CLIP_KEEPS_CHARS = 16
"""Least characters kept at the start of a clipped text."""


@dataclass(frozen=True, slots=True)
class Bill:
    """The simulated bill of a conversation."""

    requests: int = 0
    tally: Tally = field(default_factory=Tally)

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(self.requests + other.requests, self.tally + other.tally)


class RecordedModel:
    """Answers with the recorded assistant messages of a request's conversation.

    The billing simulator computes usage like Anthropic's API from estimated sizes. Each
    conversation has its own cache and clock.
    """

    # A provider in INSIDE (gateway/supervision/credentials.py) writes no summaries.
    provider = "recorded"
    name = label = "recorded"

    def __init__(self, context_length: int = 200_000, facts: ModelFacts | None = None) -> None:
        self.context_length = context_length
        self.facts = facts or facts_of(DEFAULT_NAMES["anthropic"], FactsSettings())
        self.cache_layout: CacheLayout | None = "native" if is_claude(self.facts.name) else None
        self._talks: dict[str, _Talk] = {}

    def play(
        self, conversation: str, recording: Recording, exchange: int, pause_s: float = 0
    ) -> None:
        """Replay an exchange for the conversation's newest user message.

        Args:
            exchange: Index in `recording.exchanges`.
            pause_s: Time since the previous answer, on the conversation's clock.
        """
        talk = self._talks.setdefault(conversation, _Talk.opened(recording, self.facts))
        talk.exchange, talk.given = exchange, 0
        talk.now_s += pause_s

    def recording(self, conversation: str) -> Recording:
        """Return the recording of a conversation."""
        return self._talk(conversation).recording

    def bill(self, conversation: str) -> Bill:
        """Return a conversation's current bill; empty if unknown."""
        return self._talks[conversation].bill if conversation in self._talks else Bill()

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Return the exchange's next recorded message, pushing its text at once.

        Without allowed tools, the exchange's final text replaces recorded calls.

        Raises:
            RecordingMismatch: The view does not fit the recording.
            ContextOverflow: The request is larger than the window; it is not billed.
        """
        talk = self._talk(request.conversation)
        message = talk.next_answer(request)
        usage = self._book(talk, request, message)
        talk.given += 1
        talk.now_s += STEP_S
        if text := text_of(message):
            sink.push(text)
        reason: StopReason = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(message.copy(), reason, usage, self.name)

    async def look_up(self) -> int | None:
        """Return None: there is no provider."""
        return None

    async def close(self) -> None:
        """Nothing to close."""

    def _talk(self, conversation: str) -> "_Talk":
        try:
            return self._talks[conversation]
        except KeyError as exc:
            raise RecordingMismatch(f"conversation {conversation!r} has no recording") from exc

    def _book(self, talk: "_Talk", request: ModelRequest, answer: ChatMessage) -> Usage:
        """Bill a request and return its usage."""
        count = partial(estimate_tokens, model=self.facts.name)
        blocks = blocks_of(request_body(request, self.facts.name), count)
        tokens = sum(block.tokens for block in blocks)
        if tokens > self.context_length:
            raise ContextOverflow(
                f"about {tokens:,} tokens do not fit into {self.context_length:,}"
            )
        written = Usage(output_tokens=estimate_message(answer, self.facts.name))
        usage = talk.cache.bill(blocks, talk.now_s) + written
        talk.bill += Bill(1, Tally(usage, talk.minimum.bill(blocks) + written))
        return usage


@dataclass(slots=True)
class _Talk:
    """A conversation's current exchange, simulated cache and bill.

    Attributes:
        exchange: Index of the current exchange.
        given: Number of answers given to it.
        now_s: Time on the conversation's clock.
    """

    recording: Recording
    cache: Cache
    minimum: Minimum
    bill: Bill = field(default_factory=Bill)
    exchange: int = 0
    given: int = 0
    now_s: float = 0.0

    @classmethod
    def opened(cls, recording: Recording, facts: ModelFacts) -> "_Talk":
        return cls(recording, cache_for(facts), Minimum(CacheRules.of(facts)))

    def next_answer(self, request: ModelRequest) -> ChatMessage:
        name, exchange = self.recording.name, self.recording.exchanges[self.exchange]
        asked = self._question(request.messages)
        # The gateway may add to a text (a sender's name), and a compaction may clip it.
        clipped = len(asked) < len(exchange.user) and exchange.user[:CLIP_KEEPS_CHARS] in asked
        if exchange.user not in asked and not clipped:
            raise RecordingMismatch(
                f"{name}: {asked[:80]!r} was asked, not the recorded {exchange.user[:80]!r}"
            )
        answers = [step for step in exchange.steps if step["role"] == "assistant"]
        # If the loop requests a final answer without tools, use the recorded final one.
        place = self.given if request.allow_tools else len(answers) - 1
        if place >= len(answers):
            raise RecordingMismatch(f"{name}: all answers to {asked[:80]!r} were given")
        return answers[place]

    def _question(self, view: list[ChatMessage]) -> str:
        for message in reversed(view):
            if message["role"] == "user" and not message.get("synthetic"):
                return text_of(message)
        raise RecordingMismatch(f"{self.recording.name}: there is no user message in the view")


class RecordedTools(ToolRegistry):
    """Returns recorded results; nothing runs, so every tool is read-only."""

    def __init__(self, model: RecordedModel, recordings: Iterable[Recording]) -> None:
        super().__init__([])
        self._model = model
        exchanges = [exchange for recording in recordings for exchange in recording.exchanges]
        calls = [
            call for it in exchanges for step in it.steps for call in step.get("tool_calls", ())
        ]
        self.schemas = tuple(
            ToolSchema(name, f"The recorded tool {name}.", {"type": "object"})
            for name in sorted({call["function"]["name"] for call in calls})
        )

    @override
    def changed(self, more: Iterable[Tool] = (), without: Collection[str] = ()) -> "RecordedTools":
        """Return a copy with other tools, which no recording calls."""
        made = copy(self)
        shown = [schema for schema in self.schemas if schema.name not in without]
        made.schemas = (*shown, *ToolRegistry(more).schemas)
        return made

    @override
    def refusal(self, call: ToolCall) -> None:
        """Return None: the recorded call was made."""

    @override
    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Return the recorded result of a call."""
        recording = self._model.recording(context.conversation)
        for exchange in recording.exchanges:
            for step in exchange.steps:
                if step["role"] == "tool" and step["tool_call_id"] == call["id"]:
                    return ToolOutcome(text_of(step), "ok")
        raise RecordingMismatch(f"{recording.name} has no result for call {call['id']!r}")
