"""The worker: bursts, queue modes, order within a chat, chats side by side, recovery of leases."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from gateway.errors import StorageUnavailable
from gateway.pipeline.next_turn import burst
from gateway.pipeline.turn import TurnRunner
from gateway.pipeline.worker import LONGEST_RETRY_S, TURNS_PER_LEASE, Slots
from gateway.settings.tree import QueueSettings
from gateway.storage import schema
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import blame, leases
from gateway.storage.queue.inbox import InboxEntry, merged_text
from gateway.storage.queue.leases import LONGEST_BACKOFF_S
from tests.support.engines import disk_is_full
from tests.support.gateway import HeldModel, newest_question, running
from tests.support.recording_adapter import RecordingAdapter
from tests.support.thorough import WAIT_S


async def test_a_message_gets_its_answer(tmp_path: Path) -> None:
    """One message, one turn, one answer, and all rows are closed."""
    async with running(tmp_path, ["Hello!"]) as chat:
        assert await chat.ask("Hi") == "Hello!"
        assert [row.state for row in await chat.rows(schema.inbox)] == ["done"]
        assert [(row.state, row.outcome) for row in await chat.rows(schema.turn)] == [
            ("done", "final_text")
        ]


class Clock:
    """Stands for the module `time` of the worker; it goes on when a test says so."""

    def __init__(self) -> None:
        self.now = -1.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which the worker knows whether a burst has paused: a slow machine makes no pause.

    It never looks at the line: it might claim there what it is about to be told of.
    """
    clock = Clock()
    monkeypatch.setattr("gateway.pipeline.worker.POLL_S", 3600.0)
    monkeypatch.setattr("gateway.pipeline.worker.time", clock)
    return clock


async def test_a_burst_becomes_one_turn(tmp_path: Path, clock: Clock) -> None:
    """Messages within the debounce are answered together, in their order."""
    async with running(tmp_path, queue={"debounce_ms": 50}) as chat:
        for text in ("one", "two", "three"):
            clock.now += 0.04
            await chat.say(text)
        clock.now += 0.06
        assert await chat.answers(1) == ["re: one\ntwo\nthree"]
        assert len(await chat.rows(schema.turn)) == 1


async def test_a_burst_that_never_pauses_is_answered_nevertheless(
    tmp_path: Path, clock: Clock
) -> None:
    """Somebody who does not stop writing waits for five debounces at most."""
    model = HeldModel()
    async with running(tmp_path, model, queue={"debounce_ms": 50, "max_pending": 10_000}) as chat:
        while not model.requests:
            clock.now += 0.04
            await chat.say("and")
            await asyncio.sleep(0)
        assert len(await chat.answers(1)) == 1


async def test_collect_merges_what_arrives_during_a_turn(tmp_path: Path) -> None:
    """Everything that waited is one next turn."""
    model = HeldModel()
    async with running(tmp_path, model) as chat:
        gate = model.hold("one")
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await chat.say("two")
        await chat.say("three")
        gate.set()
        assert await chat.answers(2) == ["re: one", "re: two\nthree"]


async def test_followup_gives_each_message_its_turn(tmp_path: Path) -> None:
    """Nothing is merged that was written apart."""
    model = HeldModel()
    async with running(tmp_path, model, queue={"mode": "followup"}) as chat:
        gate = model.hold("one")
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await chat.say("two")
        await chat.say("three")
        gate.set()
        assert await chat.answers(3) == ["re: one", "re: two", "re: three"]


async def test_interrupt_replaces_the_running_turn(tmp_path: Path) -> None:
    """The newer message ends the turn, and the model sees both messages."""
    model = HeldModel(begun="Once upon")
    async with running(tmp_path, model, queue={"mode": "interrupt"}) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: chat.adapter.previews)
        await chat.say("a short one")
        assert await chat.answers(2) == ["Once upon\n\n*[stopped]*", "re: a short one"]
        assert [row.state for row in await chat.rows(schema.turn)] == ["cancelled", "done"]
        asked = [text for m in model.requests[-1].messages if (text := m.get("content"))]
        assert asked[-3:] == ["a story", "Once upon\n\n*[stopped]*", "a short one"]


async def test_interrupt_leaves_an_idle_chat_alone(tmp_path: Path) -> None:
    """A message after an answer is an ordinary next turn."""
    async with running(tmp_path, queue={"mode": "interrupt"}) as chat:
        assert await chat.ask("one") == "re: one"
        assert await chat.ask("two") == "re: two"


