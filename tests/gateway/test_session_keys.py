"""Session keys (the same conversation has one key, two have two), and when sessions are reset."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.messages import Address, ChatKind, InboundMessage
from gateway.session_keys import GroupSessions, address_key, reset_due, session_key, sole_sender
from gateway.settings.tree import SessionSettings
from tests.support.storage import inbound

ids = st.sampled_from(["a", "b", ":", "a:b", "%3A"])
addresses = st.builds(Address, ids, ids, ids, st.none() | ids)


def message(address: Address, kind: ChatKind = "dm", sender: str = "7") -> InboundMessage:
    return inbound(address=address, chat_kind=kind, sender=sender)


@st.composite
def updates(draw: st.DrawFn) -> InboundMessage:
    """Draw messages as platforms send them: a thread has an id of its own."""
    address = Address("telegram", "default", draw(ids), draw(st.none() | ids))
    kind: ChatKind = "thread" if address.thread else draw(st.sampled_from(["dm", "group"]))
    return message(address, kind, draw(ids))


GROUP = Address("telegram", "default", "-100")


@pytest.mark.parametrize(
    ("update", "groups", "key", "user"),
    [
        (message(Address("web", "default", "c1")), "per_user", "web:default:c1", "7"),
        (message(GROUP, "group"), "shared", "telegram:default:-100", None),
        (message(Address("t", "d", "c", "5"), "thread"), "per_user", "t:d:c:5", None),
        (message(Address("t", "d", "c", "5"), "thread"), "shared", "t:d:c:5", None),
        (message(Address("matrix", "d", "!a:b.c")), "shared", "matrix:d:!a%3Ab.c", "7"),
    ],
)
def test_keys_by_example(
    update: InboundMessage, groups: GroupSessions, key: str, user: str | None
) -> None:
    """Direct chats belong to their sender, threads and shared groups to all."""
    assert session_key(update, groups) == key
    assert sole_sender(update, groups) == user


def test_a_group_is_one_conversation_per_sender() -> None:
    """Unless `sessions.groups` says that it is shared."""
    one, other = message(GROUP, "group", "1"), message(GROUP, "group", "2")
    assert session_key(one, "per_user") != session_key(other, "per_user")
    assert session_key(one, "shared") == session_key(other, "shared")
    assert sole_sender(one, "per_user") == "1"


def test_a_sender_is_not_taken_for_a_thread() -> None:
    """A member's own conversation in a group is not the thread whose id equals theirs."""
    member = message(GROUP, "group", "12345")
    thread = message(Address("telegram", "default", "-100", "12345"), "thread", "99")
    assert session_key(member, "per_user") != session_key(thread, "per_user")


@given(updates(), updates(), st.sampled_from(["per_user", "shared"]))
def test_keys_are_equal_exactly_for_the_same_conversation(
    one: InboundMessage, other: InboundMessage, groups: GroupSessions
) -> None:
    """Whatever characters the platform's ids are made of."""

    def identity(update: InboundMessage) -> tuple[Address, str | None]:
        grouped = update.chat_kind == "group" and groups == "per_user"
        return update.address, update.sender if grouped else None

    same = session_key(one, groups) == session_key(other, groups)
    assert same == (identity(one) == identity(other))


@given(addresses, addresses)
def test_an_address_has_a_key_of_its_own(one: Address, other: Address) -> None:
    """Parts cannot run into each other."""
    assert (address_key(one) == address_key(other)) == (one == other)


