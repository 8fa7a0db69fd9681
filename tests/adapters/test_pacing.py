"""Budgets of a platform, on a clock that only sleeping moves."""

import asyncio
import itertools
import random
import selectors
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from adapters.base import Share
from adapters.errors import SendDelayed
from adapters.pacing import PaceLimits, Pacer

LIMITS = PaceLimits(per_s=30, chat_interval_s=1.0, group_per_min=20)
PATIENT = PaceLimits(per_s=30, chat_interval_s=1.0, group_per_min=20, max_wait_s=1000.0)


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
        with await pacer.wait(chat, group=group):
            times.append(clock.now - 100.0)
    return times


def previewed(pacer: Pacer, chat: str, *, group: bool) -> bool:
    with pacer.try_preview(chat, group=group) or nullcontext(False) as skipped:
        return skipped is not False


async def test_one_message_per_second_in_a_chat(pacer: Pacer, clock: Clock) -> None:
    """Messages to one chat go out a second apart."""
    assert await sent_at(pacer, clock, ["7"] * 3, group=False) == [0.0, 1.0, 2.0]


async def test_other_chats_do_not_wait_for_each_other(pacer: Pacer, clock: Clock) -> None:
    """A busy chat holds up nobody else."""
    assert await sent_at(pacer, clock, ["7", "8", "9"], group=False) == [0.0, 0.0, 0.0]


async def test_five_messages_in_five_seconds_may_come_at_once(clock: Clock) -> None:
    """With a burst the chat's budget is one of a longer time."""
    limits = PaceLimits(per_s=1000, chat_interval_s=1.0, chat_burst=5)
    pacer = Pacer(limits, clock=clock, sleep=clock.sleep)
    times = await sent_at(pacer, clock, ["7"] * 11, group=True)
    assert [round(at) for at in times] == [0] * 5 + [5] * 5 + [10]
    assert pacer.try_preview("7", group=True)


async def test_thirty_messages_per_second_over_all_chats(pacer: Pacer, clock: Clock) -> None:
    """A few leave at once, the others evenly spread, whatever their chat."""
    times = await sent_at(pacer, clock, [str(n) for n in range(61)], group=False)
    assert times[6] == 0.0
    assert 1.0 <= times[30] <= 1.01
    assert 2.0 <= times[60] <= 2.01


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
    assert previewed(pacer, "7", group=False)
    assert not previewed(pacer, "7", group=False)
    clock.now += 1.0
    assert previewed(pacer, "7", group=False)


async def test_a_preview_does_not_overtake_its_own_chats_messages(clock: Clock) -> None:
    """The budget may be free again before the message that waits for it has woken up."""
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        await woken.wait()

    pacer = Pacer(LIMITS, clock=clock, sleep=sleep)
    await pacer.wait("7", group=False)
    waiting = asyncio.ensure_future(pacer.wait("7", group=False))
    await asyncio.sleep(0)
    assert clock.now > 101.0
    assert not previewed(pacer, "7", group=False)
    assert previewed(pacer, "8", group=False)
    woken.set()
    await waiting
    assert clock.now < 101.2


async def test_group_previews_are_three_seconds_apart(pacer: Pacer, clock: Clock) -> None:
    """In groups a preview comes at the earliest 3 s after any message."""
    assert previewed(pacer, "-7", group=True)
    clock.now += 2.9
    assert not previewed(pacer, "-7", group=True)
    clock.now += 0.1
    assert previewed(pacer, "-7", group=True)


async def test_group_previews_leave_room_for_answers(pacer: Pacer, clock: Clock) -> None:
    """Previews alone never use up a group's minute: five messages stay for final answers."""
    shown = 0
    for _ in range(19):
        shown += previewed(pacer, "-7", group=True)
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
    """Where no further message could leave at once there is no typing signal."""
    while pacer.try_signal("1"):
        pass
    assert not pacer.try_typing("99")


async def test_a_signal_that_ought_to_come_waits(pacer: Pacer, clock: Clock) -> None:
    """A reaction waits for the overall budget, and for no other; it does not wait for long."""
    await pacer.wait("7", group=False)
    await pacer.wait_signal("7")
    assert clock.now == 100.0
    while pacer.try_signal("7"):
        pass
    await pacer.wait_signal("7")
    assert clock.now > 100.0
    pacer.block("7", 60.0)
    with pytest.raises(SendDelayed):
        await pacer.wait_signal("7")


