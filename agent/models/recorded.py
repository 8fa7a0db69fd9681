"""Plays recorded conversations: the model's side and the tools' side.

The player says which exchange is being asked; how far it has been answered, the request tells. A
replay is one run of one process: what was asked is not known after a restart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.errors import ContextOverflow, RecordingMismatch
from agent.messages import ChatMessage, ToolCall, assistant_message, text_of
from agent.models.base import (
    Completion,
    ModelRequest,
    StopReason,
    TextSink,
    ToolSchema,
    Usage,
)
from agent.ports import Effect
from agent.recordings import Exchange, Recording
from agent.tokens import estimate_message, estimate_usage
from agent.tools.registry import ToolContext, ToolOutcome

_CLIP_KEEPS_CHARS = 16
"""Of its beginning a clipped text has at least as much."""


class RecordedModel:
    """Answers with the recorded assistant messages of the request's conversation.

    Its usage is what a perfect prompt cache would make of the estimated tokens: the longest common
    prefix with the conversation's request before is read, all the rest is written (5m); tools come
    first, then the messages. Breakpoints, minimum sizes and lifetimes are left out.
    """

    provider = "recorded"
    name = "recorded"

    def __init__(self, context_length: int = 200_000) -> None:
        """`context_length` in tokens; larger requests are refused, as a provider does."""
        self.context_length = context_length
        self._plays: dict[str, _Play] = {}

    def play(self, conversation: str, recording: Recording, exchange: int) -> None:
        """Answer the newest user message of that conversation with an exchange, from now on.

        Args:
            conversation: Its id.
            recording: What is played there.
            exchange: Position in `recording.exchanges`, from 0.
        """
        before = self._plays.get(conversation)
        prompt = before.prompt if before else _NOTHING
        self._plays[conversation] = _Play(recording, recording.exchanges[exchange], prompt)

    def recording(self, conversation: str) -> Recording:
        """Return what is played in a conversation.

        Raises:
            RecordingMismatch: Nothing is.
        """
        return self._play_of(conversation).recording

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Return the recorded message that follows the view; its text is pushed at once.

        A request that is made again gets the same answer. Where tools are not allowed the
        exchange's final text takes the place of recorded calls.

        Raises:
            RecordingMismatch: The view does not fit the recording.
            ContextOverflow: The request is larger than the window; it counts as not made.
        """
        play = self._play_of(request.conversation)
        place = play.place(request.messages)
        prompt, cached_tokens = _measured(request, play.prompt)
        if prompt.tokens > self.context_length:
            raise ContextOverflow(
                f"about {prompt.tokens:,} tokens do not fit into {self.context_length:,}"
            )
        message = play.answers[place]
        if message.get("tool_calls") and not request.allow_tools:
            message = play.answers[-1]
        play.given, play.prompt = place + 1, prompt
        if text := text_of(message):
            sink.push(text)
        usage = Usage(
            output_tokens=estimate_message(message),
            cache_read_tokens=cached_tokens,
            cache_write_5m_tokens=prompt.tokens - cached_tokens,
        )
        reason: StopReason = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(message.copy(), reason, usage, self.name)

    async def close(self) -> None:
        """Nothing to give back."""

    def _play_of(self, conversation: str) -> "_Play":
        try:
            return self._plays[conversation]
        except KeyError as exc:
            raise RecordingMismatch(f"conversation {conversation!r} has no recording") from exc


