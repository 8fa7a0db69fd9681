"""Recovery from a failed model call, outside the loop.

This is Parley's only retry policy; the SDKs' retries are disabled. First the same model gets a
changed request (`choose_remedy`); otherwise Parley waits or tries another model (`retreat`).
docs/models.md, "When a call fails", has a table of both.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

import structlog

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
    SecretUnreadable,
)
from agent.models.base import ChatModel, Renewable

log = structlog.get_logger()

Clock = Callable[[], float]
"""Monotonic clock in seconds."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_OF_THINKING = ("thinking", "signature", "reasoning")
"""Words of refusals that the repair may resolve: it removes all thoughts of the model."""
_OF_THE_MODEL = (RateLimited, ModelUnreachable, ModelNotFound, CredentialsRefused)
"""Failures that any other request to the model would meet as well."""
TRANSIENT_REST_S = 30.0
"""Seconds for which later turns start with another model after a transient failure."""
UNUSABLE_REST_S = 300.0
"""The same after a failure that does not pass by itself: a refused key, an unknown model."""
LONGEST_REST_S = 600.0
"""Longest rest in seconds, even if a provider's retry-after is longer."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry.

    Attributes:
        retry_for_s: No wait extends beyond this; models not yet tried are still called.
        failures_per_model: Consecutive transient failures before the next model is tried.
        backoff_s: Upper bounds of successive waits; each wait is drawn from 0 to its bound (full
            jitter). The last bound repeats.
        max_wait_s: Longest wait for a provider's retry-after.
    """

    retry_for_s: float = 120
    failures_per_model: int = 3
    backoff_s: tuple[float, ...] = (1, 2, 4, 8, 16, 30)
    max_wait_s: float = 60


@dataclass(frozen=True, slots=True)
class RetryTiming:
    """Clock (seconds), sleep and random draw of the policy; replaced in tests."""

    now: Clock = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[float, float], float] = random.uniform  # noqa: S311


_REAL_TIME = RetryTiming()


class Attempt(Protocol[T_co]):
    """One request under recovery, which can be sent and changed."""

    async def make(self, model: ChatModel) -> T_co:
        """Send the request; raises ModelError."""

    async def shrink(self, model: ChatModel, /, *, suspected: bool = False) -> bool:
        """Make the request fit the model's window; return False if shrinking no longer helps.

        `suspected`: the size is only suspected as the cause; compress, but cut nothing else.
        """

    async def repair(self) -> bool:
        """Remove fields that a provider may call malformed; return False if there are none."""

    async def on_trouble(self, failure: ModelError) -> None:
        """Report the wait that is about to begin."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A model that has not answered since its last failure.

    Attributes:
        for_s: Seconds from the first failure to the newest.
        began: Time of the first failure, on the clock of `Rests`.
    """

    failure: ModelError
    times: int
    for_s: float
    began: float = 0.0


class Rests:
    """State of the models in this process: which ones fail, and which rest.

    Attributes:
        newest: The last failure of any kind of each model that has not answered since, by label.
        answered: Labels of models whose newest call was answered.
        accepted: Labels of models whose key was last accepted, with or without an answer.
    """

    def __init__(self, now: Clock = time.monotonic) -> None:
        self._now = now
        self.newest: dict[str, ModelError] = {}
        self._until: dict[int, float] = {}
        self.failing: dict[str, Failing] = {}
        self.answered: set[str] = set()
        self.accepted: set[str] = set()

    def note_failure(self, label: str, failure: ModelError) -> None:
        """Record a failure; count it if the model is to blame."""
        self.newest[label] = failure
        if not isinstance(failure, _OF_THE_MODEL):
            return
        now = self._now()
        before = self.failing.get(label, Failing(failure, 0, 0.0, now))
        self.failing[label] = Failing(failure, before.times + 1, now - before.began, before.began)
        self.answered.discard(label)
        if isinstance(failure, CredentialsRefused):
            self.accepted.discard(label)

    def note_accepted(self, label: str) -> None:
        """Record that a model's key was accepted; the model may still fail."""
        self.accepted.add(label)
        failing = self.failing.get(label)
        if failing is not None and type(failing.failure) is CredentialsRefused:
            del self.failing[label]

    def note_answer(self, model: ChatModel) -> None:
        """Record that a model answered: it neither fails nor rests."""
        self.clear(model)
        self.failing.pop(model.label, None)
        self.newest.pop(model.label, None)
        self.answered.add(model.label)
        self.accepted.add(model.label)

    def rest(self, model: ChatModel, seconds: float) -> None:
        """Let later turns start with another model for `seconds`."""
        # By identity: two keys of one model share its name.
        self._until[id(model)] = self._now() + seconds

    def clear(self, model: ChatModel) -> None:
        """End a model's rest."""
        self._until.pop(id(model), None)

    def left_s(self, model: ChatModel) -> float:
        """Return the remaining rest of a model in seconds, or 0."""
        return max(0.0, self._until.get(id(model), 0.0) - self._now())

    def in_order(
        self, models: Sequence[ChatModel], preferred: ChatModel | None = None
    ) -> list[ChatModel]:
        """Return the models in the order to try them; resting ones come last.

        `preferred` answered last in this turn and has the prompt in its cache.
        """
        return sorted(models, key=lambda it: (self.left_s(it) > 0, it is not preferred))


