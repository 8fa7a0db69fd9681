"""Asks the summary model, from the threads in which engines run.

One `SummaryCalls` serves one compaction: all its calls share one time limit, after which the
extractor takes over.
"""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

TRANSIENT_COOLDOWN_S = 60.0
NO_PROVIDER_COOLDOWN_S = 600.0
"""How long the loop does not ask again. Source: CONTEXT.md §3."""

_TRY_NEXT = (ModelNotFound, ModelUnreachable, CredentialsRefused)
_NO_PROVIDER = (ModelNotFound, CredentialsRefused)


@dataclass(frozen=True, slots=True)
class Summariser:
    """The models that write summaries, in order of preference, the main model last.

    Attributes:
        timeout_s: For all calls of one compaction together.
        redact: Masks configured secrets in what is sent and what comes back.
    """

    models: Sequence[ChatModel]
    timeout_s: float
    redact: Callable[[str], str] = str

    @property
    def window_tokens(self) -> int:
        """The window that every summary request has to fit into."""
        return min(model.context_length for model in self.models)

    def calls(self, timeout_s: float | None = None) -> "SummaryCalls":
        """Return what one compaction may ask with; must be called in the event loop.

        Args:
            timeout_s: For all calls together; None for the configured limit.
        """
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        return SummaryCalls(self, asyncio.get_running_loop(), time.monotonic() + limit_s)


class SummaryCalls:
    """`agent.context_engine.Summarise` for one compaction.

    Attributes:
        model: Name of what answered last; None until then.
        failure: What ended the last call that failed; None while all went well.
    """

    def __init__(
        self, summariser: Summariser, loop: asyncio.AbstractEventLoop, deadline: float
    ) -> None:
        self._summariser = summariser
        self._loop = loop
        self._deadline = deadline
        self._running: concurrent.futures.Future[Completion] | None = None
        self._closed = False
        self.model: str | None = None
        self.failure: SummaryFailed | None = None

    def __call__(self, prompt: str, max_tokens: int) -> str:
        """Return the model's text; blocks the calling thread, which is not the event loop's.

        Raises:
            SummaryFailed: No model answered in time, or the answer is cut, empty or refused.
        """
        try:
            redact = self._summariser.redact
            return redact(self._first_answer(redact(prompt), max_tokens))
        except SummaryFailed as exc:
            self.failure = exc
            raise

    def close(self) -> None:
        """Give up a call that is under way, and refuse further ones; the turn has ended."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()

    def _first_answer(self, prompt: str, max_tokens: int) -> str:
        failure: ModelError | None = None
        for model in self._summariser.models:
            try:
                return self._answer(model, prompt, max_tokens)
            except _TRY_NEXT as exc:
                failure = exc
            except ModelError as exc:
                raise _failed(exc) from exc
        raise _failed(failure or ModelNotFound("no summary model is configured")) from failure

    def _answer(self, model: ChatModel, prompt: str, max_tokens: int) -> str:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0 or self._closed:
            raise SummaryFailed("the time for summaries is used up", TRANSIENT_COOLDOWN_S)
        request = ModelRequest([user_message(prompt)], max_output_tokens=max_tokens)
        self._running = asyncio.run_coroutine_threadsafe(
            model.complete(request, _Silent()), self._loop
        )
        if self._closed:
            # Closed since it was looked at: `close` may not have seen this call.
            self._running.cancel()
        try:
            completion = self._running.result(left_s)
        except (TimeoutError, concurrent.futures.CancelledError) as exc:
            self._running.cancel()
            raise SummaryFailed("the summary took too long", TRANSIENT_COOLDOWN_S) from exc
        self.model = completion.model or model.name
        return _text(completion)


class _Silent:
    """Shows nothing: nobody watches a summary grow."""

    def push(self, delta: str) -> None:
        """Drop the text."""

    def restart(self) -> None:
        """Nothing to forget."""


def _text(completion: Completion) -> str:
    if completion.stop_reason != "stop":
        raise SummaryFailed(f"the summary ended with {completion.stop_reason!r}")
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
