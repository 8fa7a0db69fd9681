"""Plays recorded conversations: the model's side, the tools' side, and the provider's bill.

The player says which exchange is asked for; its answers come in order, and only to its question.
"""

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass, field
from functools import partial

from typing_extensions import override

from agent.errors import ContextOverflow, RecordingMismatch
from agent.messages import ChatMessage, ToolCall, ToolSchema, text_of
from agent.models.anthropic.wire import request_body
from agent.models.base import Completion, ModelRequest, StopReason, TextSink
from agent.models.catalog import DEFAULT_NAMES, ModelFacts, facts_of
from agent.money.cache_simulator import Cache, CacheRules, Minimum, Tally, blocks_of, cache_for
from agent.settings import FactsSettings
from agent.tokens import estimate_message, estimate_tokens
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.registry import Tool, ToolRegistry, schema_of
from agent.usage import CacheLayout, Usage, is_claude
from gateway.replay.recordings import Recording

STEP_S = 10.0
"""Between two requests of a turn."""
CLIP_KEEPS_CHARS = 16
"""A clipped text has at least so much of its beginning."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the requests of a conversation are billed."""

    requests: int = 0
    tally: Tally = field(default_factory=Tally)

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(self.requests + other.requests, self.tally + other.tally)


class RecordedModel:
    """Answers with the recorded assistant messages of the request's conversation.

    Its usage is what the billing simulator makes of the request as Anthropic's API would get it;
    sizes are estimates. Each conversation has a cache and a clock of its own.
    """

    # No model by this name writes summaries: gateway/wiring.py, INSIDE.
    provider = "recorded"
    name = label = "recorded"

    def __init__(self, context_length: int = 200_000, facts: ModelFacts | None = None) -> None:
        """Play a model.

        Args:
            context_length: In tokens; larger requests are refused, as a provider does.
            facts: Prices and cache rules of what is played; the default Claude's if None.
        """
        self.context_length = context_length
        self.facts = facts or facts_of(DEFAULT_NAMES["anthropic"], FactsSettings())
        self.cache_layout: CacheLayout | None = "native" if is_claude(self.facts.name) else None
        self._talks: dict[str, _Talk] = {}

    def play(
        self, conversation: str, recording: Recording, exchange: int, pause_s: float = 0
    ) -> None:
        """Answer the newest user message of that conversation with an exchange, from now on.

        Args:
            exchange: Position in `recording.exchanges`, from 0.
            pause_s: How long after the answer before it is asked, on the conversation's clock.
        """
        talk = self._talks.setdefault(conversation, _Talk.opened(recording, self.facts))
        talk.exchange, talk.given = exchange, 0
        talk.now_s += pause_s

    def recording(self, conversation: str) -> Recording:
        """Return what is played in a conversation.

        Raises:
            RecordingMismatch: Nothing is.
        """
        return self._talk(conversation).recording

    def bill(self, conversation: str) -> Bill:
        """Return what a conversation was billed so far; nothing for an unknown one."""
        return self._talks[conversation].bill if conversation in self._talks else Bill()

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Return the next recorded message of the exchange; its text is pushed at once.

        Where tools are not allowed the exchange's final text takes the place of recorded calls.

        Raises:
            RecordingMismatch: The view does not fit the recording.
            ContextOverflow: The request is larger than the window; it counts as not made.
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
        """Return None: there is no provider to ask."""
        return None

    async def close(self) -> None:
        """Nothing to give back."""

    def _talk(self, conversation: str) -> "_Talk":
        try:
            return self._talks[conversation]
        except KeyError as exc:
            raise RecordingMismatch(f"conversation {conversation!r} has no recording") from exc

    def _book(self, talk: "_Talk", request: ModelRequest, answer: ChatMessage) -> Usage:
        """Bill a request; returns its usage.

        Raises:
            ContextOverflow: It is larger than the window; nothing is billed.
        """
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
    """One conversation: what is asked in it, and what the provider keeps and bills.

    Attributes:
        exchange: Position of the one that is asked.
        given: Answers given to it so far.
        now_s: On a clock of the conversation's own.
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
        """Return what comes next in the exchange.

        Raises:
            RecordingMismatch: All of it was given, or another question is in the view.
        """
        name, exchange = self.recording.name, self.recording.exchanges[self.exchange]
        asked = self._question(request.messages)
        # The gateway may add to a text (a sender's name), and a compaction may clip it.
        clipped = len(asked) < len(exchange.user) and exchange.user[:CLIP_KEEPS_CHARS] in asked
        if exchange.user not in asked and not clipped:
            raise RecordingMismatch(
                f"{name}: {asked[:80]!r} was asked, not the recorded {exchange.user[:80]!r}"
            )
        answers = [step for step in exchange.steps if step["role"] == "assistant"]
        # The loop asks for a last answer without tools: the recorded one is at the end.
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
    """Gives the recorded results; nothing runs, so every tool only reads."""

    def __init__(self, model: RecordedModel, recordings: Iterable[Recording]) -> None:
        """Offer every tool that `recordings` use; `model` knows which one plays where."""
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
        """Return what shows other tools; no recording calls them."""
        made = copy(self)
        shown = [schema for schema in self.schemas if schema.name not in without]
        made.schemas = (*shown, *map(schema_of, more))
        return made

    @override
    def refusal(self, call: ToolCall) -> None:
        """Return None: the recorded call was made."""

    @override
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
