"""Call the summary model from the threads in which engines run.

One `SummaryCalls` serves one compaction: its calls share a time limit, after which the extractor
takes over. Failures are handled as in a turn (agent/models/recovery.py): another key, a short wait,
the next model. A refusal due to size reveals the model's window, and the caller retries in smaller
parts.
"""

import asyncio
import concurrent.futures
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import structlog

from agent.errors import (
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    RateLimited,
    SummaryFailed,
    SummaryOverflow,
)
from agent.messages import Usage, text_of, user_message
from agent.models.base import ChatModel, Completion, ModelRequest, Unwatched, traced_call
from agent.models.openai.mode import mode_of
from agent.models.recovery import Rests, RetryPolicy, RetryTiming, complete_with_recovery
from agent.money.costs import call_of, failed_call, lost_call
from agent.ports import ModelCall, PartStore
from agent.tokens import estimate_messages, estimate_tokens

TRANSIENT_COOLDOWN_S = 60.0
NO_PROVIDER_COOLDOWN_S = 600.0
"""Seconds for which the loop does not ask again."""
RETRIES = RetryPolicy(retry_for_s=8, failures_per_model=2, backoff_s=(0.5, 1, 2), max_wait_s=4)
"""Shorter than in a turn: users may be waiting, and the extractor can replace the model."""
PATIENCE = 10
"""A summary written ahead may take this many times the limit, which then applies to each call."""
TRIES_PER_MODEL = 2
LEAST_WINDOW_TOKENS = 3_500
"""A model with a smaller window is not asked: instructions and answer would fill it."""
MOST_OVERFLOWS = 6
"""A model that refuses this many prompts of one compaction as too large is not asked again."""
OVERFLOW_SHARE = 0.6
"""Share of the refused size to try next if the refusal does not name the window."""
SCALE_SHARE = 0.7
"""Share of the window to try next if less was refused: the model counts more tokens than Parley."""
NO_WINDOW = "no summary model is left whose window will do"
_NO_PROVIDER = (ModelNotFound, CredentialsRefused)

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Summariser:
    """The models that write summaries, in order of preference, the main model last.

    Attributes:
        models: One for each key.
        timeout_s: Limit for all calls of a compaction together, and for each call ahead of need.
        redact: Masks configured secrets in prompts and answers.
        now: The clock of the limit, in seconds.
        wait: Blocks a thread for up to the given seconds until a call ends; then raises
            TimeoutError.
    """

    models: Sequence[ChatModel]
    timeout_s: float
    redact: Callable[[str], str] = str
    now: Callable[[], float] = time.monotonic
    wait: Callable[["concurrent.futures.Future[Completion]", float], Completion] = (
        concurrent.futures.Future.result
    )
    retries: RetryTiming = field(default_factory=RetryTiming)
    rests: Rests = field(default_factory=Rests)

    @property
    def window_tokens(self) -> int:
        """The window of the model that would be asked now; 0 if there is none."""
        return next(map(self.window_of, self.usable()), 0)

    def window_of(self, model: ChatModel) -> int:
        """Return the known window of a model."""
        return int(min(model.context_length, self.shown_window(model)))

    def shown_window(self, model: ChatModel) -> float:
        """Return the window revealed by a refused prompt within the last day, or infinity.

        It applies only to summaries: a turn handles a refusal differently.
        """
        return mode_of(named(model)).limit("window", model.context_length)

    def learn(self, model: ChatModel, window_tokens: int) -> None:
        """Remember the window revealed by a refused prompt."""
        mode_of(named(model)).keep_limit("window", window_tokens, model.context_length)

    def usable(self, left_out: frozenset[str] = frozenset()) -> list[ChatModel]:
        """Return the models with a sufficient window in order, except those named in `left_out`."""
        wide = [
            model
            for model in self.models
            if self.window_of(model) >= LEAST_WINDOW_TOKENS and named(model) not in left_out
        ]
        return self.rests.in_order(wide)

    def calls(
        self, timeout_s: float | None = None, parts: PartStore | None = None
    ) -> "SummaryCalls":
        """Return the calls of one compaction; must run in the event loop.

        Args:
            timeout_s: Limit for all calls together; None for the configured one.
            parts: Stores the summaries of parts until the whole summary is written.
        """
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        deadline = self.now() + limit_s
        return SummaryCalls(self, asyncio.get_running_loop(), deadline, parts)

    def ahead(self, parts: PartStore) -> "SummaryCalls":
        """Return the calls for a summary written ahead of need, with a longer limit."""
        deadline = self.now() + PATIENCE * self.timeout_s
        return SummaryCalls(self, asyncio.get_running_loop(), deadline, parts)


def named(model: ChatModel) -> str:
    """Return the name shared by all keys of a model."""
    return f"{model.provider}/{model.name}"