async def test_a_block_of_the_account_holds_for_all(pacer: Pacer, clock: Clock) -> None:
    """Nothing goes to any chat before its end, and what waits too long is put off."""
    pacer.block_all(5.0)
    pacer.block_all(1.0)
    assert not pacer.try_preview("7", group=False)
    assert not pacer.try_typing("7")
    assert await sent_at(pacer, clock, ["7"], group=False) == [5.0]
    pacer.block_all(60.0)
    with pytest.raises(SendDelayed) as caught:
        await pacer.wait("8", group=False)
    assert caught.value.retry_after_s == pytest.approx(55.0)


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


class VirtualSelector(selectors.SelectSelector):
    """Waits for nothing; the time it would have waited passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds take no time."""

    def __init__(self) -> None:
        self.selector = VirtualSelector()
        super().__init__(self.selector)

    @override
    def time(self) -> float:
        return self.selector.now


LAGS = random.Random(5)  # noqa: S311 - the same ones each time
Sent = list[tuple[float, str]]


def simulate(limits: PaceLimits, scenario: Callable[[Pacer, Sent], Awaitable[None]]) -> Sent:
    """Run senders side by side; return what they sent, and when, in order."""
    sent: Sent = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def run() -> None:
            pacer = Pacer(limits, clock=asyncio.get_running_loop().time)
            await scenario(pacer, sent)

        runner.run(run())
    return sent


async def say(
    pacer: Pacer, sent: Sent, chat: str, count: int = 1, after_s: float = 0.0, lag_s: float = 0.0
) -> None:
    """Send messages one after the other, each again when it was put off.

    A message arrives at some time within `lag_s` and is answered at its end.
    """
    await asyncio.sleep(after_s)
    while count:
        try:
            with await pacer.wait(chat, group=chat.startswith("-")):
                way_s = LAGS.uniform(0.0, lag_s)
                await asyncio.sleep(way_s)
                sent.append((asyncio.get_running_loop().time(), chat))
                await asyncio.sleep(lag_s - way_s)
        except SendDelayed as exc:
            await asyncio.sleep(exc.retry_after_s or 0.0)
            continue
        count -= 1


def most_within(stamps: list[float], period_s: float) -> int:
    """Return the largest number of stamps in any period of this length."""
    first, most = 0, 0
    for last, stamp in enumerate(stamps):
        while stamps[first] <= stamp - period_s + 1e-6:
            first += 1
        most = max(most, last - first + 1)
    return most


def broken_limits(sent: Sent) -> list[str]:
    """Return which of Telegram's limits were broken."""
    chats: dict[str, list[float]] = defaultdict(list)
    for at, chat in sent:
        chats[chat].append(at)
    broken = [f"{chat} per s" for chat, stamps in chats.items() if most_within(stamps, 1.0) > 1]
    broken += [
        f"{chat} per min"
        for chat, stamps in chats.items()
        if chat.startswith("-") and most_within(stamps, 60.0) > 20
    ]
    return broken + ["overall"] * (most_within([at for at, _ in sent], 1.0) > 30)


