"""Plays recorded conversations: the model's side and the tools' side.

Both find their place from the request alone, so a replay goes on after a restart.
"""

from collections.abc import Iterable

from agent.errors import RecordingMismatch
from agent.messages import ChatMessage, ToolCall, text_of
from agent.models.base import Completion, ModelRequest, StopReason, TextSink, ToolSchema
from agent.ports import Effect
from agent.recordings import Exchange, Recording
from agent.tokens import estimate_usage
from agent.tools.registry import ToolContext, ToolOutcome


class RecordedModel:
    """Answers with the recorded assistant messages of the request's conversation."""

    provider = "recorded"
    name = "recorded"

    def __init__(self, context_length: int = 200_000) -> None:
        """`context_length` in tokens."""
        self.context_length = context_length
        self._recordings: dict[str, Recording] = {}

    def register(self, conversation: str, recording: Recording) -> None:
        """Play `recording` in the conversation of that id, from now on."""
        self._recordings[conversation] = recording

    def recording(self, conversation: str) -> Recording:
        """Return what is played in a conversation.

        Raises:
            RecordingMismatch: Nothing was registered for it.
        """
        try:
            return self._recordings[conversation]
        except KeyError as exc:
            raise RecordingMismatch(f"conversation {conversation!r} has no recording") from exc

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Return the recorded message that follows the view; its text is pushed at once.

        Where tools are not allowed the exchange's final text takes the place of recorded calls.

        Raises:
            RecordingMismatch: The view does not fit the recording.
        """
        message = _next_message(self.recording(request.conversation), request)
        if text := text_of(message):
            sink.push(text)
        reason: StopReason = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(message, reason, estimate_usage(request, message), self.name)

    async def close(self) -> None:
        """Nothing to give back."""


def _next_message(recording: Recording, request: ModelRequest) -> ChatMessage:
    exchange, played = _place(recording, request.messages)
    answers = [step for step in exchange.steps if step["role"] == "assistant"]
    if played >= len(answers):
        raise RecordingMismatch(
            f"{recording.name}: {played} answers to {exchange.user[:80]!r} are in the view, "
            f"and no more were recorded"
        )
    message = answers[played]
    if message.get("tool_calls") and not request.allow_tools:
        message = answers[-1]
    return message.copy()


def _place(recording: Recording, messages: list[ChatMessage]) -> tuple[Exchange, int]:
    """Return the exchange of the newest user message and how many answers it has in the view."""
    users = [
        position
        for position, message in enumerate(messages)
        if message["role"] == "user" and not message.get("synthetic")
    ]
    if not 0 < len(users) <= len(recording.exchanges):
        raise RecordingMismatch(
            f"{recording.name} has {len(recording.exchanges)} user messages, "
            f"the view has {len(users)}"
        )
    exchange = recording.exchanges[len(users) - 1]
    # The gateway may add to a text (a sender's name), so it need not be equal.
    if exchange.user not in text_of(messages[users[-1]]):
        raise RecordingMismatch(
            f"{recording.name}: user message {len(users)} is not the recorded "
            f"{exchange.user[:80]!r}"
        )
    played = sum(message["role"] == "assistant" for message in messages[users[-1] :])
    return exchange, played


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
