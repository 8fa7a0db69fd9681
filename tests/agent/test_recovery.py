"""The one retry policy, on a fake clock."""

import asyncio
from collections.abc import Sequence

import pytest
import structlog

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.messages import assistant_message, user_message
from agent.models.base import Completion, ModelRequest, TextSink
from agent.recovery import RetryPolicy, Timing, complete_with_recovery
from tests.support.model_server import SinkSpy

REQUEST = ModelRequest([user_message("hello")])


class Flaky:
    """A model that fails as told, then answers with its name; `always` fails without end."""

    provider = "flaky"
    context_length = 1000

    def __init__(self, name: str, *failures: BaseException, always: bool = False) -> None:
        self.name = name
        self.failures = list(failures)
        self.always = always
        self.calls = 0

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        self.calls += 1
        sink.push("half ")
        if self.failures:
            raise self.failures[0] if self.always else self.failures.pop(0)
        sink.push(self.name)
        return Completion(assistant_message(self.name), "stop")

    async def close(self) -> None: ...


class Bench:
    """Clock, dice that roll the highest, and what was seen."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []
        self.troubles: list[ModelError] = []
        self.sink = SinkSpy()
        self.timing = Timing(now=lambda: self.time, sleep=self.sleep, draw=lambda _, high: high)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    async def run(self, models: Sequence[Flaky], retry_for_s: float = 120) -> str:
        policy = RetryPolicy(retry_for_s)
        completion = await complete_with_recovery(
            models, REQUEST, self.sink, policy, self.troubles.append, self.timing
        )
        return str(completion.message["content"])


@pytest.fixture
def bench() -> Bench:
    return Bench()


DOWN = ModelUnreachable("down")


async def test_answer_at_once(bench: Bench) -> None:
    """Without a failure nothing waits, restarts or is told."""
    assert await bench.run([Flaky("a")]) == "a"
    assert (bench.waits, bench.sink.restarts, bench.troubles) == ([], 0, [])


async def test_unreachable_is_tried_again_with_back_off(bench: Bench) -> None:
    """Two failures cost two growing waits; the sink shows the last attempt only."""
    assert await bench.run([Flaky("a", DOWN, DOWN)]) == "a"
    assert bench.waits == [1, 2]
    assert (bench.sink.restarts, bench.sink.text) == (2, "half a")
    assert len(bench.troubles) == 2


@pytest.mark.parametrize(("asked", "waited"), [(7.5, 7.5), (600.0, 60.0), (None, 1.0), (0.0, 1.0)])
async def test_rate_limit_waits_as_asked(bench: Bench, asked: float | None, waited: float) -> None:
    """Retry-after is followed up to a minute; without one, or with 0, the back-off holds."""
    assert await bench.run([Flaky("a", RateLimited("slow down", asked))]) == "a"
    assert bench.waits == [waited]


async def test_three_failures_lead_to_the_next_model(bench: Bench) -> None:
    """The fallback is called at once after the third failure in a row."""
    first = Flaky("a", DOWN, always=True)
    assert await bench.run([first, Flaky("b")]) == "b"
    assert (first.calls, bench.waits) == (3, [1, 2])


@pytest.mark.parametrize("failure", [CredentialsRefused("401"), ModelNotFound("404")])
async def test_useless_model_is_left_at_once(bench: Bench, failure: ModelError) -> None:
    """Neither a wait nor a second call for a model that cannot work."""
    first = Flaky("a", failure, always=True)
    assert await bench.run([first, Flaky("b")]) == "b"
    assert (first.calls, bench.waits, bench.sink.restarts) == (1, [], 1)


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
    assert len(bench.troubles) == 8


async def test_every_model_is_called_even_without_time(bench: Bench) -> None:
    """With no time for waits each model still has one call."""
    models = [Flaky("a", DOWN, always=True), Flaky("b", DOWN, always=True), Flaky("c")]
    assert await bench.run(models, retry_for_s=0) == "c"
    assert [model.calls for model in models] == [1, 1, 1]


async def test_slow_failures_use_up_the_time(bench: Bench) -> None:
    """Time spent inside the calls counts like time spent waiting."""

    class Slow(Flaky):
        async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:  # type: ignore[explicit-override]
            bench.time += 59.5
            return await super().complete(request, sink)

    slow = Slow("a", DOWN, always=True)
    with pytest.raises(ModelUnreachable):
        await bench.run([slow])
    assert slow.calls == 2


@pytest.mark.parametrize("failure", [ContextOverflow("413"), ModelRefused("no"), BadRequest("400")])
async def test_hopeless_failures_come_at_once(bench: Bench, failure: ModelError) -> None:
    """What no retry mends is raised, without asking the next model."""
    second = Flaky("b")
    with pytest.raises(type(failure)):
        await bench.run([Flaky("a", failure), second])
    assert (second.calls, bench.troubles) == (0, [])


async def test_no_model_at_all(bench: Bench) -> None:
    """An empty line is an error that says so."""
    with pytest.raises(ModelNotFound, match="configured"):
        await bench.run([])


async def test_async_listener_is_awaited(bench: Bench) -> None:
    """`on_trouble` may be a coroutine function; it has ended before the next attempt."""
    heard: list[str] = []

    async def listen(error: ModelError) -> None:
        await asyncio.sleep(0)
        heard.append(str(error))

    await complete_with_recovery(
        [Flaky("a", DOWN)], REQUEST, bench.sink, RetryPolicy(), listen, bench.timing
    )
    assert heard == ["down"]


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
            "provider": "flaky",
            "model": "a",
            "attempt": 1,
            "error": "RateLimited",
            "reason": "slow down",
        }
    ]


async def test_real_clock_sleeps() -> None:
    """The default timing is real; a short wait ends in the answer."""
    policy = RetryPolicy(backoff_s=(0.01,))
    flaky = Flaky("a", DOWN)
    completion = await complete_with_recovery([flaky], REQUEST, SinkSpy(), policy, lambda _: None)
    assert completion.message == assistant_message("a")