SENDERS = st.lists(
    st.tuples(
        st.integers(-5, 30).map(str),
        st.integers(1, 9),
        st.floats(0.0, 5.0),
        st.sampled_from([0.0, 0.05, 0.4]),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=25)
@given(SENDERS, st.sampled_from([LIMITS, PATIENT]))
def test_no_limit_is_ever_broken(
    senders: list[tuple[str, int, float, float]], limits: PaceLimits
) -> None:
    """Whoever sends what and when, and however late it arrives: no limit is exceeded there."""

    async def scenario(pacer: Pacer, sent: Sent) -> None:
        await asyncio.gather(*(say(pacer, sent, *sender) for sender in senders))

    sent = simulate(limits, scenario)
    assert len(sent) == sum(count for _, count, _, _ in senders)
    assert broken_limits(sent) == []


@pytest.mark.parametrize(("chats", "lag_s"), [(200, 0.0), (200, 0.08), (1000, 0.05)])
def test_nine_tenths_of_the_rate_are_reached(chats: int, lag_s: float) -> None:
    """Many chats that send at once get through at the rate allowed, those put off as well."""

    async def scenario(pacer: Pacer, sent: Sent) -> None:
        everybody = (say(pacer, sent, str(number), lag_s=lag_s) for number in range(chats))
        await asyncio.gather(*everybody)

    sent = simulate(LIMITS, scenario)
    assert chats / sent[-1][0] >= 0.9 * LIMITS.per_s
    assert broken_limits(sent) == []


def test_first_come_first_served() -> None:
    """Chats, and the messages within a chat, go in the order in which they came."""

    async def scenario(pacer: Pacer, sent: Sent) -> None:
        await asyncio.gather(*(say(pacer, sent, str(number)) for number in range(100)))

    chats = [chat for _, chat in simulate(LIMITS, scenario)]
    assert chats == [str(number) for number in range(100)]


def test_a_busy_chat_starves_nobody() -> None:
    """While one chat has fifty messages waiting, the others speak every second."""

    async def scenario(pacer: Pacer, sent: Sent) -> None:
        flood = (say(pacer, sent, "busy") for _ in range(50))
        others = (say(pacer, sent, str(number), 5) for number in range(10))
        await asyncio.gather(*flood, *others)

    sent = simulate(PATIENT, scenario)
    assert max(at for at, chat in sent if chat != "busy") < 6
    assert max(at for at, chat in sent if chat == "busy") == pytest.approx(49, abs=1)


def test_what_is_best_effort_steps_back() -> None:
    """While messages wait for the overall budget there are no previews, typing and reactions."""

    async def scenario(pacer: Pacer, sent: Sent) -> None:
        senders = [asyncio.ensure_future(say(pacer, sent, str(number))) for number in range(60)]
        await asyncio.sleep(1.0)
        assert not pacer.try_preview("99", group=False)
        assert not pacer.try_typing("99")
        ends = asyncio.ensure_future(pacer.wait_signal("99"))
        await asyncio.gather(*senders)
        assert not ends.done()
        await ends

    assert len(simulate(LIMITS, scenario)) == 60


def test_who_waits_when_the_account_is_blocked_is_put_off() -> None:
    """A block in the middle of the queue ends the waits that would last too long."""
    delayed = []

    async def one(pacer: Pacer, number: int) -> None:
        try:
            await pacer.wait(str(number), group=False)
        except SendDelayed as exc:
            delayed.append(exc.retry_after_s)

    async def scenario(pacer: Pacer, _: Sent) -> None:
        senders = [asyncio.ensure_future(one(pacer, number)) for number in range(60)]
        await asyncio.sleep(1.0)
        pacer.block_all(30.0)
        await asyncio.gather(*senders)
        assert asyncio.get_running_loop().time() < 2.0

    simulate(LIMITS, scenario)
    assert len(delayed) == 60 - 30


def test_a_cancelled_send_gives_its_place_up() -> None:
    """Who waits behind it goes on, and nothing was charged for it."""

    async def scenario(pacer: Pacer, sent: Sent) -> None:
        await say(pacer, sent, "7")
        given_up = asyncio.ensure_future(say(pacer, sent, "7"))
        behind = asyncio.ensure_future(say(pacer, sent, "7"))
        await asyncio.sleep(0.5)
        given_up.cancel()
        await behind

    assert [round(at, 3) for at, _ in simulate(LIMITS, scenario)] == [0.0, 1.0]


def test_a_long_line_in_a_chat_is_not_joined() -> None:
    """Who could not be served in time is put off at once, with the time of its turn."""

    async def scenario(pacer: Pacer, _: Sent) -> None:
        line = [asyncio.ensure_future(say(pacer, [], "7")) for _ in range(11)]
        await asyncio.sleep(1e-9)
        with pytest.raises(SendDelayed) as caught:
            await pacer.wait("7", group=False)
        assert asyncio.get_running_loop().time() < 0.1
        assert caught.value.retry_after_s == pytest.approx(11.0, abs=1.0)
        await asyncio.gather(*line)

    simulate(LIMITS, scenario)


async def test_a_request_that_is_never_answered_counts_for_a_while(
    pacer: Pacer, clock: Clock
) -> None:
    """One on its way keeps the next one back by half a second at most, whoever tells when."""
    with await pacer.wait("7", group=False):
        clock.now += 1.2
        assert not pacer.try_preview("7", group=False)
        clock.now += 0.3
        assert pacer.try_preview("7", group=False)
        assert not pacer.try_preview("7", group=False)
    clock.now += 1.06
    assert not pacer.try_preview("7", group=False)
    clock.now += 0.01
    assert pacer.try_preview("7", group=False)


async def _times(limits: PaceLimits, share: Share, count: int) -> list[float]:
    """Return when one of several processes sends, to as many chats."""
    clock = Clock()
    pacer = Pacer(replace(limits, share=share), clock=clock, sleep=clock.sleep)
    return await sent_at(pacer, clock, [str(n) for n in range(count)], group=False)


def _most_in_a_second(times: list[float]) -> int:
    return max(sum(1 for each in times if at <= each < at + 1.0) for at in times)


@pytest.mark.parametrize("processes", [2, 3, 7, 30])
async def test_processes_share_the_budget_of_an_account(processes: int) -> None:
    """However they fall together, all of them send no more than one alone might."""
    share = Share()
    share.of = processes
    count = 4 * PATIENT.per_s // processes + 4
    times = await _times(PATIENT, share, count)
    assert _most_in_a_second(times * processes) <= PATIENT.per_s
    # Nothing of the budget is left over, but for what a whole number of messages leaves.
    assert times[-1] <= 1.06 * count / (PATIENT.per_s // processes)


async def test_with_more_processes_than_messages_each_waits_its_turn() -> None:
    """50 of them, 10 messages a second: each one sends every five seconds."""
    share = Share()
    share.of = 50
    patient = PaceLimits(per_s=10, chat_interval_s=1.0, max_wait_s=1000.0)
    times = await _times(patient, share, 4)
    assert [round(at) for at in times] == [0, 5, 10, 16]


async def test_a_budget_that_is_divided_anew_holds_at_once(clock: Clock) -> None:
    """Also for what was sent before."""
    share = Share()
    pacer = Pacer(replace(PATIENT, share=share), clock=clock, sleep=clock.sleep)
    await sent_at(pacer, clock, [str(n) for n in range(30)], group=False)
    share.of = 3
    later = await sent_at(pacer, clock, [f"later {n}" for n in range(12)], group=False)
    assert _most_in_a_second(later) <= PATIENT.per_s // 3


async def test_who_comes_late_waits_until_the_others_know(clock: Clock) -> None:
    """They send as much as before until then."""
    share = Share(clock)
    pacer = Pacer(replace(LIMITS, share=share), clock=clock, sleep=clock.sleep)
    share.hold(1.5)
    assert pacer.try_signal("7") is None
    assert await sent_at(pacer, clock, ["7"], group=False) == [1.5]


@pytest.mark.parametrize("processes", [2, 3, 7, 30])
async def test_processes_share_the_budgets_of_a_group(processes: int) -> None:
    """Several conversations of it may be with several of them, at the same moments."""
    share = Share()
    share.of = processes
    limits = replace(PATIENT, group_per_min=20, max_wait_s=1000.0)
    clock = Clock()
    pacer = Pacer(replace(limits, share=share), clock=clock, sleep=clock.sleep)
    times = await sent_at(pacer, clock, ["-7"] * 24, group=True)
    assert max(sum(at <= each < at + 60.0 for each in times * processes) for at in times) <= max(
        20, processes
    )
    apart = [later - at for at, later in itertools.pairwise(times)]
    assert min(apart) >= min(processes, 20) * 1.0


async def test_direct_chats_are_not_divided_but_groups_and_methods_are(clock: Clock) -> None:
    """One process sends what a direct chat shows; a method of an API is used by all."""
    share = Share()
    share.of = 4
    chat = Pacer(replace(PATIENT, share=share), clock=clock, sleep=clock.sleep)
    assert await sent_at(chat, clock, ["7"] * 3, group=False) == [0.0, 1.0, 2.0]
    began = clock.now
    groups = [at - began for at in await sent_at(chat, clock, ["-7"] * 3, group=True)]
    assert groups[1] - groups[0] == pytest.approx(4.2)
    limits = PaceLimits(
        per_s=20,
        chat_interval_s=0.0,
        chat_burst=20,
        group_per_min=20,
        group_preview_interval_s=0.0,
        share=share,
    )
    method = Pacer(limits, clock=clock, sleep=clock.sleep)
    taken = 0
    while previewed(method, "update", group=True):
        taken += 1
        clock.now += 1.0
    assert taken == 4