class SummaryCalls:
    """`agent.context_engine.Summarise` and `Parts` for one compaction.

    Attributes:
        model: Name of the model that answered last.
        spent: Billed calls in order of completion; complete once `close` has returned.
    """

    def __init__(
        self,
        summariser: Summariser,
        loop: asyncio.AbstractEventLoop,
        deadline: float,
        parts: PartStore | None = None,
    ) -> None:
        self._summariser = summariser
        self.window_of = summariser.window_of
        self._loop = loop
        self._deadline = deadline
        self._parts = parts
        self._known_parts: dict[str, str] | None = None
        self._overflows: Counter[str] = Counter()
        self._left_out: frozenset[str] = frozenset()
        self._running: concurrent.futures.Future[Completion] | None = None
        # Count the prompt only if necessary: half a megabyte takes a millisecond.
        self._pending: list[Callable[[], ModelCall]] = []
        self._closed = False
        self.model: str | None = None
        self.failure: SummaryFailed | None = None
        self._newest: ModelCall | None = None
        self._cut: list[tuple[int, int, float | None]] = []
        self.spent: list[ModelCall] = []

    @property
    def left_s(self) -> float:
        """Seconds left of the time limit; never negative."""
        return max(0.0, self._deadline - self._summariser.now())

    @property
    def window_tokens(self) -> int:
        """The window of the model to be asked next, or the largest one if none is usable."""
        widest = max(map(self.window_of, self._summariser.models), default=0)
        return next(map(self.window_of, self._usable()), widest)

    @property
    def has_parts(self) -> bool:
        """Whether summaries of parts are stored; they are useless once the whole is written."""
        return bool(self._known_parts)

    def find(self, key: str) -> str | None:
        """Return the stored summary of a part, from this or another process; blocks."""
        if self._parts is None:
            return None
        if self._known_parts is None:
            self._known_parts = dict(self._in_loop(self._parts.load()))
        return self._known_parts.get(key)

    def keep(self, key: str, text: str) -> None:
        """Store the summary of a part and book its calls; blocks until done."""
        if self._parts is None:
            return
        self._known_parts = {**(self._known_parts or {}), key: text}
        spent = [*self.spent]
        self._in_loop(self._parts.keep(key, text, spent))
        del self.spent[: len(spent)]

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _usable(self) -> list[ChatModel]:
        return self._summariser.usable(self._left_out)

    def __call__(self, prompt: str, max_tokens: int) -> str:
        """Return the model's text. Blocks, so never call it in the event loop's thread."""
        message = user_message(self._summariser.redact(prompt))
        request = ModelRequest([message], max_output_tokens=max_tokens)
        models = self._usable()
        window = self.window_of(models[0]) if models else 0
        question = _Question(self, request, window, len(models))
        try:
            return self._summariser.redact(self._answer(question, models))
        except SummaryOverflow:
            # Not a failure yet: the caller retries in smaller parts.
            raise
        except SummaryFailed as exc:
            self.failure = exc
            raise

    def close(self) -> None:
        """Cancel a running call and refuse further ones."""
        self._closed = True
        self._give_up()
        cut, self._cut = self._cut, []
        if cut:
            tokens, kept, costs = zip(*cut, strict=True)
            log.warning(
                "summary_too_long",
                model=self.model,
                answers=len(cut),
                tokens=sum(tokens),
                kept_tokens=sum(kept),
                cost_usd=None if None in costs else round(sum(costs), 6),
            )

    def note_cut(self, tokens: int, kept_tokens: int) -> None:
        """Record how much of the newest answer was used, for `close` to log."""
        newest = self._newest
        self._cut.append((tokens, kept_tokens, newest.cost_usd if newest else None))

    def _answer(self, question: "_Question", models: Sequence[ChatModel]) -> str:
        left_s = min(self.left_s, self._summariser.timeout_s)
        if left_s <= 0 or self._closed:
            raise SummaryFailed("the time for summaries is used up", TRANSIENT_COOLDOWN_S)
        if not models:
            raise SummaryFailed(NO_WINDOW, NO_PROVIDER_COOLDOWN_S)
        policy = replace(RETRIES, retry_for_s=min(RETRIES.retry_for_s, left_s))
        rests, retries = self._summariser.rests, self._summariser.retries
        recovered = complete_with_recovery(question, models, rests, policy, retries)
        self._running = asyncio.run_coroutine_threadsafe(recovered, self._loop)
        if self._closed:
            # Closed since the check above: `close` may have missed this call.
            self._give_up()
        try:
            completion = self._summariser.wait(self._running, left_s)
        except (TimeoutError, concurrent.futures.CancelledError) as exc:
            self._give_up()
            raise SummaryFailed("the summary took too long", TRANSIENT_COOLDOWN_S) from exc
        except ModelError as exc:
            raise _failed(exc) from exc
        if completion.stop_reason == "length":
            self.note_cut(question.request.max_output_tokens, 0)
        return _answer_text(completion)

    async def made(self, question: "_Question", model: ChatModel) -> Completion:
        """Make one call and record its cost; runs in the event loop."""
        request = question.request

        def expected() -> Usage:
            return Usage(input_tokens=estimate_messages(request.messages, model.name))

        # Recorded before sending: a cancelled call is billed for its input.
        self._pending.append(lambda: lost_call(model, expected()))
        believed = self.window_of(model)
        try:
            completion = await traced_call(model, request, Unwatched(), "summary")
        except ModelError as exc:
            self._end(failed_call(model, exc, expected()))
            exc.args = (self._summariser.redact(str(exc)),)
            if isinstance(exc, ContextOverflow):
                sent = expected().prompt_tokens + request.max_output_tokens
                raise self._overflown(model, believed, exc.window_tokens, sent) from exc
            raise
        self._newest = replace(call_of(model, request, completion), purpose="summary")
        self._end(self._newest)
        self.model = completion.model or model.name
        return completion

    def _overflown(
        self, model: ChatModel, believed: int, told_tokens: int | None, sent_tokens: int
    ) -> SummaryFailed:
        """Record a window smaller than assumed; return the exception to raise."""
        name = named(model)
        if told_tokens is not None and told_tokens < believed:
            window = told_tokens
        elif told_tokens is not None:
            window = int(believed * SCALE_SHARE)
        else:
            window = int(min(believed, sent_tokens) * OVERFLOW_SHARE)
        self._summariser.learn(model, window)
        self._overflows[name] += 1
        if self._overflows[name] >= MOST_OVERFLOWS:
            self._left_out |= {name}
        if not self._usable():
            return SummaryFailed(NO_WINDOW, NO_PROVIDER_COOLDOWN_S)
        return SummaryOverflow(self.window_tokens)

    def _end(self, call: ModelCall | None) -> None:
        """Record a call's cost, unless it was already recorded on cancellation."""
        if self._pending and call is not None:
            self.spent.append(call)
        self._pending.clear()

    def _give_up(self) -> None:
        """Cancel the running call and record its cost: the provider bills the input."""
        if self._running is not None:
            self._running.cancel()
        # Two threads may get here; only one of them finds the call.
        with suppress(IndexError):
            self.spent.append(self._pending.pop()())


