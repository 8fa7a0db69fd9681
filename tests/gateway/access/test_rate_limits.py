"""Sliding windows: who did how much lately, once for each item."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.rate_limits import SWEEP_FROM, AdmissionLimits, SlidingWindow


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A clock that stands still unless a test moves it."""
    return Clock()


def test_so_many_have_room(clock: Clock) -> None:
    """The next one has not, and everybody has a window of their own."""
    window = SlidingWindow(2, 60, clock)
    assert [window.count("ann", item) for item in "abc"] == [True, True, False]
    assert window.count("bob", "c")


def test_room_comes_back_as_time_passes(clock: Clock) -> None:
    """The window slides: an item counts for the whole span and not longer."""
    window = SlidingWindow(2, 60, clock)
    for clock.now, item in ((0, "a"), (30, "b")):
        assert window.count("ann", item)
    clock.now = 59.9
    assert not window.count("ann", "c")
    clock.now = 60
    assert window.count("ann", "c")
    assert not window.count("ann", "d")


def test_what_comes_again_counts_once(clock: Clock) -> None:
    """Its answer stays the same: the transaction before may have been rolled back."""
    window = SlidingWindow(1, 60, clock)
    assert [window.count("ann", item) for item in "aab"] == [True, True, False]
    assert window.has_room("ann", "a")
    assert not window.has_room("ann", "b")


def test_asking_counts_nothing(clock: Clock) -> None:
    """Only `count` does."""
    window = SlidingWindow(1, 60, clock)
    assert window.has_room("ann", "a")
    assert window.count("ann", "b")


def test_those_who_left_are_forgotten(clock: Clock) -> None:
    """A flood of senders does not stay in memory."""
    window = SlidingWindow(1, 60, clock)
    for sender in range(SWEEP_FROM):
        window.count(sender, "a")
    clock.now = 61
    window.count("new", "a")
    assert list(window._items) == ["new"]


@given(st.lists(st.floats(0, 50), max_size=60), st.integers(1, 5))
def test_no_span_holds_more_than_the_limit(pauses: list[float], limit: int) -> None:
    """Whatever the pauses between items."""
    clock, taken = Clock(), []
    window = SlidingWindow(limit, 60, clock)
    for item, pause in enumerate(pauses):
        clock.now += pause
        if window.count("ann", item):
            taken.append(clock.now)
    for start in taken:
        assert sum(start <= at < start + 60 for at in taken) <= limit


def test_zero_is_any_number() -> None:
    """`rate_per_min: 0` switches the limit off."""
    assert AdmissionLimits(0).messages is None
    assert AdmissionLimits(1).messages is not None
