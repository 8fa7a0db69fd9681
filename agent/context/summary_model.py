"""Asks the summary model, from the threads in which engines run.

One `SummaryCalls` serves one compaction: all its calls share one time limit, after which the
extractor takes over. What they have cost stands in `SummaryCalls.spent`.
"""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from agent.errors import (
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
    SummaryFailed,
)
from agent.messages import text_of, user_message
from agent.models.base import ChatModel, Completion, ModelRequest
from agent.money.costs import call_of, failed_call, lost_call
from agent.ports import ModelCall
from agent.tokens.estimate import estimate_messages, estimate_tools
from agent.usage import Usage

TRANSIENT_COOLDOWN_S = 60.0
NO_PROVIDER_COOLDOWN_S = 600.0
"""How long the loop does not ask again."""

_TRY_NEXT = (ModelNotFound, ModelUnreachable, CredentialsRefused)
_NO_PROVIDER = (ModelNotFound, CredentialsRefused)


@dataclass(frozen=True, slots=True)
class SummaryTiming:
    """Clock (seconds), and how a thread waits so many seconds for a call; tests bring their own.

    `wait` raises TimeoutError when they are over.
    """

    now: Callable[[], float] = time.monotonic
    wait: Callable[["concurrent.futures.Future[Completion]", float], Completion] = (
        concurrent.futures.Future.result
    )


@dataclass(frozen=True, slots=True)
class Summariser:
    """The models that write summaries, in order of preference, the main model last.

    Attributes:
        timeout_s: For all calls of one compaction together.
        redact: Masks configured secrets in what is sent and what comes back.
        timing: By which the limit is kept.
    """

    models: Sequence[ChatModel]
    timeout_s: float
    redact: Callable[[str], str] = str
    timing: SummaryTiming = field(default_factory=SummaryTiming)

    @property
    def window_tokens(self) -> int:
        """The window that every summary request has to fit into; 0 without any model."""
        # The smallest: a request may go to each of them in turn.
        return min((model.context_length for model in self.models), default=0)

    def calls(self, timeout_s: float | None = None) -> "SummaryCalls":
        """Return what one compaction may ask with; must be called in the event loop.

        Args:
            timeout_s: For all calls together; None for the configured limit.
        """
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        return SummaryCalls(self, asyncio.get_running_loop(), self.timing.now() + limit_s)


@dataclass(frozen=True, slots=True)
class WarmPrefix:
    """The last request of a conversation, which the provider's cache still holds.

    Attributes:
        model: Who got it: the main model.
        request: As it was sent, marks of the cache included.
        tokens: How many of its tokens the cache should hold.
        ttl: How long its entries live, "5m" or "1h".
        newer: How many messages the view has by now that are not in the request.
    """

    model: ChatModel
    request: ModelRequest
    tokens: int
    ttl: str
    newer: int = 0


