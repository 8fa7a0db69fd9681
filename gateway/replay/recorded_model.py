"""Plays recorded conversations: the model's side, the tools' side, and the provider's bill.

The player says which exchange is being asked; how far it has been answered, the request tells. A
replay is one run of one process: what was asked is not known after a restart of this model; one of
the gateway it does not notice.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

from agent.errors import ContextOverflow, RecordingMismatch
from agent.messages import ChatMessage, ToolCall, ToolSchema, assistant_message, text_of
from agent.models.anthropic.wire import request_body
from agent.models.base import (
    Completion,
    ModelInfo,
    ModelRequest,
    StopReason,
    TextSink,
    estimate_usage,
)
from agent.models.catalog import DEFAULT_NAMES, ModelFacts, context_length, facts_of
from agent.money.cache_simulator import (
    Block,
    BlockReader,
    Cache,
    CacheRules,
    Minimum,
    Tally,
    cache_for,
)
from agent.ports import Effect
from agent.prompt_caching import apply_cache_control
from agent.settings import CachingSettings, FactsSettings
from agent.tokens.estimate import estimate_message, estimate_tokens
from agent.tools.context import ToolContext, ToolOutcome
from agent.turn.background_summary import BEHIND
from agent.usage import CacheLayout, Usage, is_claude
from gateway.replay.recordings import RecordedExchange, Recording

Placing = Literal["system_and_3", "anchored", "none"]
"""Where the breakpoints of a prompt cache stand: by which strategy; none where there are none."""

PLACINGS: tuple[Placing, ...] = ("system_and_3", "anchored")
WRITTEN_SHARE = 0.5
"""How much of what it may write a played summary takes."""
LINE_CHARS = 200
Settled = Callable[[], Awaitable[None]]
_HEADINGS = "## Goal\nAs below.\n## Progress\n{told}\n## Critical Context\nAs above."
_BEHIND = BEHIND[:40]
_CLIP_KEEPS_CHARS = 16
"""Of its beginning a clipped text has at least as much."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the requests of a conversation are billed with one placing of the breakpoints."""

    placing: Placing
    requests: int
    tally: Tally

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(self.placing, self.requests + other.requests, self.tally + other.tally)


@dataclass(frozen=True, slots=True)
class Billed:
    """How a conversation was billed.

    Attributes:
        bills: One for each placing; the one that was played comes first.
        asked_s: When each answer was asked for, on the clock of the conversation.
        fixed_tokens: Size of the system prompt and the tools, as first sent.
    """

    bills: tuple[Bill, ...] = ()
    asked_s: tuple[float, ...] = ()
    fixed_tokens: int = 0


class _When(NamedTuple):
    """Which answer is asked for (exchange and place in it), and when."""

    answer: tuple[int, int]
    at_s: float


