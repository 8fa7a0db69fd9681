"""Limits of messages, and of what users of the web chat request and keep open."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.door import OWNER, LimitReached, Requester, Visitor
from gateway.access.rate_limits import (
    BODY_BYTES,
    BODY_BYTES_OF_USER,
    REQUESTS_PER_SPAN,
    STREAMS_OF_USER,
    STREAMS_PER_SPAN,
    SWEEP_FROM,
    VISIT_S,
    AdmissionLimits,
    SlidingWindow,
    VisitorLimits,
)
from tests.support.storage import inbound

HERE = Requester("192.0.2.1")
SOCKET = Requester("")
GINA = Visitor("gina", "gina", "guest")


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
    for per_min, full in ((0, set()), (1, {"messages", "overheard"})):
        limits = AdmissionLimits(per_min)
        for _ in range(2):
            limits.count(inbound(), ["messages", "overheard", "urgent"])
        assert limits.full(inbound()) == full


def test_a_window_says_how_long_to_wait(clock: Clock) -> None:
    """Until the oldest counted item expires; asking does not count."""
    window = SlidingWindow(2, 60, clock)
    for clock.now, item in ((0, "a"), (30, "b")):
        assert window.wait_s("ann") == 0
        window.count("ann", item)
    assert window.wait_s("ann") == 30
    assert window.wait_s("bob") == 0
    clock.now = 60
    assert window.wait_s("ann") == 0


def guest(n: int) -> Visitor:
    """Return one of many guests."""
    return Visitor(f"guest{n}", f"guest{n}", "guest")


def test_a_loop_of_reads_is_stopped(clock: Clock) -> None:
    """Only its reads: writes of the same user, and other users, have room."""
    limits = VisitorLimits(clock=clock)
    for _ in range(REQUESTS_PER_SPAN):
        limits.ask(GINA, HERE, reads=True)
    clock.now = 4
    with pytest.raises(LimitReached) as refused:
        limits.ask(GINA, HERE, reads=True)
    assert (refused.value.retry_after_s, refused.value.busy) == (7, False)
    limits.ask(GINA, HERE, reads=False)
    limits.ask(OWNER, HERE, reads=True)
    clock.now = VISIT_S
    limits.ask(GINA, HERE, reads=True)


def test_who_opens_the_socket_has_no_limit_of_requests(clock: Clock) -> None:
    """It belongs to the operator's own program on this machine."""
    limits, ended = VisitorLimits(clock=clock), []
    with ExitStack() as opened:
        for n in range(REQUESTS_PER_SPAN + 1):
            limits.ask(OWNER, SOCKET, reads=True)
            opened.enter_context(limits.stream(OWNER, SOCKET, lambda n=n: ended.append(n)))  # type: ignore[misc]
    assert ended == []


def test_the_oldest_stream_of_a_user_ends_for_one_too_many(clock: Clock) -> None:
    """One after the other, and none of another user."""
    limits, ended = VisitorLimits(clock=clock), list[str]()
    with ExitStack() as opened:
        opened.enter_context(limits.stream(OWNER, HERE, lambda: ended.append("owner")))
        for n in range(STREAMS_OF_USER + 2):
            opened.enter_context(limits.stream(GINA, HERE, partial(ended.append, str(n))))
        assert ended == ["0", "1"]
    assert limits._streams == []


def test_streams_are_not_opened_in_a_loop(clock: Clock) -> None:
    """Each stream reads a whole chat; a program of an owner may open one for each question."""
    limits = VisitorLimits(clock=clock)
    for n in range(2 * STREAMS_PER_SPAN):
        with limits.stream(OWNER if n % 2 else GINA, HERE, list):
            pass
    with limits.stream(OWNER, HERE, list):
        pass
    with pytest.raises(LimitReached) as refused, limits.stream(GINA, HERE, list):
        pass
    assert not refused.value.busy
    clock.now = VISIT_S
    with limits.stream(GINA, HERE, list):
        pass


@pytest.mark.parametrize(
    ("most", "of_address", "places"),
    [(3, 9, ["192.0.2.1", "192.0.2.2", "192.0.2.3"]), (9, 3, ["2001:db8::1", "2001:db8::2"])],
)
def test_streams_have_a_limit_for_all_and_for_an_address(
    clock: Clock, most: int, of_address: int, places: list[str]
) -> None:
    """With any number of users; one that ends makes room. Owners are exempt."""
    limits = VisitorLimits(most, of_address, clock)
    with ExitStack() as opened:
        for n in range(3):
            caller = Requester(places[n % len(places)])
            opened.enter_context(limits.stream(guest(n), caller, list))
        with pytest.raises(LimitReached) as refused, limits.stream(GINA, caller, list):
            pass
        assert refused.value.busy
        opened.enter_context(limits.stream(OWNER, caller, list))
        elsewhere = Requester("192.0.2.9")
        if most > 4:
            opened.enter_context(limits.stream(GINA, elsewhere, list))
    with limits.stream(GINA, caller, list):
        pass


def test_bytes_of_a_user_are_bounded(clock: Clock) -> None:
    """All transfers of a user count together, until they end; others have their own share."""
    limits, half = VisitorLimits(clock=clock), BODY_BYTES_OF_USER // 2
    with limits.room(GINA) as first, limits.room(GINA) as second, limits.room(guest(1)) as other:
        first(half)
        second(half)
        with pytest.raises(LimitReached) as refused:
            second(half + 1)
        assert refused.value.busy
        other(BODY_BYTES_OF_USER)
    with limits.room(GINA) as again:
        again(BODY_BYTES_OF_USER)
    assert limits._bytes == {}


def test_bytes_of_all_are_bounded(clock: Clock) -> None:
    """Members and guests wait; an owner has a separate limit."""
    limits, count = VisitorLimits(clock=clock), BODY_BYTES // BODY_BYTES_OF_USER
    with ExitStack() as opened:
        for n in range(count):
            opened.enter_context(limits.room(guest(n)))(BODY_BYTES_OF_USER)
        reach = opened.enter_context(limits.room(GINA))
        reach(BODY_BYTES % BODY_BYTES_OF_USER)
        with pytest.raises(LimitReached):
            reach(BODY_BYTES % BODY_BYTES_OF_USER + 1)
        opened.enter_context(limits.room(OWNER))(BODY_BYTES_OF_USER)


def test_what_is_larger_than_a_limit_is_alone(clock: Clock) -> None:
    """`attachments.max_bytes` may exceed a user's share."""
    limits = VisitorLimits(clock=clock)
    with limits.room(GINA) as large, limits.room(GINA) as small:
        large(2 * BODY_BYTES)
        with pytest.raises(LimitReached):
            small(1)