@dataclass(slots=True)
class _Play:
    """The exchange that is being asked in one conversation.

    Attributes:
        prompt: The conversation's newest request.
        given: Answers given so far.
    """

    recording: Recording
    exchange: Exchange
    prompt: "_Prompt"
    given: int = 0
    answers: list[ChatMessage] = field(init=False)
    _after: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = [step for step in self.exchange.steps if step["role"] == "assistant"]
        self._after = {
            call["id"]: number
            for number, answer in enumerate(self.answers, start=1)
            for call in answer.get("tool_calls", ())
        }

    def place(self, view: list[ChatMessage]) -> int:
        """Return which answer comes next: the one behind the newest calls in the view.

        Raises:
            RecordingMismatch: The view shows another question, or not what was answered last.
        """
        newest = next((call["id"] for call in self._newest_calls(view)), None)
        place = 0 if newest is None else self._after.get(newest, -1)
        # One less is the request that was answered last, made once more.
        if not self.given - 1 <= place <= self.given or place < 0:
            raise RecordingMismatch(
                f"{self.recording.name}: {self.given} answers to {self.exchange.user[:80]!r} were"
                f" given, but the newest call in the view is {newest!r}"
            )
        return place

    def _newest_calls(self, view: list[ChatMessage]) -> list[ToolCall]:
        calls: list[ToolCall] = []
        for message in reversed(view):
            if message["role"] == "user" and not message.get("synthetic"):
                self._check_question(text_of(message))
                return calls
            calls = calls or message.get("tool_calls", [])
        raise RecordingMismatch(f"{self.recording.name}: there is no user message in the view")

    def _check_question(self, asked: str) -> None:
        # The gateway may add to a text (a sender's name), and a compaction may clip it.
        recorded = self.exchange.user
        clipped = len(asked) < len(recorded) and recorded[:_CLIP_KEEPS_CHARS] in asked
        if recorded not in asked and not clipped:
            raise RecordingMismatch(
                f"{self.recording.name}: {asked[:80]!r} was asked, not the recorded"
                f" {recorded[:80]!r}"
            )


_Part = tuple[ToolSchema, ...] | ChatMessage


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A request as the provider reads it: `parts` are the tools, then each message."""

    parts: tuple[_Part, ...] = ()
    sizes_tokens: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(self.sizes_tokens)


_NOTHING = _Prompt()


def _measured(request: ModelRequest, before: _Prompt) -> tuple[_Prompt, int]:
    """Return a request with its sizes, and the tokens that it shares with the one before.

    Only what is behind the common prefix is estimated.
    """
    parts: tuple[_Part, ...] = (request.tools, *request.messages)
    common = 0
    for old, new in zip(before.parts, parts, strict=False):
        if old is not new and old != new:
            break
        common += 1
    known = before.sizes_tokens[:common]
    tools = () if common else (_estimate_tools(request.tools),)
    added = map(estimate_message, request.messages[max(common - 1, 0) :])
    return _Prompt(parts, (*known, *tools, *added)), sum(known)


def _estimate_tools(tools: tuple[ToolSchema, ...]) -> int:
    return estimate_usage(ModelRequest([], tools), assistant_message("")).prompt_tokens


class RecordedTools:
    """A tool box that gives the recorded results; nothing runs."""

    def __init__(self, model: RecordedModel, recordings: Iterable[Recording]) -> None:
        """Offer every tool that `recordings` use; `model` knows which one plays where."""
        self._model = model
        names = {call["function"]["name"] for it in recordings for call in _calls(it)}
        self._schemas = tuple(
            ToolSchema(name, f"The recorded tool {name}.", {"type": "object"})
            for name in sorted(names)
        )

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The recorded tools by name, taking any object."""
        return self._schemas

    def effect(self, _name: str) -> Effect:
        """Return "read": playing a result again changes nothing."""
        return "read"

    def exclusive(self, _name: str) -> bool:
        """Return False: recorded tools keep no state."""
        return False

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Return the recorded result of a call.

        Raises:
            RecordingMismatch: The conversation's recording does not hold this call.
        """
        recording = self._model.recording(context.conversation)
        for exchange in recording.exchanges:
            for step in exchange.steps:
                if step["role"] == "tool" and step["tool_call_id"] == call["id"]:
                    return ToolOutcome(text_of(step), "ok")
        raise RecordingMismatch(f"{recording.name} has no result for call {call['id']!r}")


def _calls(recording: Recording) -> Iterable[ToolCall]:
    return (
        call
        for exchange in recording.exchanges
        for step in exchange.steps
        for call in step.get("tool_calls", [])
    )
