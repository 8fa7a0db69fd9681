"""Sliding windows: who did how much lately, once for each item."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.messages import Attachment
from gateway.access.rate_limits import DAY_S, SWEEP_FROM, AdmissionLimits, Quotas, SlidingWindow
from gateway.settings.tree import QuotaSettings
from tests.support.storage import inbound


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


FILE = Attachment(name="a.txt", kind="file", mime="text/plain", content=b"hi")


def quotas(clock: Clock, **limits: int) -> Quotas:
    """Return quotas with these limits."""
    return Quotas(QuotaSettings(**limits), "Europe/Berlin", clock)


def test_messages_of_a_day(clock: Clock) -> None:
    """For each sender; what was refused does not count, and is told of once in an hour."""
    limits = quotas(clock, messages_per_day=2)
    first, *others = (inbound() for _ in range(4))
    assert [limits.refusal(each) for each in (first, first, others[0])] == [None] * 3
    clock.now = DAY_S / 2
    told = limits.refusal(others[1])
    assert told is not None
    assert "at most 2 messages in 24 hours" in told
    assert "There is room again in 12 h 0 min" in told
    assert limits.refusal(others[2]) == ""
    assert limits.refusal(inbound(chat="43")) is None
    clock.now = DAY_S + 1
    assert limits.refusal(inbound()) is None


def test_files_of_a_day(clock: Clock) -> None:
    """A message is taken with all of its files, or not at all."""
    limits = quotas(clock, files_per_day=3)
    assert limits.refusal(inbound(attachments=(FILE, FILE))) is None
    told = limits.refusal(inbound(attachments=(FILE, FILE)))
    assert told is not None
    assert "at most 3 files in 24 hours" in told
    assert limits.refusal(inbound()) is None
    assert limits.refusal(inbound(attachments=(FILE,))) is None
    many = limits.refusal(inbound(chat="43", attachments=(FILE,) * 4))
    assert many is not None
    assert "a day from you" in many


def test_without_quotas_nothing_is_asked(clock: Clock) -> None:
    """No look at the ledger, and no room that could run out."""
    limits = quotas(clock)
    assert limits.token_day is None
    assert {limits.refusal(inbound(attachments=(FILE,) * 9)) for _ in range(50)} == {None}


def test_tokens_of_a_day(clock: Clock) -> None:
    """The day begins at midnight in the zone of the settings."""
    limits = quotas(clock, tokens_per_day=1_000)
    day = limits.token_day
    assert day is not None
    assert (day.hour, str(day.tzinfo)) == (0, "Europe/Berlin")
    assert limits.refusal(inbound(), 999) is None
    told = limits.refusal(inbound(), 1_000)
    assert told is not None
    assert "your 1,000 tokens of today are used up" in told
    assert "00:00 Europe/Berlin" in told
