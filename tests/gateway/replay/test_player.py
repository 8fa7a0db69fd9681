"""When a replayed conversation's requests are made."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, assistant_message, tool_message
from gateway.replay.player import Gap, schedule
from gateway.replay.recordings import RecordedExchange, Recording
from tests.agent.tools.doubles import call


def exchange(answers: int, asked_at: tuple[float, ...] = ()) -> RecordedExchange:
    steps: list[ChatMessage] = []
    for n in range(answers - 1):
        steps.append(ChatMessage(role="assistant", tool_calls=[call("go", call_id=f"{n}")]))
        steps.append(tool_message(f"{n}", "go", "gone"))
    return RecordedExchange("go on", (*steps, assistant_message("Done.")), asked_at)


def talk(*exchanges: RecordedExchange, name: str = "talk") -> Recording:
    return Recording(name, exchanges)


def pauses(times: list[tuple[float, ...]]) -> list[float]:
    """Return the pauses between turns."""
    return [after[0] - before[-1] for before, after in pairwise(times)]


def test_each_answer_has_its_time() -> None:
    """None for a tool's result."""
    times = schedule(talk(exchange(3), exchange(1)), "busy")
    assert [len(each) for each in times] == [3, 1]


def test_without_gaps_no_time_passes() -> None:
    """A cache entry never dies."""
    assert schedule(talk(exchange(2), exchange(1)), "none") == [(0.0, 0.0), (0.0,)]


def test_a_busy_chat_keeps_its_cache() -> None:
    """Steps are seconds apart, turns at most two minutes."""
    times = schedule(talk(*[exchange(2)] * 50), "busy")
    assert all(4 <= second - first <= 20 for first, second in times)
    assert all(20 <= pause <= 120 for pause in pauses(times))


def test_a_chat_rests_now_and_then() -> None:
    """Most pauses are short, some outlive a cache of 5 minutes, a few one of an hour."""
    found = pauses(schedule(talk(*[exchange(1)] * 1000), "chat"))
    shares = [sum(pause > limit for pause in found) / len(found) for limit in (120, 300, 3600)]
    assert shares == pytest.approx([0.4, 0.2, 0.05], abs=0.04)


def test_the_recording_knows_best() -> None:
    """Where it does not, as in a busy chat; the clock never goes back."""
    times = schedule(talk(exchange(2, (1000.0, 990.0)), exchange(1)), "recorded")
    assert times[0] == (1000.0, 1000.0)
    assert 1020 <= times[1][0] <= 1120


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=20),
    st.sampled_from(["none", "busy", "chat", "recorded"]),
)
def test_times_never_fall_and_are_the_same_again(answers: list[int], gap: Gap) -> None:
    """A replay can be repeated."""
    recording = talk(*map(exchange, answers))
    times = schedule(recording, gap)
    flat = [at for each in times for at in each]
    assert flat == sorted(flat)
    assert schedule(recording, gap) == times


def test_conversations_differ() -> None:
    """Else one long pause would fall on all of them at once."""
    first, second = (talk(exchange(1), exchange(1), name=name) for name in "ab")
    assert schedule(first, "chat") != schedule(second, "chat")
