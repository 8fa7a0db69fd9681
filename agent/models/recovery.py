"""What happens when a model call fails: strategies in order, outside of the loop.

The one retry policy of Parley; the SDKs' own retries are off. Each strategy looks at a failure and
says what to do, or leaves it to the next one. docs/models.md, "When a call fails", has the table
that they make up.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

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

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_OF_THINKING = ("thinking", "signature", "reasoning")
"""A refusal that holds one of these words may be met by the repair pass, which leaves out all that
the model thought."""
_OF_THE_MODEL = (RateLimited, ModelUnreachable, ModelNotFound, CredentialsRefused)
"""Failures that another request would meet as well."""
TRANSIENT_REST_S = 30.0
"""How long later turns begin with another model, after a failure that may pass."""
UNUSABLE_REST_S = 300.0
"""The same after one that does not pass by itself: a refused key, an unknown model."""
LONGEST_REST_S = 600.0
"""Longest rest that a provider's retry-after leads to."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to keep trying.

    Attributes:
        retry_for_s: No wait goes beyond this; models whose turn it was not yet are still called.
        failures_per_model: Transient failures in a row before the next model has its turn.
        backoff_s: Upper bounds of the first, second, … wait; a wait is drawn from 0 to its bound
            (full jitter). The last one repeats.
        max_wait_s: Most that a provider's retry-after is followed; what it asks for is never less
            than the back-off.
    """

    retry_for_s: float = 120
    failures_per_model: int = 3
    backoff_s: tuple[float, ...] = (1, 2, 4, 8, 16, 30)
    max_wait_s: float = 60


@dataclass(frozen=True, slots=True)
class RetryTiming:
    """Clock (seconds), sleep and dice of the policy; tests bring their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[float, float], float] = random.uniform  # noqa: S311


_REAL_TIME = RetryTiming()


class Attempt(Protocol[T_co]):
    """One request under recovery: it can be made, and changed so that the next attempt may do."""

    async def make(self, model: ChatModel) -> T_co:
        """Make the request as it is now; raises ModelError."""
        ...

    async def shrink(self, model: ChatModel, /) -> bool:
        """Make the request fit into this model's window; False if that cannot help any more."""
        ...

    async def suspect_size(self, model: ChatModel, /) -> bool:
        """Compress the request; return False if that is not possible."""
        ...

    async def repair(self) -> bool:
        """Leave out what a provider may call malformed; False where there is nothing of it."""
        ...

    async def on_trouble(self, failure: ModelError) -> None:
        """Take note of a wait that begins."""
        ...


@dataclass(frozen=True, slots=True)
class Failing:
    """A model whose calls have failed since it last answered.

    Attributes:
        failure: The newest one.
        for_s: From the first failure to the newest one.
        began: When the first one was, on the clock of `Rests`.
    """

    failure: ModelError
    times: int
    for_s: float
    began: float = 0.0