@dataclass(frozen=True, slots=True)
class Recovery:
    """The retry policy and the models that rest after a failure."""

    policy: RetryPolicy
    rests: Rests = field(default_factory=Rests)


@dataclass(frozen=True, slots=True)
class NextModel:
    """Leave this model, `for_good` within this request; later turns avoid it for `rest_s`."""

    rest_s: float
    for_good: bool = False


Remedy = Literal["compress", "repair", "suspect_size", "renew_key"]
"""Changes after which the same model may answer.

compress: make the request fit the window; suspect_size: compress it, in case its size was the
reason; repair: remove the refused fields; renew_key: reread the model's key.
"""


def choose_remedy(failure: ModelError, untried: Collection[Remedy]) -> Remedy | None:
    """Return a remedy for the same model; `untried` are the remedies that help at most once."""
    found: Remedy | None = None
    match failure:
        case ContextOverflow():
            return "compress"
        case BadRequest() if any(word in str(failure).lower() for word in _OF_THINKING):
            found = "repair"
        case BadRequest() if failure.is_unexplained:
            found = "suspect_size"
        # A new key belongs to the same account.
        case CredentialsRefused() if not isinstance(failure, CreditUsedUp):
            found = "renew_key"
    return found if found in untried else None


def retreat(
    failure: ModelError, policy: RetryPolicy, failures: int, *, others: bool, another_key: bool
) -> NextModel | Literal["retry", "give_up"]:
    """Decide how to continue when no remedy is left.

    Args:
        failures: Consecutive failures of this model, including this one.
        others: Whether another candidate may still work.
        another_key: Whether one of them is the same model with another key.
    """
    asked_s = failure.retry_after_s if isinstance(failure, RateLimited) else None
    passing = NextModel(min(asked_s or TRANSIENT_REST_S, LONGEST_REST_S))
    match failure:
        case CredentialsRefused() | ModelNotFound():
            return NextModel(UNUSABLE_REST_S, for_good=True)
        case RateLimited() if another_key:
            return passing
        case RateLimited() | ModelUnreachable():
            # Without another model, waiting up to the cap beats giving up.
            is_over = failures >= policy.failures_per_model or (asked_s or 0) > policy.max_wait_s
            return passing if others and is_over else "retry"
        case BadRequest() if others:
            # Another provider may accept the form that this one refuses.
            return NextModel(0.0, for_good=True)
    return "give_up"


Action = Remedy | NextModel | Literal["retry", "give_up"]


async def complete_with_recovery(
    attempt: Attempt[T],
    models: Sequence[ChatModel],
    rests: Rests,
    policy: RetryPolicy,
    timing: RetryTiming = _REAL_TIME,
) -> T:
    """Try the models until one answers; return the result of that attempt.

    `models` are in order; each key of one model counts as a separate model. Raises the last
    ModelError if nothing is left to try.
    """
    return await _Attempts(attempt, list(models), rests, policy, timing).run()