class SummaryCalls:
    """`agent.context_engine.Summarise` for one compaction.

    Attributes:
        window_tokens: The window that every prompt has to fit into.
        model: Name of what answered last; None until then.
        failure: What ended the last call that failed; None while all went well.
        spent: The calls that are billed, in the order in which they ended; complete once `close`
            has returned.
    """

    def __init__(
        self, summariser: Summariser, loop: asyncio.AbstractEventLoop, deadline: float
    ) -> None:
        self._summariser = summariser
        self._loop = loop
        self._deadline = deadline
        self._running: concurrent.futures.Future[Completion] | None = None
        # Its prompt is counted only if it must be: half a megabyte takes a millisecond.
        self._pending: list[Callable[[], ModelCall]] = []
        self._closed = False
        self.window_tokens = summariser.window_tokens
        self.model: str | None = None
        self.failure: SummaryFailed | None = None
        self.spent: list[ModelCall] = []

    @property
    def left_s(self) -> float:
        """How much of the time limit is left; 0 when it is used up."""
        return max(0.0, self._deadline - self._summariser.timing.now())

    def __call__(self, prompt: str, max_tokens: int) -> str:
        """Return the model's text; blocks the calling thread, which is not the event loop's.

        Raises:
            SummaryFailed: No model answered in time, or the answer is cut, empty or refused.
        """
        message = user_message(self._summariser.redact(prompt))
        request = ModelRequest([message], max_output_tokens=max_tokens)
        return self._text(self._summariser.models, request, 0)

    def behind(self, warm: WarmPrefix, prompt: str, max_tokens: int) -> str:
        """Return the main model's text to a prompt at the end of a request that it knows.

        Nothing else is changed in the request, and tools may be called as ever: all that would
        invalidate the cache. Blocks like `__call__`.

        Raises:
            SummaryFailed: As above, or the model calls a tool.
        """
        # At the very end: all before it must be the bytes that the cache holds.
        message = user_message(self._summariser.redact(prompt), synthetic=True)
        messages = [*warm.request.messages, message]
        request = replace(warm.request, messages=messages, max_output_tokens=max_tokens)
        return self._text([warm.model], request, warm.tokens)

    def close(self) -> None:
        """Give up a call that is under way, and refuse further ones; the turn has ended."""
        self._closed = True
        self._give_up()

    def _text(self, models: Sequence[ChatModel], request: ModelRequest, warm_tokens: int) -> str:
        try:
            return self._summariser.redact(self._first_answer(models, request, warm_tokens))
        except SummaryFailed as exc:
            self.failure = exc
            raise

    def _first_answer(
        self, models: Sequence[ChatModel], request: ModelRequest, warm_tokens: int
    ) -> str:
        failure: ModelError | None = None
        for model in models:
            try:
                return self._answer(model, request, warm_tokens)
            except _TRY_NEXT as exc:
                failure = exc
            except ModelError as exc:
                raise _failed(exc) from exc
        raise _failed(failure or ModelNotFound("no summary model is configured")) from failure

    def _answer(self, model: ChatModel, request: ModelRequest, warm_tokens: int) -> str:
        expected = partial(_expected, model, request, warm_tokens)
        left_s = self.left_s
        if left_s <= 0 or self._closed:
            raise SummaryFailed("the time for summaries is used up", TRANSIENT_COOLDOWN_S)
        # Noted before it is sent: a call that is given up is billed for what was read.
        self._pending.append(lambda: lost_call(model, expected()))
        self._running = asyncio.run_coroutine_threadsafe(
            self._completion(model, request, expected), self._loop
        )
        if self._closed:
            # Closed since it was looked at: `close` may not have seen this call.
            self._give_up()
        try:
            completion = self._summariser.timing.wait(self._running, left_s)
        except (TimeoutError, concurrent.futures.CancelledError) as exc:
            self._give_up()
            raise SummaryFailed("the summary took too long", TRANSIENT_COOLDOWN_S) from exc
        self.model = completion.model or model.name
        return _answer_text(completion)

    async def _completion(
        self, model: ChatModel, request: ModelRequest, expected: Callable[[], Usage]
    ) -> Completion:
        """Make one call and note what it has cost; in the event loop, as `close` is."""
        try:
            completion = await model.complete(request, _Silent())
        except ModelError as exc:
            self._end(failed_call(model, exc, expected()))
            exc.args = (self._summariser.redact(str(exc)),)
            raise
        self._end(replace(call_of(model, request, completion), purpose="summary"))
        return completion

    def _end(self, call: ModelCall | None) -> None:
        """Note what a call has cost, unless it was given up and noted then."""
        if self._pending and call is not None:
            self.spent.append(call)
        self._pending.clear()

    def _give_up(self) -> None:
        """End the call that is under way: the provider bills what it has read by now."""
        if self._running is not None:
            self._running.cancel()
        # Of two threads that come here at a time one finds it.
        with suppress(IndexError):
            self.spent.append(self._pending.pop()())


class _Silent:
    """Shows nothing: nobody watches a summary grow."""

    def push(self, delta: str) -> None:
        """Drop the text."""

    def restart(self) -> None:
        """Nothing to forget."""


def _answer_text(completion: Completion) -> str:
    if completion.stop_reason != "stop":
        raise SummaryFailed(f"the summary ended with {completion.stop_reason!r}")
    text = text_of(completion.message)
    if not text.strip():
        raise SummaryFailed("the summary is empty")
    return text


def _expected(model: ChatModel, request: ModelRequest, warm_tokens: int) -> Usage:
    """Return what a request will be billed at least, by Parley's own count."""
    tokens = estimate_messages(request.messages, model.name)
    tokens += estimate_tools(request.tools, model.name)
    read = min(tokens, warm_tokens)
    return Usage(input_tokens=tokens - read, cache_read_tokens=read)


def _failed(failure: ModelError) -> SummaryFailed:
    lasting = isinstance(failure, _NO_PROVIDER)
    cooldown_s = NO_PROVIDER_COOLDOWN_S if lasting else TRANSIENT_COOLDOWN_S
    if isinstance(failure, RateLimited) and failure.retry_after_s:
        cooldown_s = max(cooldown_s, min(failure.retry_after_s, NO_PROVIDER_COOLDOWN_S))
    return SummaryFailed(f"{type(failure).__name__}: {failure}", cooldown_s)