class RecordedModel:
    """Answers with the recorded assistant messages of the request's conversation.

    Its usage is what the billing simulator makes of the request as Anthropic's API would get it;
    sizes are estimates. Requests to a Claude are also billed with the placings of breakpoints that
    were not played. Each conversation has a cache and a clock of its own.
    """

    name = label = "recorded"

    def __init__(
        self,
        context_length: int = 200_000,
        facts: ModelFacts | None = None,
        caching: CachingSettings | None = None,
        *,
        writes: bool = False,
    ) -> None:
        """Play a model.

        Args:
            context_length: In tokens; larger requests are refused, as a provider does.
            facts: Prices and cache rules of what is played; the default Claude's if None.
            caching: How requests are marked; the placings not played take its lifetime.
        """
        # A model that is only recorded writes none: gateway/wiring.py, INSIDE.
        self.provider = "played" if writes else "recorded"
        self.settled: Settled = _at_once
        self.context_length = context_length
        self.facts = facts or facts_of(DEFAULT_NAMES["anthropic"], FactsSettings())
        self.cache_layout: CacheLayout | None = "native" if is_claude(self.facts.name) else None
        self._caching = caching or CachingSettings()
        self._reader = BlockReader(partial(estimate_tokens, model=self.facts.name))
        self._plays: dict[str, _Play] = {}
        self._accounts: dict[str, _ProviderAccount] = {}

    def play(
        self, conversation: str, recording: Recording, exchange: int, asked_s: Sequence[float] = ()
    ) -> None:
        """Answer the newest user message of that conversation with an exchange, from now on.

        Args:
            exchange: Position in `recording.exchanges`, from 0.
            asked_s: When each of its answers is asked for, on the conversation's clock; all at
                once for none.
        """
        self._plays[conversation] = _Play(recording, exchange, asked_s)
        if conversation not in self._accounts:
            self._accounts[conversation] = _ProviderAccount.opened(self.facts, self._placings())

    def recording(self, conversation: str) -> Recording:
        """Return what is played in a conversation.

        Raises:
            RecordingMismatch: Nothing is.
        """
        return self._play_of(conversation).recording

    def billed(self, conversation: str) -> Billed:
        """Return how a conversation was billed so far; empty for an unknown one."""
        account = self._accounts.get(conversation)
        return account.billed() if account else Billed()

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Return the recorded message that follows the view; its text is pushed at once.

        A request that is made again gets the same answer. Where tools are not allowed the
        exchange's final text takes the place of recorded calls. What is written in the background
        is there by then: steps of a turn are seconds apart.

        Raises:
            RecordingMismatch: The view does not fit the recording.
            ContextOverflow: The request is larger than the window; it counts as not made.
        """
        if self.provider == "played":
            if not request.conversation:
                return written(request, self.facts.name)
            if text_of(request.messages[-1]).startswith(_BEHIND):
                return self._behind(request)
        await self.settled()
        play = self._play_of(request.conversation)
        place = play.place(request.messages)
        message = play.answers[place]
        # The loop asks for a last answer without tools: the recorded one is at the end.
        if message.get("tool_calls") and not request.allow_tools:
            message = play.answers[-1]
        usage = self._bill(request, estimate_message(message, self.facts.name), play.when(place))
        play.given = place + 1
        if text := text_of(message):
            sink.push(text)
        reason: StopReason = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(message.copy(), reason, usage, self.name)

    async def look_up(self) -> ModelInfo | None:
        """Return None: there is no provider to ask."""
        return None

    async def close(self) -> None:
        """Nothing to give back."""

    def _behind(self, request: ModelRequest) -> Completion:
        """Write a summary behind a conversation's own request, of which the cache knows most."""
        completion = written(request, self.facts.name)
        account = self._accounts[request.conversation]
        blocks = self._reader.read(request_body(request, self.facts.name))
        usage = account.caches[account.placings[0]].bill(blocks, account.now_s)
        output_tokens = completion.usage.output_tokens if completion.usage else 0
        return replace(completion, usage=usage + Usage(output_tokens=output_tokens))

    def _play_of(self, conversation: str) -> "_Play":
        try:
            return self._plays[conversation]
        except KeyError as exc:
            raise RecordingMismatch(f"conversation {conversation!r} has no recording") from exc

    def _placings(self) -> tuple[Placing, ...]:
        """Return what is billed, first what is played."""
        if self.cache_layout is None:
            return ("none",)
        played: Placing = self._caching.strategy if self._caching.enabled else "none"
        return (played, *(placing for placing in PLACINGS if placing != played))

    def _bill(self, request: ModelRequest, output_tokens: int, when: _When) -> Usage:
        """Bill a request with every placing; returns the usage of the one that is played.

        Raises:
            ContextOverflow: It is larger than the window; nothing is billed.
        """
        account = self._accounts[request.conversation]
        played, *others = account.placings
        body = request_body(request, self.facts.name)
        blocks = {played: self._reader.read(body)}
        tokens = sum(block.tokens for block in blocks[played])
        if tokens > self.context_length:
            raise ContextOverflow(
                f"about {tokens:,} tokens do not fit into {self.context_length:,}"
            )
        # Marks of the placing that is played must not stand in the others.
        plain = [_plain(message) for message in request.messages]
        # As a turn marks the first request behind a compaction (agent/turn/request.py).
        moved = plain[: len(account.asked)] != account.asked
        account.asked = plain
        for placing in others:
            strategy = "anchored" if moved else placing
            marked = apply_cache_control(plain, ttl=self._caching.cache_ttl, strategy=strategy)
            other = request_body(replace(request, messages=marked), self.facts.name)
            blocks[placing] = self._reader.read(other)
        if not account.requests:
            fixed = len(body.get("tools", ())) + len(body.get("system", ()))
            account.fixed_tokens = sum(block.tokens for block in blocks[played][:fixed])
        return account.book(blocks, output_tokens, when)


async def _at_once() -> None:
    """Wait for nothing."""


def _plain(message: ChatMessage) -> ChatMessage:
    """Return a message as it was before it was marked; recorded ones are plain texts."""
    if not isinstance(message.get("content"), list) and "cache_control" not in message:
        return message
    plain = message.copy()
    plain.pop("cache_control", None)
    plain["content"] = text_of(message)
    return plain