def entry(seq: int, at: float, kind: str = "message") -> InboxEntry:
    return InboxEntry(1, seq, kind, "u1", "Una", f"text {seq}", None, at)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "expected"), [("collect", [1, 2, 3]), ("interrupt", [1, 2, 3]), ("followup", [1, 2])]
)
def test_burst_ends_at_a_pause_or_at_a_command(mode: str, expected: list[int]) -> None:
    """Only followup looks at the pauses; a command always keeps its place."""
    waiting = [entry(1, 0.0), entry(2, 0.1), entry(3, 2.0), entry(4, 2.1, "command")]
    queue = QueueSettings(mode=mode, debounce_ms=400)  # type: ignore[arg-type]
    assert [taken.seq for taken in burst(waiting, queue)] == expected


def test_merged_text_names_the_senders_of_a_shared_chat() -> None:
    """A chat of one person needs no names."""
    entries = [entry(1, 0), entry(2, 0)]
    assert merged_text(entries, named=True) == "Una: text 1\nUna: text 2"
    assert merged_text(entries, named=False) == "text 1\ntext 2"


async def test_answers_keep_the_order_of_their_chat(tmp_path: Path) -> None:
    """Forty messages over four chats: each chat gets its own answers, in its order."""
    chats = ("a", "b", "c", "d")
    async with running(tmp_path, queue={"mode": "followup"}) as chat:
        for n in range(10):
            for name in chats:
                await chat.say(f"{name}{n}", name)
        for name in chats:
            assert await chat.answers(10, name) == [f"re: {name}{n}" for n in range(10)]


async def test_a_slow_chat_delays_no_other(tmp_path: Path) -> None:
    """Others are answered while one waits for its model."""
    model = HeldModel()
    async with running(tmp_path, model) as chat:
        gate = model.hold("slow")
        await chat.say("slow", "a")
        await chat.until(lambda: model.waiting)
        assert await chat.ask("quick", "b") == "re: quick"
        assert chat.texts("a") == []
        gate.set()
        assert await chat.answers(1, "a") == ["re: slow"]


async def test_no_more_turns_run_at_once_than_allowed(tmp_path: Path) -> None:
    """The third chat waits for a free place, and gets it."""
    model = HeldModel()
    gates = [model.hold(name) for name in "abc"]
    async with running(tmp_path, model, queue={"max_concurrent_turns": 2}) as chat:
        for name in "abc":
            await chat.say(name, name)
        await chat.until(lambda: len(model.waiting) == 2)
        await chat.ask("/status", "c")
        assert len(model.waiting) == 2
        for gate in gates:
            gate.set()
        for name in "abc":
            assert f"re: {name}" in await chat.answers(2 if name == "c" else 1, name)


async def test_a_busy_chat_goes_to_the_end_of_the_line(tmp_path: Path) -> None:
    """After six turns the only place goes to the chat that waits."""
    model, settings = HeldModel(), {"mode": "followup", "max_concurrent_turns": 1}
    gate = model.hold("busy 0")
    async with running(tmp_path, model, queue=settings) as chat:
        for n in range(2 * TURNS_PER_LEASE):
            await chat.say(f"busy {n}", "a")
        await chat.until(lambda: model.waiting)
        await chat.say("patient", "b")
        gate.set()
        await chat.answers(2 * TURNS_PER_LEASE, "a")
        asked = [newest_question(request) for request in model.requests]
        assert asked.index("patient") <= TURNS_PER_LEASE + 1


@pytest.mark.thorough
async def test_a_failed_release_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation is still owned, so that the next claim serves it again."""
    real, failures = leases.release, iter([disk_is_full()] * 2)

    def release(*args: object, **options: object) -> None:
        if failure := next(failures, None):
            raise failure
        real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(leases, "release", release)
    # As if something waited behind the answer.
    commit = turn_journal.commit

    def keep(*answer: Any, releases: bool) -> Any:
        return commit(*answer, releases=not releases)

    monkeypatch.setattr(turn_journal, "commit", keep)
    async with running(tmp_path) as chat:
        assert await chat.ask("one") == "re: one"
        await chat.logged("release_failed")
        assert await chat.ask("two") == "re: two"


async def test_a_failed_claim_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk while claiming costs a second and nothing else."""
    real, failures = leases.claim, iter([disk_is_full()])

    def claim(*args: object) -> object:
        if failure := next(failures, None):
            raise failure
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(leases, "claim", claim)
    async with running(tmp_path) as chat:
        await chat.logged("claim_failed")
        assert await chat.ask("one") == "re: one"