@dataclass(slots=True)
class _Question:
    """`agent.models.recovery.Attempt`: one prompt for several models, sized for one window."""

    calls: SummaryCalls
    request: ModelRequest
    window_tokens: int
    models: int
    tries: int = 0

    async def make(self, model: ChatModel) -> Completion:
        """Ask this model if the prompt fits its window."""
        window = self.calls.window_of(model)
        if window < self.window_tokens:
            size = estimate_tokens(text_of(self.request.messages[0]))
            if size + self.request.max_output_tokens > window:
                raise SummaryOverflow(window)
        self.tries += 1
        try:
            return await self.calls.made(self, model)
        except ModelError as exc:
            # A single model would be asked until the retry time is over.
            if self.tries >= TRIES_PER_MODEL * self.models:
                raise _failed(exc) from exc
            raise

    async def shrink(self, _model: ChatModel, *, suspected: bool = False) -> bool:  # noqa: ARG002
        """Return False: the caller splits a prompt that is too large."""
        return False

    async def repair(self) -> bool:
        """Return False: the prompt contains no thoughts."""
        return False

    async def on_trouble(self, failure: ModelError) -> None:
        """Report nothing: the extractor can replace the model."""


def _answer_text(completion: Completion) -> str:
    if completion.stop_reason != "stop":
        # A model that exceeds its limit will do so again a minute later.
        cooldown_s = NO_PROVIDER_COOLDOWN_S if completion.stop_reason == "length" else 60
        raise SummaryFailed(f"the summary ended with {completion.stop_reason!r}", cooldown_s)
    text = text_of(completion.message)
    if not text.strip():
        raise SummaryFailed("the summary is empty")
    return text


def _failed(failure: ModelError) -> SummaryFailed:
    lasting = isinstance(failure, _NO_PROVIDER)
    cooldown_s = NO_PROVIDER_COOLDOWN_S if lasting else TRANSIENT_COOLDOWN_S
    if isinstance(failure, RateLimited) and failure.retry_after_s:
        cooldown_s = max(cooldown_s, min(failure.retry_after_s, NO_PROVIDER_COOLDOWN_S))
    return SummaryFailed(f"{type(failure).__name__}: {failure}", cooldown_s)