@dataclass(slots=True)
class _ProviderAccount:
    """One conversation with the provider: a cache and a bill for each placing.

    Attributes:
        asked_s: By answer; the same one may be asked for again.
        asked: The messages of the newest request, without marks.
    """

    caches: dict[Placing, Cache]
    minimum: Minimum
    tallies: dict[Placing, Tally]
    requests: int = 0
    asked_s: dict[tuple[int, int], float] = field(default_factory=dict)
    fixed_tokens: int = 0
    asked: list[ChatMessage] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """When the newest answer was asked for."""
        return max(self.asked_s.values(), default=0.0)

    @classmethod
    def opened(cls, facts: ModelFacts, placings: Iterable[Placing]) -> "_ProviderAccount":
        caches = {placing: cache_for(facts) for placing in placings}
        return cls(caches, Minimum(CacheRules.of(facts)), dict.fromkeys(caches, Tally()))

    @property
    def placings(self) -> tuple[Placing, ...]:
        return tuple(self.caches)

    def book(self, blocks: dict[Placing, list[Block]], output_tokens: int, when: _When) -> Usage:
        """Bill a request; returns what it is for the first placing."""
        written = Usage(output_tokens=output_tokens)
        least = self.minimum.bill(blocks[self.placings[0]]) + written
        usages = {
            placing: cache.bill(blocks[placing], when.at_s) + written
            for placing, cache in self.caches.items()
        }
        for placing, usage in usages.items():
            self.tallies[placing] += Tally(usage, least)
        self.requests += 1
        self.asked_s[when.answer] = when.at_s
        return usages[self.placings[0]]

    def billed(self) -> Billed:
        bills = (Bill(placing, self.requests, tally) for placing, tally in self.tallies.items())
        return Billed(tuple(bills), tuple(self.asked_s.values()), self.fixed_tokens)


@dataclass(slots=True)
class _Play:
    """The exchange that is being asked in one conversation.

    Attributes:
        number: Its position in the recording.
        asked_s: When each answer is asked for; empty for always 0.
        given: Answers given so far.
    """

    recording: Recording
    number: int
    asked_s: Sequence[float]
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

    @property
    def exchange(self) -> RecordedExchange:
        return self.recording.exchanges[self.number]

    def when(self, place: int) -> _When:
        """Return when the answer at a place is asked for."""
        return _When((self.number, place), self.asked_s[place] if self.asked_s else 0.0)

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


class RecordedWriter:
    """A model that only writes summaries, at its own price.

    What it writes are lines of the material under the headings of a summary: as long as asked for,
    and the same for the same prompt.
    """

    provider = "played"
    cache_layout: CacheLayout | None = None

    def __init__(self, facts: ModelFacts) -> None:
        """Write at the prices of this model."""
        self.name = self.label = facts.name
        self.facts = facts
        self.context_length = facts.context_length or context_length(facts.name)

    async def complete(self, request: ModelRequest, _sink: TextSink) -> Completion:
        """Return a summary."""
        return written(request, self.name)

    async def look_up(self) -> ModelInfo | None:
        """Return None: there is no provider to ask."""
        return None

    async def close(self) -> None:
        """Nothing to give back."""


def written(request: ModelRequest, name: str) -> Completion:
    """Return a summary in the form that is asked for, made of lines of the prompt."""
    most = int(request.max_output_tokens * WRITTEN_SHARE)
    alone = len(request.messages) == 1
    # Behind a conversation's own request the material is what stands before the order.
    text = text_of(request.messages[0 if alone else -2])
    lines = (text.partition("BEGIN>>\n")[2] if alone else text).splitlines()
    told: list[str] = []
    size = estimate_tokens(_HEADINGS, name)
    for line in lines:
        words = line[:LINE_CHARS].strip("#<> ")
        if size > most:
            break
        told.append(f"- {words}")
        size += estimate_tokens(told[-1], name)
    answer = assistant_message(_HEADINGS.format(told="\n".join(told) or "None."))
    return Completion(answer, "stop", estimate_usage(request, answer, name), name)


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

    def restricted(self, _name: str) -> bool:
        """Return False: recorded tools touch nothing."""
        return False

    def refusal(self, _call: ToolCall, _context: ToolContext) -> ToolOutcome | None:
        """Return None: whoever recorded the call could make it."""
        return None

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