@pytest.mark.thorough
async def test_a_failed_claim_with_a_turn_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was hinted at waits in the line."""
    real, failures = leases.take, iter([disk_is_full()])

    def take(*args: object, **how: object) -> object:
        if failure := next(failures, None):
            raise failure
        return real(*args, **how)  # type: ignore[arg-type]

    async with running(tmp_path) as chat:
        assert await chat.ask("zero") == "re: zero"
        monkeypatch.setattr(leases, "take", take)
        await chat.say("one")
        await chat.logged("claim_failed")
        assert await chat.answers(2) == ["re: zero", "re: one"]
        assert chat.events("turn_failed") == []


async def test_what_comes_while_a_turn_ends_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hint finds a task that has given the conversation back, and still counts."""
    monkeypatch.setattr("gateway.pipeline.worker.POLL_S", 3600.0)
    run = TurnRunner.run

    async def run_late(runner: TurnRunner, turn: Turn) -> bool:
        released = await run(runner, turn)
        if turn.id == 1:
            await chat.say("two")
            # The worker has looked at its hints when this comes back.
            await chat.rows(schema.inbox)
        return released

    monkeypatch.setattr(TurnRunner, "run", run_late)
    async with running(tmp_path) as chat:
        assert await chat.ask("one") == "re: one"
        assert await chat.answers(2) == ["re: one", "re: two"]


@pytest.mark.usefixtures("sqlite_alone")
async def test_who_waits_for_a_place_is_claimed_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is served in the order in which it came, also where the line was claimed meanwhile."""
    # The worker looks at the line when the test says so.
    monkeypatch.setattr("gateway.pipeline.worker.POLL_S", 3600.0)
    model = HeldModel()
    async with running(tmp_path, model, queue={"max_concurrent_turns": 2}) as chat:
        gates = [model.hold("busy a"), model.hold("busy b")]
        await chat.say("busy a", "a")
        await chat.say("busy b", "b")
        await chat.until(lambda: len(model.waiting) == 2)
        await chat.say("first", "c")
        await chat.until_rows(schema.inbox, lambda _: len(chat.gateway.worker._serving) == 3)
        assert [bool(row.owner) for row in await chat.rows(schema.conversation)] == [
            True,
            True,
            False,
        ]
        chat.gateway.worker.wake()
        await chat.until_rows(schema.conversation, lambda rows: bool(rows[-1].owner))
        await chat.say("second", "d")
        for gate in gates:
            gate.set()
        assert await chat.answers(1, "c") == ["re: first"]
        assert await chat.answers(1, "d") == ["re: second"]
        assert [row.epoch for row in await chat.rows(schema.conversation)] == [1, 1, 1, 1]


async def test_a_lost_wake_up_is_noticed_within_a_second(tmp_path: Path) -> None:
    """Rows are the truth: hints only save time."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("one")
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: one"]


async def test_a_claim_that_begins_nothing_is_logged_and_waits_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ready and cannot be read does not spin; it is answered once its rows are whole."""
    monkeypatch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 0.0)
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("one")
        await chat.execute(update(schema.conversation).values(active_session_id=None))
    async with running(tmp_path) as chat:
        failed = await chat.logged("turn_failed", 2)
        assert failed["conversation"] == 1
        await chat.execute(update(schema.conversation).values(active_session_id=1))
        chat.gateway.worker.wake()
        assert await chat.answers(1) == ["re: one"]


async def test_a_stuck_conversation_is_found_by_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work without a place in the line is reported and answered."""
    monkeypatch.setattr("gateway.pipeline.worker.SWEEP_S", 0.05)
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("one")
        await chat.execute(update(schema.conversation).values(ready_no=None))
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: one"]
        assert chat.events("stuck_conversations_found")[0]["count"] == 1


async def test_what_was_dropped_is_not_remembered(tmp_path: Path, clock: Clock) -> None:
    """A stopped burst is never served; the sweep forgets when it arrived."""
    async with running(tmp_path, queue={"debounce_ms": 60_000}) as chat:
        await chat.say("one")
        assert "dropped" in await chat.ask("/stop")
        assert chat.gateway.worker._arrived
        clock.now += 61
        await chat.gateway.worker._sweep()
        assert not chat.gateway.worker._arrived


def test_every_stored_back_off_is_shorter_than_what_shows_a_clock_set_back() -> None:
    """What is held for longer is claimed at once, so a longer back-off would not hold at all."""
    stored = (LONGEST_RETRY_S, blame.LONGEST_QUIET_S)
    assert max(stored) < LONGEST_BACKOFF_S