class Rests:
    """How models stand in this process: which fail, and which are left alone for a while.

    Attributes:
        newest: The last failure, of any kind, of each model that has not answered since, by label.
        failing: The models that fail, by label.
        answered: The labels of those whose newest call was answered.
        accepted: The labels of those whose key was taken last, answered or not.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.newest: dict[str, ModelError] = {}
        self._until: dict[int, float] = {}
        self.failing: dict[str, Failing] = {}
        self.answered: set[str] = set()
        self.accepted: set[str] = set()

    def note_failure(self, label: str, failure: ModelError) -> None:
        """Take note of a failure; it counts where it says something about the model itself."""
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
        """Take note that a model's key is taken; whether it answers is another question."""
        self.accepted.add(label)
        failing = self.failing.get(label)
        if failing is not None and type(failing.failure) is CredentialsRefused:
            del self.failing[label]

    def note_answer(self, model: ChatModel) -> None:
        """Take note that a model answered: it neither fails nor rests."""
        self.clear(model)
        self.failing.pop(model.label, None)
        self.newest.pop(model.label, None)
        self.answered.add(model.label)
        self.accepted.add(model.label)

    def rest(self, model: ChatModel, seconds: float) -> None:
        """Have later turns begin with another model for so long."""
        # By identity: two keys of one model have the same name.
        self._until[id(model)] = self._now() + seconds

    def clear(self, model: ChatModel) -> None:
        """Have a model be asked again."""
        self._until.pop(id(model), None)

    def left_s(self, model: ChatModel) -> float:
        """Return how long a model is left alone yet, in seconds; 0 where it is not."""
        return max(0.0, self._until.get(id(model), 0.0) - self._now())

    def in_order(
        self, models: Sequence[ChatModel], preferred: ChatModel | None = None
    ) -> list[ChatModel]:
        """Return the models in the order in which they are to be tried.

        First `preferred`, which answered last in this turn and has its prompt in the cache; those
        that rest come last, since nothing else may be left.
        """
        now = self._now()
        return sorted(
            models,
            key=lambda model: (self._until.get(id(model), now) > now, model is not preferred),
        )


@dataclass(frozen=True, slots=True)
class Recovery:
    """How failures are met: the policy, and which models rest after one."""

    policy: RetryPolicy
    rests: Rests = field(default_factory=Rests)


@dataclass(frozen=True, slots=True)
class Retry:
    """Call the same model again after a wait."""

    wait_s: float
    name: ClassVar[str] = "retry"


@dataclass(frozen=True, slots=True)
class NextModel:
    """Leave this model; `for_good` within this request, and for `rest_s` by later turns."""

    rest_s: float
    for_good: bool = False
    name: ClassVar[str] = "next_model"