@given(addresses)
def test_the_key_of_a_direct_chat_is_that_of_its_address(address: Address) -> None:
    """The web chat finds its conversations by address alone."""
    assert session_key(message(address), "per_user") == address_key(address)


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
ZONES = ("UTC", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Australia/Lord_Howe")
zones = st.sampled_from(ZONES)
moments = st.integers(0, 4_000_000_000).map(lambda at: datetime.fromtimestamp(at, UTC))
pauses = st.timedeltas(timedelta(0), timedelta(days=3))
reset_settings = st.builds(
    SessionSettings,
    reset=st.sampled_from(["none", "daily", "idle", "both"]),
    timezone=zones,
    at_hour=st.integers(0, 23),
    idle_minutes=st.integers(1, 3000),
)


def daily(at_hour: int, timezone: str = "UTC") -> SessionSettings:
    return SessionSettings(reset="daily", at_hour=at_hour, timezone=timezone)


def idle(minutes: int) -> SessionSettings:
    return SessionSettings(reset="idle", idle_minutes=minutes)


def ticks(first: datetime, hours: int, step: timedelta) -> Iterator[datetime]:
    """Yield moments of activity."""
    for n in range(int(timedelta(hours=hours) / step) + 1):
        yield first + n * step


def resets(settings: SessionSettings, active: Iterator[datetime]) -> list[datetime]:
    """Return which of the moments of activity begin a session."""
    return [now for last, now in pairwise(active) if reset_due(settings, last, now)]


@pytest.mark.parametrize("reset", ["none", "daily", "idle", "both"])
def test_what_was_never_active_is_not_reset(reset: str) -> None:
    """A first message begins a session anyway."""
    settings = SessionSettings.model_validate({"reset": reset, "idle_minutes": 1})
    assert reset_due(settings, None, NOON) is None


def test_nothing_is_reset_by_default() -> None:
    """Not even after years."""
    assert reset_due(SessionSettings(), NOON - timedelta(days=9999), NOON) is None


@pytest.mark.parametrize(
    ("silence_s", "due"), [(0, None), (599, None), (600, None), (601, "idle"), (1e9, "idle")]
)
def test_an_idle_reset(silence_s: float, due: str | None) -> None:
    """Once it was silent for more than so many minutes."""
    assert reset_due(idle(10), NOON - timedelta(seconds=silence_s), NOON) == due


def test_any_number_of_minutes_is_taken() -> None:
    """Also one that no clock will ever reach."""
    assert reset_due(idle(10**18), NOON - timedelta(days=9999), NOON) is None


@pytest.mark.parametrize(
    ("last", "now", "due"),
    [
        ("2026-06-01T03:59", "2026-06-01T04:00", "daily"),
        ("2026-06-01T03:59", "2026-06-01T03:59:59", None),
        ("2026-06-01T04:00", "2026-06-02T03:59", None),
        ("2026-06-01T04:00", "2026-06-02T04:00", "daily"),
        ("2026-06-01T05:00", "2026-06-09T03:00", "daily"),
    ],
)
def test_a_daily_reset(last: str, now: str, due: str | None) -> None:
    """Once the hour has struck since the last message, however short the pause was."""
    at = [datetime.fromisoformat(f"{moment}+00:00") for moment in (last, now)]
    assert reset_due(daily(4), at[0], at[1]) == due


def test_the_hour_is_that_of_the_zone() -> None:
    """4 o'clock in Berlin is 2 o'clock UTC in summer."""
    last = datetime(2026, 6, 1, 1, 59, tzinfo=UTC)
    assert reset_due(daily(4, "Europe/Berlin"), last, last + timedelta(minutes=1)) == "daily"
    assert reset_due(daily(4, "UTC"), last, last + timedelta(minutes=1)) is None


def test_both_rules_hold_together() -> None:
    """Either is enough; idle is the reason where both are due."""
    settings = SessionSettings(reset="both", at_hour=4, idle_minutes=60)
    five = datetime(2026, 6, 1, 5, tzinfo=UTC)
    assert reset_due(settings, five, five + timedelta(hours=2)) == "idle"
    assert (
        reset_due(settings, five - timedelta(minutes=61), five - timedelta(minutes=50)) == "daily"
    )
    assert reset_due(settings, five - timedelta(hours=3), five) == "idle"
    assert reset_due(settings, five, five + timedelta(minutes=60)) is None


@pytest.mark.parametrize(
    ("zone", "at_hour", "first", "expected"),
    [
        ("Europe/Berlin", 2, "2026-03-29T00:00", "2026-03-29T01:00"),  # 2 o'clock is skipped
        ("Europe/Berlin", 2, "2026-10-25T00:00", "2026-10-25T00:00"),  # 2 o'clock comes twice
        ("America/Sao_Paulo", 0, "2018-11-04T00:00", "2018-11-04T03:00"),  # midnight is skipped
        ("America/Havana", 0, "2026-11-01T00:00", "2026-11-01T04:00"),  # midnight comes twice
        ("Australia/Lord_Howe", 2, "2026-10-03T10:00", "2026-10-03T15:30"),  # by half an hour
        ("America/St_Johns", 0, "2010-11-06T20:00", "2010-11-07T02:30"),  # back over midnight
        ("Pacific/Apia", 4, "2011-12-30T10:00", "2011-12-30T14:00"),  # a whole day is skipped
    ],
)
def test_clocks_that_are_put_forward_or_back(
    zone: str, at_hour: int, first: str, expected: str
) -> None:
    """The hour strikes exactly once in the 23 hours around the change, at the expected moment."""
    begun = datetime.fromisoformat(f"{first}+00:00") - timedelta(minutes=1)
    found = resets(daily(at_hour, zone), ticks(begun, 23, timedelta(minutes=1)))
    assert found == [datetime.fromisoformat(f"{expected}+00:00")]


def test_an_hour_that_struck_before_the_clocks_went_back_to_yesterday() -> None:
    """It counts at once, and not again when the clocks come to it for the second time."""
    settings = daily(0, "America/St_Johns")
    struck = datetime(2010, 11, 7, 2, 30, tzinfo=UTC)
    minutes = (struck + timedelta(minutes=n) for n in (-1, 15, 70))
    assert resets(settings, minutes) == [struck + timedelta(minutes=15)]


def test_times_may_be_given_in_any_zone() -> None:
    """In the hour that comes twice clocks show a shorter pause than there was."""
    berlin = ZoneInfo("Europe/Berlin")
    last = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).astimezone(berlin)
    now = (last.astimezone(UTC) + timedelta(minutes=60)).astimezone(berlin)
    assert now.replace(tzinfo=None) == last.replace(tzinfo=None)
    assert reset_due(idle(59), last, now) == "idle"


@given(zones, st.integers(0, 23), moments, st.integers(0, 23))
def test_a_day_has_one_reset(zone: str, at_hour: int, first: datetime, offset: int) -> None:
    """Who writes all the time gets one new session for each local day, at the hour or behind it."""
    begun = first + timedelta(hours=offset)
    found = resets(daily(at_hour, zone), ticks(begun, 72, timedelta(minutes=30)))
    local = [at.astimezone(ZoneInfo(zone)) for at in found]
    assert 2 <= len(found) <= 4
    assert len({at.date() for at in local}) == len(found)
    assert all(at_hour <= at.hour <= at_hour + 1 for at in local)


@given(reset_settings, moments, pauses, pauses)
def test_a_longer_pause_is_never_worth_less(
    settings: SessionSettings, last: datetime, pause: timedelta, more: timedelta
) -> None:
    """What is due stays due until someone writes."""
    if reset_due(settings, last, last + pause):
        assert reset_due(settings, last, last + pause + more)
        assert reset_due(settings, last - more, last + pause)


@given(reset_settings, moments, pauses)
def test_activity_ends_what_was_due(
    settings: SessionSettings, at: datetime, earlier: timedelta
) -> None:
    """There is no second reset without a pause, nor one for a message from before."""
    assert reset_due(settings, at, at) is None
    assert reset_due(settings, at, at - earlier) is None