async def test_a_failed_sweep_is_logged_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stuck conversations that could not be looked for end nothing."""

    def ready_stuck(*_: object) -> int:
        raise StorageUnavailable("the disk is full")

    monkeypatch.setattr("gateway.pipeline.worker.SWEEP_S", 0.01)
    monkeypatch.setattr(leases, "ready_stuck", ready_stuck)
    async with running(tmp_path) as chat:
        await chat.logged("sweep_failed", 2)
        assert await chat.ask("one") == "re: one"


async def test_work_that_is_dropped_is_done_by_who_has_it(tmp_path: Path) -> None:
    """Others took this replica for dead: its turns end, write nothing, and begin again."""
    model = HeldModel()
    gate = model.hold("one")
    async with running(tmp_path, model) as chat:
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        taken = update(schema.conversation).values(owner=None, epoch=7, ready_no=1)
        await chat.execute(taken)
        await chat.gateway.worker.drop()
        gate.set()
        assert await chat.answers(1) == ["re: one"]
        assert [row.state for row in await chat.rows(schema.turn)] == ["done"]


async def test_between_two_ids_nothing_is_claimed(tmp_path: Path) -> None:
    """A replica that begins anew takes work once it has its new id."""
    async with running(tmp_path) as chat:
        chat.gateway.replica.is_in = False
        await chat.say("one")
        worker = chat.gateway.worker
        async with asyncio.timeout(WAIT_S):
            while worker._hinted:  # noqa: ASYNC110 - it may be in its first claim
                await asyncio.sleep(0)
        assert worker.serving == 0
        assert not await chat.rows(schema.turn)
        chat.gateway.replica.is_in = True
        worker.wake()
        assert await chat.answers(1) == ["re: one"]


async def test_a_turn_whose_lease_was_lost_writes_nothing(tmp_path: Path) -> None:
    """Another owner's epoch: the answer is dropped, and the worker goes on."""
    model = HeldModel()
    gate = model.hold("one")
    async with running(tmp_path, model) as chat:
        await chat.say("one", "a")
        await chat.until(lambda: model.waiting)
        await chat.execute(update(schema.conversation).values(epoch=99))
        gate.set()
        await chat.logged("lease_lost")
        assert [m["role"] for m in await chat.transcript()] == ["user"]
        assert await chat.ask("two", "b") == "re: two"


async def test_conversations_of_other_accounts_stay_untouched(tmp_path: Path) -> None:
    """What waits for a platform that is off is answered when it is on again."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("one")
    async with running(tmp_path, adapter=RecordingAdapter("slack")) as chat:
        assert await chat.ask("two", platform="slack") == "re: two"
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: one"]


async def settle() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Runs:
    """Turns that take a place and note it, until their gate is open."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.begun: list[str] = []
        self.gate = asyncio.Event()

    async def turn(self, name: str, trial_s: float | None = None) -> None:
        """Run one; a suspect where it has a trial."""
        place = self.slots.taken() if trial_s is None else self.slots.on_trial(trial_s)
        async with place:
            self.begun.append(name)
            await self.gate.wait()


def held_by(slots: Slots) -> dict[str, object]:
    """Return all that an object holds."""
    found = vars(slots).items()
    return {name: each.locked() if name == "_trial" else each for name, each in found}


async def test_suspects_take_no_places_of_others() -> None:
    """Whatever suspects do, as many turns run beside them as without them."""
    runs = Runs(Slots(2))
    async with asyncio.TaskGroup() as tasks:
        for name in ("suspect 1", "suspect 2"):
            tasks.create_task(runs.turn(name, trial_s=3600.0))
        for name in ("a", "b", "c"):
            tasks.create_task(runs.turn(name))
        await settle()
        assert runs.begun == ["suspect 1", "a", "b"]
        assert runs.slots.suspects == 2
        runs.gate.set()
    assert sorted(runs.begun) == ["a", "b", "c", "suspect 1", "suspect 2"]
    assert held_by(runs.slots) == held_by(Slots(2))


async def test_a_suspect_waits_until_the_trial_of_another_is_over() -> None:
    """Not until that turn has ended: it may take an hour."""
    runs = Runs(Slots(2))
    async with asyncio.TaskGroup() as tasks:
        for name in ("suspect 1", "suspect 2"):
            tasks.create_task(runs.turn(name, trial_s=0.0))
        await settle()
        assert runs.begun == ["suspect 1", "suspect 2"]
        runs.gate.set()