@dataclass(slots=True)
class _Attempts(Generic[T]):
    """The attempts at one request. A round tries each model in order once."""

    attempt: Attempt[T]
    line: list[ChatModel]
    rests: Rests
    policy: RetryPolicy
    timing: RetryTiming
    deadline: float = field(init=False)
    attempts: int = 0
    pauses: int = 0
    untried: set[Remedy] = field(default_factory=lambda: {"repair", "suspect_size"})

    async def run(self) -> T:
        """Make rounds until a model answers, none is usable or the time is up."""
        self.deadline = self.timing.now() + self.policy.retry_for_s
        failure: ModelError = ModelNotFound("no model is configured")
        while self.line:
            for model in tuple(self.line):
                if model not in self.line:
                    continue
                outcome = await self._try(model)
                if not isinstance(outcome, ModelError):
                    return outcome
                failure = outcome
            if not self.line or not await self._pause(failure):
                break
        raise failure

    async def _try(self, model: ChatModel) -> T | ModelError:
        """Call one model until it answers or must yield to another."""
        failures = 0
        if isinstance(model, Renewable):
            self.untried.add("renew_key")
        while True:
            try:
                self.attempts += 1
                answer = await self.attempt.make(model)
            except ModelError as exc:
                failures += 1
                failure = exc
            else:
                self.rests.note_answer(model)
                return answer
            action = await self._decide(failure, model, failures)
            self.rests.note_failure(model.label, failure)
            log.warning(
                "model_call_failed",
                provider=model.provider,
                model=model.label,
                attempt=self.attempts,
                error=type(failure).__name__,
                reason=str(failure),
                action=action if isinstance(action, str) else "next_model",
            )
            if not await self._carry_out(action, model, failure):
                return failure

    async def _decide(self, failure: ModelError, model: ChatModel, failures: int) -> Action:
        """Return the first remedy that changes anything, otherwise a retreat."""
        while found := choose_remedy(failure, self.untried):
            if found == "compress" or await self._helps(found, model):
                return found
        others = [other for other in self.line if other is not model]
        another_key = (model.provider, model.name) in [(it.provider, it.name) for it in others]
        return retreat(failure, self.policy, failures, others=bool(others), another_key=another_key)

    async def _helps(self, found: Remedy, model: ChatModel) -> bool:
        self.untried.remove(found)
        if found == "repair":
            return await self.attempt.repair()
        if found == "suspect_size":
            return await self.attempt.shrink(model, suspected=True)
        try:
            return isinstance(model, Renewable) and await asyncio.to_thread(model.renew_key)
        except (SecretUnreadable, CredentialsRefused) as exc:
            log.warning("key_not_renewed", reason=str(exc))
            return False

    async def _carry_out(self, action: Action, model: ChatModel, failure: ModelError) -> bool:
        """Apply a decision; return whether to call the same model again. May raise `failure`."""
        match action:
            case "retry":
                return await self._pause(failure)
            case NextModel(rest_s, for_good):
                # The only model never rests.
                if rest_s and len(self.line) > 1:
                    self.rests.rest(model, rest_s)
                if for_good:
                    self.line.remove(model)
                return False
            case "repair" | "renew_key" | "suspect_size":
                return True
            case "compress" if await self.attempt.shrink(model):
                return True
            case "compress":
                self.line = [it for it in self.line if it.context_length > model.context_length]
                if self.line:
                    return False
        raise failure

    async def _pause(self, failure: ModelError) -> bool:
        """Wait before another attempt; return False at once if the wait would pass the deadline."""
        bounds = self.policy.backoff_s
        # Full jitter: conversations that failed together should not retry together.
        backoff_s = self.timing.draw(0, bounds[min(self.pauses, len(bounds) - 1)])
        asked_s = failure.retry_after_s if isinstance(failure, RateLimited) else None
        wait_s = min(max(asked_s or 0.0, backoff_s), self.policy.max_wait_s)
        if self.timing.now() + wait_s > self.deadline:
            return False
        await self.attempt.on_trouble(failure)
        self.pauses += 1
        await self.timing.sleep(wait_s)
        return True
