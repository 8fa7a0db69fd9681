"""The one retry policy, on a fake clock."""

import asyncio
from collections.abc import Sequence

import pytest
import structlog

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
    SecretUnreadable,
)
from agent.models.base import ChatModel
from agent.models.recovery import Rests, RetryPolicy, RetryTiming, complete_with_recovery
from tests.support.scripted_model import ScriptedModel


class Flaky(ScriptedModel):
    """A model that fails as told, then answers with its name; `always` fails without end."""

    def __init__(self, name: str, *failures: BaseException, always: bool = False) -> None:
        super().__init__([], name=name)
        self.failures = list(failures)
        self.always = always
        self.calls = 0

    def next_answer(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures[0] if self.always else self.failures.pop(0)
        return self.name


class Bench:
    """A request, with a clock, dice that roll the highest, and what was seen."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []
        self.troubles: list[ModelError] = []
        self.shrinks = 0
        self.repairs = self.suspicions = 0
        self.can_shrink = self.can_repair = True
        self.slow_s = 0.0
        self.rests = Rests(lambda: self.time)
        self.timing = RetryTiming(
            now=lambda: self.time, sleep=self.sleep, draw=lambda _, high: high
        )

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    async def make(self, model: ChatModel) -> str:
        self.time += self.slow_s
        assert isinstance(model, Flaky)
        return model.next_answer()

    async def shrink(self, model: ChatModel, *, suspected: bool = False) -> bool:
        self.shrinks += not suspected
        self.suspicions += suspected
        return self.can_shrink

    async def repair(self) -> bool:
        self.repairs += 1
        return self.can_repair

    async def on_trouble(self, failure: ModelError) -> None:
        self.troubles.append(failure)

    async def run(self, models: Sequence[Flaky], retry_for_s: float = 120) -> str:
        policy = RetryPolicy(retry_for_s)
        line = self.rests.in_order(models)
        return await complete_with_recovery(self, line, self.rests, policy, self.timing)


@pytest.fixture
def bench() -> Bench:
    return Bench()


DOWN = ModelUnreachable("down")
MALFORMED = BadRequest("400: thinking blocks cannot be modified")


async def test_answer_at_once(bench: Bench) -> None:
    """Without a failure nothing waits or is told."""
    assert await bench.run([Flaky("a")]) == "a"
    assert (bench.waits, bench.troubles) == ([], [])


async def test_unreachable_is_tried_again_with_back_off(bench: Bench) -> None:
    """Two failures cost two growing waits."""
    assert await bench.run([Flaky("a", DOWN, DOWN)]) == "a"
    assert bench.waits == [1, 2]
    assert len(bench.troubles) == 2


@pytest.mark.parametrize(("asked", "waited"), [(7.5, 7.5), (600.0, 60.0), (None, 1.0), (0.0, 1.0)])
async def test_rate_limit_waits_as_asked(bench: Bench, asked: float | None, waited: float) -> None:
    """Retry-after is followed up to a minute; without one, or with 0, the back-off holds."""
    assert await bench.run([Flaky("a", RateLimited("slow down", asked))]) == "a"
    assert bench.waits == [waited]


async def test_a_short_retry_after_never_shortens_the_back_off(bench: Bench) -> None:
    """A provider that asks for a second each time is not called a hundred times."""
    model = Flaky("a", RateLimited("slow down", 1.0), always=True)
    with pytest.raises(RateLimited):
        await bench.run([model])
    assert bench.waits == [1, 2, 4, 8, 16, 30, 30]


async def test_a_long_retry_after_is_not_shortened_by_the_back_off(bench: Bench) -> None:
    """Whichever is longer holds."""
    model = Flaky("a", *[RateLimited("slow down", 3.0)] * 4)
    assert await bench.run([model]) == "a"
    assert bench.waits == [3, 3, 4, 8]


async def test_three_failures_lead_to_the_next_model(bench: Bench) -> None:
    """The fallback is called at once after the third failure in a row."""
    first = Flaky("a", DOWN, always=True)
    assert await bench.run([first, Flaky("b")]) == "b"
    assert (first.calls, bench.waits) == (3, [1, 2])


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (DOWN, 2),
        (CredentialsRefused("401"), 0),
        (ModelNotFound("404"), 0),
        (RateLimited("slow", 3600), 0),
    ],
    ids=["down", "401", "404", "429 for an hour"],
)
async def test_nobody_is_told_where_another_model_answers_at_once(
    bench: Bench, failure: ModelError, told: int
) -> None:
    """Only what has to be waited for is trouble."""
    assert await bench.run([Flaky("a", failure, always=True), Flaky("b")]) == "b"
    assert bench.troubles == [failure] * told


async def test_every_wait_is_told(bench: Bench) -> None:
    """Also the one before another round; what is not waited for is not."""
    models = [Flaky("a", *[DOWN] * 3), Flaky("b", *[DOWN] * 3)]
    assert await bench.run(models) == "a"
    assert len(bench.troubles) == len(bench.waits) == 5


@pytest.mark.parametrize("failure", [CredentialsRefused("401"), ModelNotFound("404")])
async def test_useless_model_is_left_at_once(bench: Bench, failure: ModelError) -> None:
    """Neither a wait nor a second call for a model that cannot work."""
    first = Flaky("a", failure, always=True)
    assert await bench.run([first, Flaky("b")]) == "b"
    assert (first.calls, bench.waits) == (1, [])


async def test_useless_model_has_no_second_round(bench: Bench) -> None:
    """Later rounds go along the models that may still work."""
    first = Flaky("a", CredentialsRefused("401"), always=True)
    assert await bench.run([first, Flaky("b", *[DOWN] * 4)]) == "b"
    assert first.calls == 1


async def test_all_useless_raises_the_last(bench: Bench) -> None:
    """When no key works there is nothing to wait for."""
    models = [Flaky("a", CredentialsRefused("401")), Flaky("b", ModelNotFound("404"))]
    with pytest.raises(ModelNotFound):
        await bench.run(models)
    assert bench.waits == []


async def test_next_round_begins_with_the_first_model(bench: Bench) -> None:
    """After all have failed the preferred model comes first again."""
    first, second = Flaky("a", *[DOWN] * 3), Flaky("b", DOWN, always=True)
    assert await bench.run([first, second]) == "a"
    assert (first.calls, second.calls) == (4, 3)
    assert bench.waits == [1, 2, 4, 8, 16]


async def test_time_runs_out(bench: Bench) -> None:
    """The last error comes once the next wait would end too late; the waits stay bounded."""
    with pytest.raises(ModelUnreachable):
        await bench.run([Flaky("a", DOWN, always=True)])
    assert bench.waits == [1, 2, 4, 8, 16, 30, 30]
    assert len(bench.troubles) == 7


async def test_every_model_is_called_even_without_time(bench: Bench) -> None:
    """With no time for waits each model still has one call."""
    models = [Flaky("a", DOWN, always=True), Flaky("b", DOWN, always=True), Flaky("c")]
    assert await bench.run(models, retry_for_s=0) == "c"
    assert [model.calls for model in models] == [1, 1, 1]


async def test_slow_failures_use_up_the_time(bench: Bench) -> None:
    """Time spent inside the calls counts like time spent waiting."""
    bench.slow_s = 59.5
    slow = Flaky("a", DOWN, always=True)
    with pytest.raises(ModelUnreachable):
        await bench.run([slow])
    assert slow.calls == 2


async def test_refusal_comes_at_once(bench: Bench) -> None:
    """What a provider declines is not asked of another one."""
    second = Flaky("b")
    with pytest.raises(ModelRefused):
        await bench.run([Flaky("a", ModelRefused("no")), second])
    assert (second.calls, bench.troubles) == (0, [])


async def test_overflow_is_compressed_and_tried_again(bench: Bench) -> None:
    """A request that is too large is made smaller, without a wait or another model."""
    second = Flaky("b")
    assert await bench.run([Flaky("a", ContextOverflow("413")), second]) == "a"
    assert (bench.shrinks, bench.waits, second.calls) == (1, [], 0)


async def test_overflow_that_cannot_shrink_is_raised(bench: Bench) -> None:
    """Where compression cannot help the failure goes to the user."""
    bench.can_shrink = False
    with pytest.raises(ContextOverflow):
        await bench.run([Flaky("a", ContextOverflow("413"), always=True)])


def windows(*sizes: int, failure: ModelError | None = None) -> list[Flaky]:
    """Return models with these windows, named by them; the first one always fails."""
    models = [Flaky(str(size)) for size in sizes]
    models[0].failures, models[0].always = [failure or ContextOverflow("413")], True
    for model, size in zip(models, sizes, strict=True):
        model.context_length = size
    return models


async def test_overflow_that_cannot_shrink_goes_to_a_larger_window(bench: Bench) -> None:
    """The others would refuse it as well: they are not called, in this round or in a later one."""
    bench.can_shrink = False
    models = windows(200_000, 100_000, 200_000, 1_000_000)
    models[3].failures = [DOWN]
    assert await bench.run(models) == "1000000"
    assert [model.calls for model in models] == [1, 0, 0, 2]


async def test_overflow_that_cannot_shrink_leaves_no_smaller_window(bench: Bench) -> None:
    """Where nobody has more room the failure goes to the user at once."""
    bench.can_shrink = False
    models = windows(200_000, 100_000, 200_000)
    with pytest.raises(ContextOverflow):
        await bench.run(models)
    assert [model.calls for model in models] == [1, 0, 0]


async def test_overflow_that_can_shrink_stays_with_its_model(bench: Bench) -> None:
    """A larger window costs more than a smaller request."""
    models = windows(200_000, 1_000_000)
    models[0].always = False
    assert await bench.run(models) == "200000"
    assert models[1].calls == 0


def unexplained() -> BadRequest:
    """Return a refusal in words that nobody knows."""
    error = BadRequest("HTTP 400: E4711")
    error.is_unexplained = True
    return error


async def test_an_unexplained_refusal_is_suspected_to_be_of_the_size_once(bench: Bench) -> None:
    """A large request is made smaller, once; the second refusal is the user's to know."""
    assert await bench.run([Flaky("a", unexplained())]) == "a"
    assert bench.suspicions == 1
    with pytest.raises(BadRequest):
        await bench.run([Flaky("a", unexplained(), always=True)])
    assert (bench.suspicions, bench.waits) == (2, [])


async def test_a_small_request_is_not_suspected(bench: Bench) -> None:
    """Then another model is next; an explained refusal is never suspected."""
    bench.can_shrink = False
    assert await bench.run([Flaky("a", unexplained(), always=True), Flaky("b")]) == "b"
    assert await bench.run([Flaky("a", BadRequest("no"), always=True), Flaky("b")]) == "b"
    assert bench.suspicions == 1


async def test_bad_request_is_repaired_once(bench: Bench) -> None:
    """One repair pass and one retry, then the failure is the user's to know."""
    with pytest.raises(BadRequest):
        await bench.run([Flaky("a", MALFORMED, always=True)])
    assert bench.repairs == 1


@pytest.mark.parametrize(
    "reason", ["Invalid `signature` in block", "reasoning_content", "Thinking"]
)
async def test_a_refusal_that_names_thinking_is_repaired(bench: Bench, reason: str) -> None:
    """In whatever words."""
    assert await bench.run([Flaky("a", BadRequest(reason))]) == "a"
    assert bench.repairs == 1


async def test_a_refusal_for_something_else_is_not_repaired(bench: Bench) -> None:
    """To leave out what was thought would cost it and help nothing."""
    with pytest.raises(BadRequest):
        await bench.run([Flaky("a", BadRequest("max_tokens: too large"), always=True)])
    assert bench.repairs == 0


async def test_repaired_request_is_sent_again(bench: Bench) -> None:
    """What was repaired goes to the same model."""
    second = Flaky("b")
    assert await bench.run([Flaky("a", MALFORMED), second]) == "a"
    assert (bench.repairs, second.calls) == (1, 0)


@pytest.mark.parametrize("can_repair", [True, False])
async def test_bad_request_may_suit_another_model(bench: Bench, can_repair: bool) -> None:
    """The form that one provider refuses another may take."""
    bench.can_repair = can_repair
    first = Flaky("a", MALFORMED, always=True)
    assert await bench.run([first, Flaky("b")]) == "b"
    assert first.calls == 1 + can_repair


@pytest.mark.parametrize(
    "failure", [CredentialsRefused("401"), CreditUsedUp("402"), RateLimited("slow", 5)]
)
async def test_next_key_of_the_same_model(bench: Bench, failure: ModelError) -> None:
    """Auth, billing and rate limits concern one key; the next one is tried without a wait."""
    first, second = Flaky("a", failure, always=True), Flaky("a")
    assert await bench.run([first, second, Flaky("b")]) == "a"
    assert (first.calls, second.calls, bench.waits) == (1, 1, [])


async def test_long_retry_after_goes_to_the_fallback(bench: Bench) -> None:
    """Nobody waits an hour where another model can answer now."""
    first = Flaky("a", RateLimited("slow", 3600), always=True)
    assert await bench.run([first, Flaky("b")]) == "b"
    assert (first.calls, bench.waits) == (1, [])


async def test_failed_model_rests(bench: Bench) -> None:
    """The next turn begins with the fallback; after the rest the main model is first again."""
    first, second = Flaky("a", CredentialsRefused("401")), Flaky("b")
    await bench.run([first, second])
    assert bench.rests.in_order([first, second]) == [second, first]
    bench.time += 300
    assert bench.rests.in_order([first, second]) == [first, second]


async def test_a_model_that_answers_rests_no_longer(bench: Bench) -> None:
    """All others failed, so it was asked all the same: later turns begin with it again."""
    first, second = Flaky("a", *[DOWN] * 3), Flaky("b", *[DOWN] * 3)
    assert await bench.run([first, second]) == "a"
    assert bench.rests.in_order([second, first]) == [first, second]


async def test_only_model_never_rests(bench: Bench) -> None:
    """Where there is no other one, a failure of this turn says nothing about the next."""
    only = Flaky("a", CredentialsRefused("401"))
    with pytest.raises(CredentialsRefused):
        await bench.run([only])
    assert await bench.run([only]) == "a"


def test_the_model_that_answered_is_preferred(bench: Bench) -> None:
    """It has the prompt in its cache."""
    first, second = Flaky("a"), Flaky("b")
    assert bench.rests.in_order([first, second], second) == [second, first]


async def test_no_model_at_all(bench: Bench) -> None:
    """An empty line is an error that says so."""
    with pytest.raises(ModelNotFound, match="configured"):
        await bench.run([])


async def test_cancellation_goes_on(bench: Bench) -> None:
    """A cancelled call is not a failed one."""
    with pytest.raises(asyncio.CancelledError):
        await bench.run([Flaky("a", asyncio.CancelledError()), Flaky("b")])
    assert bench.troubles == []


async def test_failures_are_logged(bench: Bench) -> None:
    """Each failed attempt is one warning that names model and error."""
    with structlog.testing.capture_logs() as logs:
        await bench.run([Flaky("a", RateLimited("slow down", 1.0))])
    assert logs == [
        {
            "event": "model_call_failed",
            "log_level": "warning",
            "provider": "scripted",
            "model": "a",
            "attempt": 1,
            "error": "RateLimited",
            "reason": "slow down",
            "action": "retry",
        }
    ]


async def test_real_clock_sleeps(bench: Bench) -> None:
    """The default timing is real; a short wait ends in the answer."""
    policy = RetryPolicy(backoff_s=(0.01,))
    flaky = Flaky("a", DOWN)
    assert await complete_with_recovery(bench, [flaky], Rests(), policy) == "a"


class Keyed(Flaky):
    """A model whose key can be read again: `keys` are what comes of it, in order."""

    def __init__(
        self, name: str, *failures: BaseException, keys: Sequence[bool | BaseException]
    ) -> None:
        super().__init__(name, *failures)
        self.keys = list(keys)

    secret = None

    def renew_key(self) -> bool:
        """Return whether there is another key."""
        found = self.keys.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def take_key(self) -> bool:
        """Return that nothing was read."""
        return False


NO_KEY = CredentialsRefused("401: no such key")


async def test_a_refused_key_is_read_again(bench: Bench) -> None:
    """Where it was replaced the same model answers, at once and with nobody told."""
    model = Keyed("a", NO_KEY, keys=[True])
    assert await bench.run([model, Flaky("b")]) == "a"
    assert (model.calls, bench.waits, bench.troubles) == (2, [], [])


@pytest.mark.parametrize("came", [False, SecretUnreadable("is gone"), NO_KEY])
async def test_a_key_that_was_not_replaced_is_left(
    bench: Bench, came: bool | BaseException
) -> None:
    """The next model answers; the key is read once for a request."""
    model = Keyed("a", NO_KEY, keys=[came])
    assert await bench.run([model, Flaky("b")]) == "b"
    assert (model.calls, model.keys) == (1, [])


async def test_a_new_key_that_is_refused_as_well(bench: Bench) -> None:
    """It is not read a second time."""
    model = Keyed("a", NO_KEY, NO_KEY, keys=[True, True])
    assert await bench.run([model, Flaky("b")]) == "b"
    assert (model.calls, model.keys) == (2, [True])


async def test_an_account_without_money_has_no_other_key(bench: Bench) -> None:
    """A new key is of the same account."""
    model = Keyed("a", CreditUsedUp("402"), keys=[])
    assert await bench.run([model, Flaky("b")]) == "b"
    assert model.calls == 1
