"""Budgets of a platform, on a clock that only sleeping moves."""

import pytest

from adapters.errors import SendDelayed
from adapters.pacing import PaceLimits, Pacer

LIMITS = PaceLimits(per_s=30, chat_interval_s=1.0, group_per_min=20)


class Clock:
    """Seconds that pass only by `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pacer(clock: Clock) -> Pacer:
    return Pacer(LIMITS, clock=clock, sleep=clock.sleep)


async def sent_at(pacer: Pacer, clock: Clock, chats: list[str], *, group: bool) -> list[float]:
    times = []
    for chat in chats:
        await pacer.wait(chat, group=group)
        times.append(clock.now - 100.0)
    return times


async def test_one_message_per_second_in_a_chat(pacer: Pacer, clock: Clock) -> None:
    """Messages to one chat go out a second apart."""
    assert await sent_at(pacer, clock, ["7"] * 3, group=False) == [0.0, 1.0, 2.0]


async def test_other_chats_do_not_wait_for_each_other(pacer: Pacer, clock: Clock) -> None:
    """A busy chat holds up nobody else."""
    assert await sent_at(pacer, clock, ["7", "8", "9"], group=False) == [0.0, 0.0, 0.0]


async def test_thirty_messages_per_second_over_all_chats(pacer: Pacer, clock: Clock) -> None:
    """The 31st message within a second waits, whatever its chat."""
    times = await sent_at(pacer, clock, [str(n) for n in range(61)], group=False)
    assert (times[29], times[30], times[59], times[60]) == (0.0, 1.0, 1.0, 2.0)


async def test_twenty_messages_per_minute_in_a_group(pacer: Pacer, clock: Clock) -> None:
    """The 21st message of a minute is put off with the time of its turn, and not charged."""
    await sent_at(pacer, clock, ["-7"] * 20, group=True)
    with pytest.raises(SendDelayed) as caught:
        await pacer.wait("-7", group=True)
    assert caught.value.retry_after_s == pytest.approx(41.0)
    clock.now = 160.0
    await pacer.wait("-7", group=True)
    assert clock.now == 160.0


async def test_a_short_wait_is_waited_out_and_a_long_one_is_not(pacer: Pacer, clock: Clock) -> None:
    """Waiting inside of a send is bounded by max_wait_s."""
    pacer.block("7", 9.0)
    await pacer.wait("7", group=False)
    assert clock.now == 109.0
    pacer.block("7", 11.0)
    with pytest.raises(SendDelayed):
        await pacer.wait("7", group=False)


async def test_a_block_is_never_shortened(pacer: Pacer, clock: Clock) -> None:
    """A later, shorter retry_after does not lift an earlier one."""
    pacer.block("7", 8.0)
    pacer.block("7", 1.0)
    assert await sent_at(pacer, clock, ["7"], group=False) == [8.0]


async def test_a_block_holds_for_one_chat_only(pacer: Pacer) -> None:
    """retry_after of one chat leaves the others alone."""
    pacer.block("7", 60.0)
    assert not pacer.try_preview("7", group=False)
    assert not pacer.try_typing("7")
    assert pacer.try_preview("8", group=False)


async def test_a_preview_is_skipped_when_it_is_too_early(pacer: Pacer, clock: Clock) -> None:
    """A preview never waits, and it uses the chat's budget."""
    assert pacer.try_preview("7", group=False)
    assert not pacer.try_preview("7", group=False)
    clock.now += 1.0
    assert pacer.try_preview("7", group=False)


async def test_group_previews_are_three_seconds_apart(pacer: Pacer, clock: Clock) -> None:
    """In groups a preview comes at the earliest 3 s after any message."""
    assert pacer.try_preview("-7", group=True)
    clock.now += 2.9
    assert not pacer.try_preview("-7", group=True)
    clock.now += 0.1
    assert pacer.try_preview("-7", group=True)


async def test_group_previews_leave_room_for_answers(pacer: Pacer, clock: Clock) -> None:
    """Previews alone never use up a group's minute: five messages stay for final answers."""
    shown = 0
    for _ in range(19):
        shown += pacer.try_preview("-7", group=True)
        clock.now += 3.0
    assert shown == 15
    clock.now = 157.5
    await pacer.wait("-7", group=True)
    assert clock.now == 157.5


async def test_typing_costs_no_group_budget(pacer: Pacer, clock: Clock) -> None:
    """Typing signals for an hour leave a group's whole minute for messages."""
    for _ in range(900):
        assert pacer.try_typing("-7")
        clock.now += 4.0
    await sent_at(pacer, clock, ["-7"] * 20, group=True)


async def test_typing_is_not_repeated_while_it_shows(pacer: Pacer, clock: Clock) -> None:
    """A second signal within 4 s is skipped, and typing never delays a message."""
    assert pacer.try_typing("7")
    assert not pacer.try_typing("7")
    before = clock.now
    await pacer.wait("7", group=False)
    assert clock.now == before


async def test_typing_is_skipped_when_the_overall_budget_is_used_up(pacer: Pacer) -> None:
    """Thirty messages in a second leave no typing signal."""
    for number in range(30):
        assert pacer.try_preview(str(number), group=False)
    assert not pacer.try_typing("99")


async def test_quiet_chats_are_forgotten(
    pacer: Pacer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory follows activity; a chat that is still blocked is kept."""
    monkeypatch.setattr(Pacer, "_PRUNE_ABOVE", 10)
    pacer.block("blocked", 3600.0)
    for number in range(100):
        await pacer.wait(str(number), group=False)
        clock.now += 30.0
    assert len(pacer._chats) <= 10
    assert not pacer.try_preview("blocked", group=False)
