"""What happens when a model call fails: wait, try again, try the next model, give up.

The one retry policy of Parley (step 5 of the path); the SDKs' own retries are off. Table:
CONTEXT.md §6.
"""

import asyncio
import inspect
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from agent.errors import (
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.models.base import ChatModel, Completion, ModelRequest, TextSink

    OnTrouble = Callable[[ModelError], Awaitable[None] | None]

log = structlog.get_logger()

_TRANSIENT = (RateLimited, ModelUnreachable)
_UNUSABLE = (CredentialsRefused, ModelNotFound)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to keep trying.

    Attributes:
        retry_for_s: No wait goes beyond this; models whose turn it was not yet are still called.
        failures_per_model: Transient failures in a row before the next model has its turn.
        backoff_s: Upper bounds of the first, second, … wait; a wait is drawn from 0 to its bound
            (full jitter). The last one repeats.
        max_wait_s: Most that a provider's retry-after is followed.
    """

    retry_for_s: float = 120
    failures_per_model: int = 3
    backoff_s: tuple[float, ...] = (1, 2, 4, 8, 16, 30)
    max_wait_s: float = 60


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock (seconds), sleep and dice of the policy; tests bring their own."""

    now: "Callable[[], float]" = time.monotonic
    sleep: "Callable[[float], Awaitable[None]]" = asyncio.sleep
    draw: "Callable[[float, float], float]" = random.uniform  # noqa: S311


_REAL_TIME = Timing()


async def complete_with_recovery(
    models: "Sequence[ChatModel]",
    request: "ModelRequest",
    sink: "TextSink",
    policy: RetryPolicy,
    on_trouble: "OnTrouble",
    timing: Timing = _REAL_TIME,
) -> "Completion":
    """Call the models until one answers, the sink restarted before every further attempt.

    Args:
        models: In order of preference; the others are fallbacks.
        request: Sent unchanged to each model.
        sink: Where the growing answer is shown.
        policy: How long to keep trying.
        on_trouble: Told of each failed attempt that another may follow; may be async.
        timing: Clock, sleep and dice.

    Raises:
        ModelError: The last failure, once nothing is left to try. ContextOverflow, ModelRefused
            and BadRequest come at once: no other attempt would end differently.
    """
    deadline = timing.now() + policy.retry_for_s
    recovery = _Recovery(request, sink, policy, on_trouble, timing, deadline)
    return await recovery.run(models)


@dataclass(slots=True)
class _Recovery:
    """The attempts at one request. A round goes once along the line of models."""

    request: "ModelRequest"
    sink: "TextSink"
    policy: RetryPolicy
    on_trouble: "OnTrouble"
    timing: Timing
    deadline: float
    attempts: int = 0
    pauses: int = 0

    async def run(self, models: "Sequence[ChatModel]") -> "Completion":
        """Go round after round until there is an answer, no usable model or no time."""
        line = list(models)
        failure: ModelError = ModelNotFound("no model is configured")
        while True:
            for model in tuple(line):
                outcome = await self._try_model(model)
                if not isinstance(outcome, ModelError):
                    return outcome
                failure = outcome
                if not isinstance(outcome, _TRANSIENT):
                    line.remove(model)
            if not line or not await self._pause(failure):
                raise failure

    async def _try_model(self, model: "ChatModel") -> "Completion | ModelError":
        """Call one model until it answers, is of no use, or it is another one's turn."""
        outcome = await self._attempt(model)
        for _ in range(self.policy.failures_per_model - 1):
            if not isinstance(outcome, _TRANSIENT) or not await self._pause(outcome):
                break
            outcome = await self._attempt(model)
        return outcome

    async def _attempt(self, model: "ChatModel") -> "Completion | ModelError":
        if self.attempts:
            self.sink.restart()
        self.attempts += 1
        try:
            return await model.complete(self.request, self.sink)
        except (*_TRANSIENT, *_UNUSABLE) as exc:
            self._note(model, exc)
            told = self.on_trouble(exc)
            if inspect.isawaitable(told):
                await told
            return exc

    async def _pause(self, failure: ModelError) -> bool:
        """Wait before another attempt; return False at once if it would end after the deadline."""
        wait_s = self._wait_s(failure)
        if self.timing.now() + wait_s > self.deadline:
            return False
        self.pauses += 1
        await self.timing.sleep(wait_s)
        return True

    def _wait_s(self, failure: ModelError) -> float:
        asked = failure.retry_after_s if isinstance(failure, RateLimited) else None
        if asked:
            return min(asked, self.policy.max_wait_s)
        bounds = self.policy.backoff_s
        return self.timing.draw(0, bounds[min(self.pauses, len(bounds) - 1)])

    def _note(self, model: "ChatModel", failure: ModelError) -> None:
        log.warning(
            "model_call_failed",
            provider=model.provider,
            model=model.name,
            attempt=self.attempts,
            error=type(failure).__name__,
            reason=str(failure),
        )