Action = Retry | NextModel | Literal["compress", "suspect_size", "repair", "renew_key", "give_up"]
"""What is done about a failure.

compress: make what is sent fit into the window, then call the same model again; suspect_size:
compress it, if its size may be what was refused, then likewise; repair: repair it, then likewise;
renew_key: read the model's key again, then likewise if it is another one; give_up: nothing is left
to try, the failure goes to the user.
"""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a strategy decides on.

    Attributes:
        others: The candidates but this one that may still work.
        failures: Of this model in a row, this one included.
        wait_s: The next wait: the back-off, or what the provider asks for where that is longer,
            capped.
        untried: What helps once at most, and may help yet: to repair, to renew the key.
    """

    failure: ModelError
    model: ChatModel
    others: Sequence[ChatModel]
    failures: int
    wait_s: float
    policy: RetryPolicy
    untried: Collection[Action] = ()

    @property
    def asked_wait_s(self) -> float | None:
        """How long the provider asked to wait, in seconds; None if it did not."""
        return self.failure.retry_after_s if isinstance(self.failure, RateLimited) else None

    @property
    def another_key(self) -> bool:
        """Whether the same model can be reached with another key."""
        return any(_same(other, self.model) for other in self.others)


def _same(one: ChatModel, other: ChatModel) -> bool:
    """Whether two candidates are one model, with different keys."""
    return (one.provider, one.name) == (other.provider, other.name)


def compress(situation: Situation) -> Action | None:
    """Context overflow, 413: compress, retry."""
    return "compress" if isinstance(situation.failure, ContextOverflow) else None


def repair_once(situation: Situation) -> Action | None:
    """A request that is called malformed for its thinking: one repair pass, one retry."""
    if not isinstance(situation.failure, BadRequest) or "repair" not in situation.untried:
        return None
    return "repair" if _is_of_thinking(situation.failure) else None


def _is_of_thinking(failure: ModelError) -> bool:
    reason = str(failure).lower()
    return any(word in reason for word in _OF_THINKING)


def suspect_size(situation: Situation) -> Action | None:
    """A request refused for no known reason, while smaller ones were answered: compress, once."""
    failure = situation.failure
    unexplained = isinstance(failure, BadRequest) and failure.is_unexplained
    suspect = unexplained and "suspect_size" in situation.untried and not _is_of_thinking(failure)
    return "suspect_size" if suspect else None


def renew_key(situation: Situation) -> Action | None:
    """A key that is refused may have been replaced where the settings refer to it: read it once."""
    refused = isinstance(situation.failure, CredentialsRefused)
    broke = isinstance(situation.failure, CreditUsedUp)
    is_next = refused and not broke and "renew_key" in situation.untried
    return "renew_key" if is_next else None


def rotate_key(situation: Situation) -> Action | None:
    """Auth, billing or a rate limit of one key: the next key of the same model."""
    if not situation.another_key:
        return None
    if isinstance(situation.failure, CredentialsRefused):
        return NextModel(UNUSABLE_REST_S, for_good=True)
    if isinstance(situation.failure, RateLimited):
        return NextModel(_rest_s(situation))
    return None


def wait_and_retry(situation: Situation) -> Action | None:
    """Overloaded, unreachable, a cut stream: wait as asked or back off, three times in a row."""
    if not isinstance(situation.failure, RateLimited | ModelUnreachable):
        return None
    asked_s = situation.asked_wait_s
    too_long = asked_s is not None and asked_s > situation.policy.max_wait_s
    often = situation.failures >= situation.policy.failures_per_model
    # With nobody else to ask, the capped wait is better than giving up.
    if situation.others and (too_long or often):
        return NextModel(_rest_s(situation))
    return Retry(situation.wait_s)


def fall_back(situation: Situation) -> Action | None:
    """No usable key, an unknown model, a form that one provider refuses: the next model."""
    hopeless = isinstance(situation.failure, CredentialsRefused | ModelNotFound)
    if hopeless or (isinstance(situation.failure, BadRequest) and situation.others):
        return NextModel(UNUSABLE_REST_S if hopeless else 0.0, for_good=True)
    return None


STRATEGIES = (
    compress,
    repair_once,
    suspect_size,
    renew_key,
    rotate_key,
    wait_and_retry,
    fall_back,
)
"""In order; the first that knows what to do decides. What none of them knows is given up."""


def decide(situation: Situation) -> Action:
    """Return what to do about a failure."""
    actions = (strategy(situation) for strategy in STRATEGIES)
    return next((action for action in actions if action is not None), "give_up")


def _rest_s(situation: Situation) -> float:
    return min(situation.asked_wait_s or TRANSIENT_REST_S, LONGEST_REST_S)


async def complete_with_recovery(
    attempt: Attempt[T],
    models: Sequence[ChatModel],
    rests: Rests,
    policy: RetryPolicy,
    timing: RetryTiming = _REAL_TIME,
) -> T:
    """Have the models try until one answers; returns what that attempt returned.

    Args:
        attempt: The request, which is made anew for each model.
        models: In the order in which they are tried; keys of one model are models of their own.
        rests: Learns which models were given up.
        policy: How long to keep trying.
        timing: Clock, sleep and dice.

    Raises:
        ModelError: The last failure, once nothing is left to try.
    """
    attempts = _Attempts(attempt, list(models), rests, policy, timing)
    return await attempts.run()


@dataclass(slots=True)
class _Attempts(Generic[T]):
    """The attempts at one request. A round goes once along the line of models."""

    attempt: Attempt[T]
    line: list[ChatModel]
    rests: Rests
    policy: RetryPolicy
    timing: RetryTiming
    deadline: float = field(init=False)
    attempts: int = 0
    pauses: int = 0
    untried: set[Action] = field(default_factory=lambda: {"repair", "suspect_size"})

    def __post_init__(self) -> None:
        self.deadline = self.timing.now() + self.policy.retry_for_s

    async def run(self) -> T:
        """Go round after round until there is an answer, no usable model or no time."""
        failure: ModelError = ModelNotFound("no model is configured")
        while self.line:
            for model in tuple(self.line):
                if model not in self.line:
                    continue
                outcome = await self._try(model)
                if not isinstance(outcome, ModelError):
                    return outcome
                failure = outcome
            if not self.line or not await self._pause(failure, self._wait_s(failure)):
                break
        raise failure

    async def _try(self, model: ChatModel) -> T | ModelError:
        """Call one model until it answers, it is another one's turn, or all is over."""
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
            action = await self._decide(self._situation(failure, model, failures))
            self._note(model, failure, action)
            if not await self._carry_out(action, model, failure):
                return failure

    async def _decide(self, situation: Situation) -> Action:
        """Decide; where nothing is found to repair, or no other key, the next strategy decides."""
        action, model = decide(situation), situation.model
        match action:
            case "repair":
                found = await self.attempt.repair()
            case "suspect_size":
                found = await self.attempt.suspect_size(model)
            case "renew_key":
                found = isinstance(model, Renewable) and await _renewed(model)
            case _:
                return action
        self.untried.remove(action)
        return action if found else await self._decide(situation)

    def _situation(self, failure: ModelError, model: ChatModel, failures: int) -> Situation:
        others = [other for other in self.line if other is not model]
        wait_s = self._wait_s(failure)
        return Situation(failure, model, others, failures, wait_s, self.policy, self.untried)

    async def _carry_out(self, action: Action, model: ChatModel, failure: ModelError) -> bool:
        """Do what was decided; returns whether the same model is called again.

        Raises:
            ModelError: Nothing can be done about the failure.
        """
        match action:
            case Retry(wait_s):
                return await self._pause(failure, wait_s)
            case NextModel(rest_s, for_good):
                self._leave(model, rest_s, for_good=for_good)
                return False
            case "repair" | "renew_key" | "suspect_size":
                return True
            case "compress" if await self.attempt.shrink(model):
                return True
            case "compress" if self._roomier(model):
                self.line = [each for each in self.line if each in self._roomier(model)]
                return False
        raise failure

    def _roomier(self, model: ChatModel) -> list[ChatModel]:
        """Return the candidates with a larger window."""
        return [each for each in self.line if each.context_length > model.context_length]

    def _leave(self, model: ChatModel, rest_s: float, *, for_good: bool) -> None:
        # The only model is never left alone: there is nothing else to begin with.
        if rest_s and len(self.line) > 1:
            self.rests.rest(model, rest_s)
        if for_good:
            self.line.remove(model)

    async def _pause(self, failure: ModelError, wait_s: float) -> bool:
        """Wait before another attempt; return False at once if it would end after the deadline."""
        if self.timing.now() + wait_s > self.deadline:
            return False
        await self.attempt.on_trouble(failure)
        self.pauses += 1
        await self.timing.sleep(wait_s)
        return True

    def _wait_s(self, failure: ModelError) -> float:
        bounds = self.policy.backoff_s
        # Full jitter: conversations that failed together do not come back together.
        backoff_s = self.timing.draw(0, bounds[min(self.pauses, len(bounds) - 1)])
        asked_s = failure.retry_after_s if isinstance(failure, RateLimited) else None
        return min(max(asked_s or 0.0, backoff_s), self.policy.max_wait_s)

    def _note(self, model: ChatModel, failure: ModelError, action: Action) -> None:
        self.rests.note_failure(model.label, failure)
        log.warning(
            "model_call_failed",
            provider=model.provider,
            model=model.label,
            attempt=self.attempts,
            error=type(failure).__name__,
            reason=str(failure),
            action=action if isinstance(action, str) else action.name,
        )


async def _renewed(model: Renewable) -> bool:
    """Read a model's key again, in a thread; where it cannot be read it stays as it is."""
    try:
        return await asyncio.to_thread(model.renew_key)
    except (SecretUnreadable, CredentialsRefused) as exc:
        log.warning("key_not_renewed", reason=str(exc))
        return False