async def test_a_suspect_that_has_ended_makes_room_for_the_next_trial() -> None:
    """Its trial is over with it; what its timer does later is nothing."""
    runs = Runs(Slots(1))
    runs.gate.set()
    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(runs.turn(f"suspect {number}", trial_s=3600.0))
    assert runs.begun == ["suspect 0", "suspect 1", "suspect 2"]


async def test_there_can_be_more_places_and_fewer() -> None:
    """Whoever waits gets one at once; turns that have one too many end as they would."""
    runs = Runs(Slots(1))
    async with asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(runs.turn(name)) for name in ("a", "b", "c", "d")]
        await settle()
        assert runs.begun == ["a"]
        runs.slots.resize(3)
        await settle()
        assert runs.begun == ["a", "b", "c"]
        runs.slots.resize(1)
        work[0].cancel()
        await settle()
        assert runs.begun == ["a", "b", "c"]
        work[1].cancel()
        work[2].cancel()
        await settle()
        assert runs.begun == ["a", "b", "c", "d"]
        runs.gate.set()


async def test_free_places_that_are_too_many_go_at_once() -> None:
    """Also where no turn runs that could give one back."""
    runs = Runs(Slots(3))
    runs.slots.resize(1)
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b", "c"):
            tasks.create_task(runs.turn(name))
        await settle()
        assert runs.begun == ["a"]
        runs.gate.set()
    assert runs.begun == ["a", "b", "c"]


async def test_who_waits_for_a_place_no_longer_takes_none() -> None:
    """The next in line gets it."""
    runs = Runs(Slots(1))
    async with asyncio.TaskGroup() as tasks:
        first, second, _ = [tasks.create_task(runs.turn(name)) for name in ("a", "b", "c")]
        await settle()
        second.cancel()
        first.cancel()
        await settle()
        assert runs.begun == ["a", "c"]
        runs.gate.set()


class Steps:
    """Turns that come, end and are cancelled while the number of places changes."""

    def __init__(self) -> None:
        self.limit = 1
        self.slots = Slots(self.limit)
        self.begun: set[int] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: list[asyncio.Event] = []

    async def turn(self, number: int) -> None:
        """Take a place: whoever came before, and has not begun, has one by then."""
        async with self.slots.taken():
            self.begun.add(number)
            alive = self.alive()
            first = [each for each in alive[: alive.index(number)] if each not in self.begun]
            first = [each for each in first if not self.tasks[each].cancelling()]
            assert self.slots.running >= len(self.begun.intersection(alive)) + len(first)
            await self.ends[number].wait()

    def alive(self) -> list[int]:
        """Return the turns that have not ended, in the order in which they came."""
        return [number for number, task in enumerate(self.tasks) if not task.done()]

    def do(self, kind: str, at: int) -> None:
        """Take one step; which turn it is about, or how many places there are, is up to `at`."""
        alive = self.alive()
        if kind == "take":
            self.ends.append(asyncio.Event())
            self.tasks.append(asyncio.ensure_future(self.turn(len(self.tasks))))
        elif kind == "resize":
            self.limit = 1 + at % 4
            self.slots.resize(self.limit)
        elif alive and kind == "end":
            self.ends[alive[at % len(alive)]].set()
        elif alive:
            self.tasks[alive[at % len(alive)]].cancel()

    def check(self) -> None:
        """Look at places when all tasks have gone on as far as they can."""
        alive = self.alive()
        has_begun = self.begun.intersection(alive)
        assert self.slots.running == len(has_begun)
        assert len(has_begun) == len(alive) or len(has_begun) >= self.limit


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "take", "end", "cancel", "resize"]),
            st.integers(0, 11),
            st.booleans(),
        ),
        min_size=20,
        max_size=60,
    )
)
def test_places_are_never_lost_nor_too_many(steps: list[tuple[str, int, bool]]) -> None:
    """First come, first served, whatever ends; an idle one is the same as a new one."""

    async def run() -> None:
        all_of = Steps()
        for kind, at, settles in steps:
            before = all_of.slots.running
            all_of.do(kind, at)
            assert all_of.slots.running <= max(before, all_of.limit)
            for _ in range(10 * settles):
                before = all_of.slots.running
                await asyncio.sleep(0)
                assert all_of.slots.running <= max(before, all_of.limit)
            if settles:
                all_of.check()
        for end in all_of.ends:
            end.set()
        for _ in all_of.ends:
            await settle()
        assert not all_of.alive()
        assert not [task for task in all_of.tasks if not task.cancelled() and task.exception()]
        assert held_by(all_of.slots) == held_by(Slots(all_of.limit))

    asyncio.run(run())
