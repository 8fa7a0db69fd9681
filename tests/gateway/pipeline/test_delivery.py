"""Delivery: order, refusals of every kind, doubts, restarts, one chat beside another.

Messages that are given up: dead letters, and who is told of them, once for each trouble.
"""

import asyncio
import re
import threading
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, update

from adapters.base import FENCE
from adapters.errors import ChatMoved, SendDelayed, SendRejected, SendUnknown
from adapters.messages import Address, Choice
from gateway.access.policy import Access, Owners
from gateway.pipeline import delivery
from gateway.pipeline.delivery import (
    DAY_S,
    LONGEST_DELAY_S,
    MOST_FAILURES,
    NOTICE_PATIENCE,
    Burials,
    backoff_s,
    least_failures,
)
from gateway.pipeline.notices import EXPIRED, UNSHOWN
from gateway.replicas.shared_replica import SharedReplica
from gateway.settings.tree import AccessSettings
from gateway.storage import schema
from gateway.storage.people import members
from gateway.storage.queue import dead_letters, outbox, sending
from gateway.storage.queue.outbox import OutboxPart
from gateway.storage.queue.sending import Due
from tests.support.engines import disk_is_full
from tests.support.gateway import Running, running
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import Store, admit, forget, inbound, part, statements_of

pytestmark = pytest.mark.usefixtures("no_backoff")


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have failed sends tried again at once."""
    monkeypatch.setattr(delivery, "backoff_s", lambda _attempt: 0.0)
    monkeypatch.setattr(delivery, "STORAGE_RETRY_S", 0.0)


async def take_off(chat: Running) -> None:
    """Have a question asked, and the buttons below it taken off."""
    asked = OutboxPart(
        "inquiry:1:buttons:1", "May I?", "May I?", choices=(Choice("Yes", "/approve 1"),)
    )

    def ask(conn: Connection) -> int:
        [place] = conn.scalars(select(schema.conversation.c.id))
        outbox.append(conn, place, [asked], inbox_seq=1)
        outbox.withdraw(conn, place, "inquiry:1", "stopped", 1)
        outbox.append(conn, place, [OutboxPart("k", "more", "more")], inbox_seq=1)
        return int(place)

    await chat.ask("one")
    chat.gateway.delivery.notify(await chat.gateway.database.write(ask))


async def test_buttons_are_taken_off_behind_what_is_said(tmp_path: Path) -> None:
    """By the id that their question was shown with; a short pause is waited for."""
    adapter = RecordingAdapter()
    adapter.withdrawal_failures.append(SendDelayed("flood", 0.01))
    async with running(tmp_path, adapter=adapter) as chat:
        await take_off(chat)
        await chat.until(lambda: len(adapter.withdrawn) == 2)
        assert await row_states(chat) == ["sent"] * 4
        assert [off.message_ref for off in adapter.withdrawn] == ["m2", "m2"]
        shown = [text for kind, text in adapter.order if kind != "preview"]
        assert shown == ["re: one", "May I?", "more", "stopped"]


@pytest.mark.parametrize(
    ("failures", "tries"),
    [
        ([SendDelayed("flood", 6.0)], 1),
        ([SendDelayed("flood", 0.0)] * 3, 3),
        ([SendRejected("it is gone")], 1),
        ([ValueError("a flaw")], 1),
    ],
    ids=["long", "again and again", "gone", "flaw"],
)
async def test_buttons_hold_nothing_up(
    tmp_path: Path, failures: list[Exception], tries: int
) -> None:
    """They stay where they are when they cannot be taken off soon; that is no dead letter."""
    adapter = RecordingAdapter()
    adapter.withdrawal_failures += failures
    async with running(tmp_path, adapter=adapter) as chat:
        await take_off(chat)
        await chat.logged("buttons_left")
        assert await row_states(chat) == ["sent", "sent", "dropped", "sent"]
        assert len(adapter.withdrawn) == tries
        assert await chat.ask("two") == "re: two"


async def test_a_platform_that_hangs_keeps_its_buttons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For good: what stands behind them is shown."""
    adapter = RecordingAdapter()
    monkeypatch.setattr(delivery, "WITHDRAWAL_S", 0.01)
    monkeypatch.setattr(adapter, "withdraw", lambda _: asyncio.Event().wait())
    async with running(tmp_path, adapter=adapter) as chat:
        await take_off(chat)
        assert (await chat.logged("buttons_left"))["reason"] == "the platform takes too long"
        assert await chat.ask("two") == "re: two"


async def row_states(chat: Running) -> list[str]:
    await chat.gateway.delivery.wait_idle()
    return [row.state for row in await chat.rows(schema.outbox)]


async def test_the_parts_of_an_answer_keep_their_order(tmp_path: Path) -> None:
    """They go out one after another, each with its receipt."""
    async with running(tmp_path, adapter=RecordingAdapter(chunk_chars=3)) as chat:
        await chat.say("abcde")
        assert await chat.answers(3) == ["re:", " ab", "cde"]
        assert await row_states(chat) == ["sent"] * 3
        assert [row.platform_ref for row in await chat.rows(schema.outbox)] == ["m1", "m2", "m3"]


async def test_a_failure_keeps_the_order(tmp_path: Path) -> None:
    """What follows a delayed part waits for it."""
    adapter = RecordingAdapter(chunk_chars=3)
    adapter.failures["c1"].append(SendDelayed("slow down", 0))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("abcde")
        assert await chat.answers(3) == ["re:", " ab", "cde"]


async def test_retry_after_schedules_the_row(tmp_path: Path) -> None:
    """The row waits as long as the platform asks, in the database."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendDelayed("flood", 30))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        assert (await chat.logged("send_delayed"))["delay_s"] == 30
        [row] = await chat.until_rows(schema.outbox, lambda rows: rows[0].next_at > 0)
        assert 29 < row.next_at - row.at < 60
        assert (row.error, len(adapter.attempts)) == ("flood", 1)


async def test_a_row_is_sent_when_its_time_has_come(tmp_path: Path) -> None:
    """Not before, and without another hint."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendDelayed("flood", 0.2))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.answers(1)
        await chat.gateway.delivery.wait_idle()
        [row] = await chat.rows(schema.outbox)
        assert row.sent_at - row.at >= 0.2
        assert (row.state, row.error) == ("sent", None)


async def test_a_platform_cannot_hold_a_row_for_ever(tmp_path: Path) -> None:
    """More than an hour is not believed."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendDelayed("flood", 1e9))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        assert (await chat.logged("send_delayed"))["delay_s"] == 3600


async def test_a_clock_that_was_set_back_holds_nothing(tmp_path: Path) -> None:
    """A row due in more than an hour shows that; it is sent now."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/help")
        later = schema.now_s() + 2 * 3600
        await chat.execute(update(schema.outbox).values(next_at=later))
    async with running(tmp_path) as chat:
        assert len(await chat.answers(1)) == 1


async def test_a_clock_that_is_set_back_does_not_lengthen_a_pause(tmp_path: Path) -> None:
    """How long this process wanted to wait is measured on its own clock."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendDelayed("flood", 0.5))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until_rows(schema.outbox, lambda rows: bool(rows) and rows[0].failures == 1)
        later = schema.outbox.c.next_at + 1800
        await chat.execute(update(schema.outbox).values(next_at=later))
        assert await chat.answers(1) == ["re: one"]


async def test_a_doubt_is_handed_to_the_next_attempt(tmp_path: Path) -> None:
    """The adapter resolves it, or marks the text; the nonce stays the same."""
    adapter = RecordingAdapter()
    adapter.failures["c1"] += [SendUnknown("timeout"), SendDelayed("flood", 0)]
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.ask("one")
        assert [it.outcome_unknown for it in adapter.attempts] == [False, True, True]
        assert len({it.nonce for it in adapter.attempts}) == 1
        assert re.fullmatch("[0-9a-f]{24}", adapter.attempts[0].nonce)
        assert await row_states(chat) == ["sent"]
        assert (await chat.rows(schema.outbox))[0].resent == 1
        assert len(chat.events("send_outcome_unknown")) == 1


async def test_different_rows_have_different_nonces(tmp_path: Path) -> None:
    """Else the second would be taken for the first."""
    async with running(tmp_path, adapter=RecordingAdapter(chunk_chars=3)) as chat:
        await chat.say("abcde")
        await chat.answers(3)
        assert len({it.nonce for it in chat.adapter.attempts}) == 3


async def test_a_rejected_message_is_buried_and_the_next_goes_on(tmp_path: Path) -> None:
    """A dead letter with the platform's reason, not a blockade."""
    adapter = RecordingAdapter(chunk_chars=3)
    adapter.failures["c1"].append(SendRejected("bot was blocked"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("abcde")
        assert (await chat.answers(2))[:2] == [" ab", "cde"]
        assert (await row_states(chat))[:3] == ["dead", "sent", "sent"]
        [letter] = await chat.gateway.database.read(dead_letters.find_all)
        assert (letter.id, letter.reason) == ("s1.1", "bot was blocked")
        assert letter.text == "re: abcde"


async def test_an_unexpected_exception_is_a_doubt(tmp_path: Path) -> None:
    """A bug in the adapter may have struck after the message was shown."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(KeyError("bug"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.ask("one")
        assert [it.outcome_unknown for it in adapter.attempts] == [False, True]
        assert len(chat.events("send_failed")) == 1


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_message_that_always_breaks_is_buried(tmp_path: Path, idempotent: bool) -> None:
    """After five attempts the chat goes on without it, on every kind of platform."""
    adapter = RecordingAdapter(idempotent=idempotent)
    adapter.failures["c1"] += [KeyError("bug")] * MOST_FAILURES
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        assert "KeyError" in (await chat.logged("message_buried"))["reason"]
        assert (await chat.answers(1)) == [UNSHOWN]
        assert await chat.ask("two") == "re: two"
        assert len(adapter.attempts) == MOST_FAILURES + 2


async def test_an_outage_does_not_count_as_a_flaw(tmp_path: Path) -> None:
    """A row that had to wait often is not buried because of one exception."""
    adapter = RecordingAdapter()
    adapter.failures["c1"] += [SendDelayed("down", 0)] * MOST_FAILURES
    adapter.failures["c1"].append(KeyError("bug"))
    async with running(tmp_path, adapter=adapter) as chat:
        assert await chat.ask("one") == "re: one"


async def test_a_doubt_is_tried_again_and_again(tmp_path: Path) -> None:
    """A resend whose outcome is unknown, too, is no reason to give up."""
    adapter = RecordingAdapter()
    adapter.failures["c1"] += [SendUnknown("reset")] * 12
    async with running(tmp_path, adapter=adapter) as chat:
        assert await chat.ask("one") == "re: one"
        assert [it.outcome_unknown for it in adapter.attempts] == [False] + [True] * 12
        assert chat.events("message_buried") == []
        assert await row_states(chat) == ["sent"]


async def test_a_lost_hint_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are the truth: what nobody told delivery about is found by its sweep."""
    monkeypatch.setattr(delivery, "SWEEP_S", 0.01)
    async with running(tmp_path) as chat:
        chat.gateway.intake._wakeups.outbox._listeners.clear()
        await chat.say("/help")
        assert len(await chat.answers(1)) == 1


async def test_a_chat_that_hangs_delays_no_other(tmp_path: Path) -> None:
    """Each conversation has a task of its own."""
    adapter = RecordingAdapter()
    gate = adapter.held["a"] = asyncio.Event()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one", "a")
        await chat.until(lambda: adapter.attempts)
        assert await chat.ask("two", "b") == "re: two"
        assert chat.texts("a") == []
        gate.set()
        assert await chat.answers(1, "a") == ["re: one"]


async def test_turns_do_not_wait_for_sends(tmp_path: Path) -> None:
    """The next message is answered while the platform does not take the first answer."""
    adapter = RecordingAdapter()
    gate = adapter.held["c1"] = asyncio.Event()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until(lambda: adapter.attempts)
        await chat.say("two")
        await chat.logged("turn_finished", 2)
        gate.set()
        assert await chat.answers(2) == ["re: one", "re: two"]


async def test_what_an_earlier_process_left_is_sent(tmp_path: Path) -> None:
    """At start, without a hint."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/help", "a")
        await chat.say("/help", "b")
    async with running(tmp_path) as chat:
        await chat.answers(1, "a")
        await chat.answers(1, "b")
        assert [sent.outcome_unknown for sent in chat.adapter.shown] == [False, False]


async def test_a_crash_during_a_send_leaves_a_doubt(tmp_path: Path) -> None:
    """Whether it was shown is unknown: the next process says so to the adapter."""
    adapter = RecordingAdapter()
    adapter.held["c1"] = asyncio.Event()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until(lambda: adapter.attempts)
        assert [row.state for row in await chat.rows(schema.outbox)] == ["sending"]
    async with running(tmp_path) as chat:
        await chat.answers(1)
        assert chat.adapter.shown[0].outcome_unknown
        assert chat.adapter.shown[0].nonce == adapter.attempts[0].nonce


async def test_a_receipt_whose_sender_is_cancelled_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is shown: sent again by the next process it would be there twice."""
    stored, begun, gate = sending.mark_sent, threading.Event(), threading.Event()

    def slowly(*args: Any) -> bool:
        begun.set()
        assert gate.wait(30)
        return stored(*args)

    monkeypatch.setattr(sending, "mark_sent", slowly)
    async with running(tmp_path) as chat:
        await chat.say("hi")
        assert await asyncio.to_thread(begun.wait, 30)
        [sender] = [each for each in asyncio.all_tasks() if each.get_name() == "send 1"]
        sender.cancel()
        gate.set()
        await chat.until_rows(schema.outbox, lambda rows: rows[0].state == "sent")


@pytest.mark.parametrize("is_taken", [False, True], ids=["nobody's", "another's"])
async def test_a_process_that_stood_still_sends_what_is_still_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_taken: bool
) -> None:
    """It sends nothing under a lease that is over, and looks whose the row is then."""
    held = chain([False], repeat(True))
    adapter = RecordingAdapter()
    # The tasks of a gateway without other replicas have the fence of this one.
    FENCE.set(lambda: next(held))
    monkeypatch.setattr(SharedReplica, "holds", lambda *_: next(held))
    async with running(tmp_path, adapter=adapter) as chat:
        if is_taken:
            monkeypatch.setattr(sending, "postpone", taken_by_another)
        await chat.say("hello")
        await chat.logged("send_delayed")
        if is_taken:
            await chat.until_rows(schema.outbox, lambda rows: rows[0].state == "sent")
        else:
            assert await chat.answers(1) == ["re: hello"]
        assert len(adapter.shown) == (0 if is_taken else 1)
        assert not any(sent.outcome_unknown for sent in adapter.shown)


def taken_by_another(conn: Connection, *_: Any, **__: Any) -> None:
    """Stand for another replica, which has sent the row."""
    conn.execute(update(schema.outbox).values(state="sent"))


async def test_idempotent_platforms_need_no_mark(tmp_path: Path) -> None:
    """Sending twice shows once there, so that there is no doubt after a crash."""
    adapter = RecordingAdapter(idempotent=True)
    adapter.held["c1"] = asyncio.Event()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until(lambda: adapter.attempts)
        assert [row.state for row in await chat.rows(schema.outbox)] == ["pending"]
    async with running(tmp_path, adapter=RecordingAdapter(idempotent=True)) as chat:
        await chat.answers(1)
        assert not chat.adapter.shown[0].outcome_unknown


@pytest.mark.parametrize(
    ("function", "idempotent"),
    [("mark_sending", False), ("mark_sent", False), ("mark_sent", True)],
)
async def test_a_full_disk_shows_a_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, idempotent: bool
) -> None:
    """A mark or receipt that cannot be stored for a while neither blocks the chat nor repeats."""
    real = getattr(sending, function)
    failures = iter([disk_is_full()] * 2)

    def failing(*args: object, **options: object) -> object:
        if failure := next(failures, None):
            raise failure
        return real(*args, **options)

    monkeypatch.setattr(sending, function, failing)
    adapter = RecordingAdapter(idempotent=idempotent)
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until_rows(schema.outbox, lambda rows: bool(rows) and rows[0].state == "sent")
        shown = len(chat.texts())
        assert await chat.ask("two") == "re: two"
        assert shown == 1 or idempotent


async def test_a_retried_send_is_tried_again(tmp_path: Path) -> None:
    """The operator puts a dead letter back, and its attempts begin anew."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendRejected("blocked"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.logged("message_buried")
        await chat.gateway.database.write(dead_letters.retry, "s1.1")
        chat.gateway.delivery.notify(1)
        assert sorted(await chat.answers(2)) == [UNSHOWN, "re: one"]
        assert await chat.gateway.database.read(dead_letters.find_all) == []


async def test_a_hint_for_a_platform_that_is_off_harms_nobody(tmp_path: Path) -> None:
    """Rows of an account without an adapter wait; the others are sent."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/help")
    async with running(tmp_path, adapter=RecordingAdapter("slack")) as chat:
        chat.gateway.delivery.notify(1)
        assert await chat.ask("two", platform="slack") == "re: two"
    async with running(tmp_path) as chat:
        assert len(await chat.answers(1)) == 1


async def test_an_idle_delivery_says_so(tmp_path: Path) -> None:
    """A stop waits for what is committed, and for nothing else."""
    adapter = RecordingAdapter()
    gate = adapter.held["c1"] = asyncio.Event()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.gateway.delivery.wait_idle()
        await chat.say("/help")
        idle = asyncio.ensure_future(chat.gateway.delivery.wait_idle())
        await chat.until(lambda: adapter.attempts)
        assert not idle.done()
        gate.set()
        await idle
        assert len(chat.texts()) == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_receipt_tells_whether_more_is_to_be_sent(tmp_path: Path) -> None:
    """Nobody looks for another row behind the last one."""
    async with running(tmp_path) as chat:
        # The look at what an earlier process left would find it.
        await chat.gateway.delivery.wait_idle()
        with statements_of(chat.gateway.database._connection) as statements:
            await chat.ask("one")
            await chat.gateway.delivery.wait_idle()
        verbs = [each.split()[0] for each in statements if each.endswith(" outbox")]
        assert verbs == ["INSERT", "SELECT", "UPDATE", "UPDATE"]


async def test_every_receipt_has_its_line(tmp_path: Path) -> None:
    """With the age of the message and without its text."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        line = await chat.logged("message_sent")
        assert {"conversation": 1, "seq": 1, "platform": "telegram", "resent": False}.items() <= (
            line.items()
        )
        assert line["age_ms"] >= 0


@pytest.mark.parametrize(("attempt", "bound"), [(0, 1), (1, 2), (3, 8), (20, LONGEST_DELAY_S)])
def test_the_back_off_grows_to_its_bound(attempt: int, bound: float) -> None:
    """Doubling, spread by a fifth."""
    drawn = [backoff_s(attempt) for _ in range(50)]
    assert all(0.8 * bound <= delay <= 1.2 * bound for delay in drawn)
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(("retry_for_s", "tries"), [(1, 1), (60, 5), (86_400, 366)])
def test_the_least_number_of_tries_takes_half_of_the_time(retry_for_s: float, tries: int) -> None:
    """With their back-offs, so that a clock that jumps ahead cannot bury what was hardly tried."""
    assert least_failures(retry_for_s) == tries


@pytest.mark.parametrize(("pause_s", "tries"), [(1, 1), (LONGEST_DELAY_S, 1), (3600, 30)])
async def test_a_long_pause_counts_as_the_tries_that_fit_into_it(
    tmp_path: Path, pause_s: float, tries: int
) -> None:
    """A platform that always asks for an hour would be tried for 15 days, not for one."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendDelayed("flood", pause_s))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        [row] = await chat.until_rows(schema.outbox, lambda rows: any(it.failures for it in rows))
        assert row.failures == tries


async def test_a_chat_that_moved_is_followed(tmp_path: Path) -> None:
    """The same row is sent to the new id, and so is what is said there later."""
    adapter = RecordingAdapter()
    adapter.failures["-5"].append(ChatMoved("-1005"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one", chat="-5")
        assert await chat.answers(1, chat="-1005") == ["re: one"]
        assert await chat.ask("two", chat="-1005") == "re: two"
        assert await row_states(chat) == ["sent", "sent"]


@pytest.mark.parametrize("new_chat", ["-5", "-7"])
async def test_a_chat_that_cannot_be_followed_is_a_dead_letter(
    tmp_path: Path, new_chat: str
) -> None:
    """It claims to have moved to itself, or to where another conversation is."""
    adapter = RecordingAdapter()
    adapter.failures["-5"].append(ChatMoved(new_chat))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.ask("here already", chat="-7")
        await chat.say("one", chat="-5")
        line = await chat.logged("message_buried")
        assert line["reason"] == f"the chat has moved to {new_chat}, where I cannot follow"


TRIED = least_failures(DAY_S)
ACCOUNT = ("telegram", "default")


@pytest.fixture
def burials() -> Burials:
    """The burials of a gateway whose owner is 1 on Telegram."""
    access = Access(AccessSettings(owners=("telegram:1",)))
    return Burials(Owners(access, {ACCOUNT: lambda markdown: [markdown]}))


@pytest.fixture
def owner(store: Store) -> int:
    """The owner's direct chat."""
    return chat_of(store, "1")


def chat_of(store: Store, sender: str) -> int:
    return store.run(admit, inbound(chat=sender, sender=sender))[0]


def due_in(store: Store, chat: int, key: str = "k", *, old_s: float = 0.0) -> Due:
    """Have something to be shown in a chat; return what is due there first."""
    store.run(outbox.append, chat, [part(key)], inbox_seq=1)
    change = update(schema.outbox).where(schema.outbox.c.source_key == key)
    store.run(lambda conn: conn.execute(change.values(at=schema.now_s() - old_s)))
    due = store.run(sending.next_due, chat)
    assert due is not None
    return due


def texts_in(store: Store, chat: int) -> list[str]:
    """Return what waits to be shown in a chat."""
    rows = store.rows(schema.outbox, conversation=chat, state="pending")
    return [row.payload for row in rows]


async def left_behind(home: Path, *, age_s: float, failures: int) -> None:
    """Leave an answer in chat c1 that an earlier process has tried so often."""
    async with running(home, at_work=False) as chat:
        await chat.say("/help")
        values = {"at": schema.now_s() - age_s, "failures": failures}
        await chat.execute(update(schema.outbox).values(**values))


def failing(error: Exception, times: int) -> RecordingAdapter:
    adapter = RecordingAdapter()
    adapter.failures["c1"] += [error] * times
    return adapter


@pytest.mark.parametrize("error", [SendDelayed("down", 0), SendUnknown("reset")])
async def test_what_is_not_delivered_for_a_day_is_given_up_and_told(
    tmp_path: Path, error: Exception
) -> None:
    """Its chat reads it as soon as anything goes out; the answer is a dead letter."""
    await left_behind(tmp_path, age_s=DAY_S + 60, failures=TRIED)
    async with running(tmp_path, adapter=failing(error, 3)) as chat:
        assert await chat.answers(1) == [EXPIRED]
        [letter] = await chat.gateway.database.read(dead_letters.find_all)
        assert (letter.id, "not delivered within a day" in letter.reason) == ("s1.1", True)


@pytest.mark.thorough
@pytest.mark.parametrize(("age_s", "failures"), [(DAY_S + 60, 3), (DAY_S - 60, TRIED)])
async def test_age_or_tries_alone_bury_nothing(tmp_path: Path, age_s: float, failures: int) -> None:
    """A clock that is set forward makes all rows old, but none of them tried for long."""
    await left_behind(tmp_path, age_s=age_s, failures=failures)
    async with running(tmp_path, adapter=failing(SendDelayed("down", 0), 1)) as chat:
        [shown] = await chat.answers(1)
        assert shown != EXPIRED
        assert chat.events("message_buried") == []


async def test_a_notice_does_not_expire_with_the_rest(tmp_path: Path) -> None:
    """It is told after an outage of days; what waits behind it expires meanwhile, too."""
    adapter = failing(SendDelayed("down", 0), 3)
    await left_behind(tmp_path, age_s=DAY_S + 60, failures=TRIED)
    async with running(tmp_path, at_work=False) as chat:
        await chat.execute(_as_notice(DAY_S * NOTICE_PATIENCE - 60))
        await chat.say("/status")
        old = schema.now_s() - DAY_S - 60
        await chat.execute(update(schema.outbox).where(schema.outbox.c.seq == 2).values(at=old))
    async with running(tmp_path, adapter=adapter) as chat:
        assert len(await chat.answers(2)) == 2
        await chat.gateway.delivery.wait_idle()
        rows = await chat.rows(schema.outbox)
        assert [row.state for row in rows] == ["sent", "dead", "sent"]


def _as_notice(age_s: float) -> Any:
    values = {"source_key": "dead:9:1:1", "at": schema.now_s() - age_s}
    return update(schema.outbox).values(**values)


async def test_nobody_is_told_of_a_notice_that_cannot_be_delivered(tmp_path: Path) -> None:
    """It is dropped, whatever the reason, and takes nothing with it."""
    adapter = failing(SendRejected("blocked"), 1)
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/help")
        await chat.execute(_as_notice(0))
    async with running(tmp_path, adapter=adapter) as chat:
        assert (await chat.logged("message_buried"))["letters"] == 0
        assert [row.state for row in await chat.rows(schema.outbox)] == ["dropped"]


async def test_a_flaw_is_told(tmp_path: Path) -> None:
    """An adapter that fails at each try costs its chat one message, which is named there."""
    async with running(tmp_path, adapter=failing(KeyError("bug"), 5)) as chat:
        await chat.say("one")
        assert await chat.answers(1) == [UNSHOWN]


async def test_owners_get_their_notice_at_once(tmp_path: Path) -> None:
    """Delivery is told of the other conversations in which there is something to send."""
    adapter = RecordingAdapter()
    adapter.failures["c2"].append(SendRejected("bot was blocked"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.ask("I am the owner")
        await chat.say("I am another", "c2", sender="u2")
        notice = (await chat.answers(2))[1]
        assert "s2.1" in notice
        assert "`bot was blocked`" in notice
        assert await chat.answers(1, "c2") == [UNSHOWN]


@pytest.mark.thorough
async def test_a_chat_that_was_forgotten_meanwhile_is_told_nothing(tmp_path: Path) -> None:
    """Its message was on its way when it was erased; the gateway goes on."""
    adapter = RecordingAdapter()
    gate = adapter.held["c1"] = asyncio.Event()
    adapter.failures["c1"].append(SendRejected("bot was blocked"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until(lambda: adapter.attempts)
        [place] = await chat.rows(schema.conversation)
        await chat.gateway.database.write(forget, place.id)
        gate.set()
        assert (await chat.logged("message_buried"))["letters"] == 0
        assert await chat.ask("two", "c2") == "re: two"
        assert await chat.gateway.database.read(dead_letters.find_all) == []


def test_5000_rows_that_die_together_are_told_once(
    store: Store, burials: Burials, owner: int
) -> None:
    """One statement buries what is as old; what is younger goes on, with as many failures."""
    chat = chat_of(store, "2")
    due = due_in(store, chat, old_s=DAY_S + 60)
    _insert_rows(store, chat, 4999, age_s=DAY_S + 30)
    _insert_rows(store, chat, 1, age_s=60, first=6000)
    burial = store.run(burials.bury_message, due, "down", "expired")
    assert burial == (5000, {chat, owner})
    assert texts_in(store, chat) == ["text", EXPIRED]
    following = store.run(sending.next_due, chat)
    assert following is not None
    assert (following.message.seq, following.failures) == (6000, due.failures)
    assert len(texts_in(store, owner)) == 1


def _insert_rows(store: Store, chat: int, count: int, *, age_s: float, first: int = 2) -> None:
    at = schema.now_s() - age_s
    statement = insert(schema.outbox).values(
        conversation=chat, inbox_seq=1, payload="text", state="pending", at=at
    )
    rows = [{"seq": first + n, "source_key": f"r{first + n}"} for n in range(count)]
    head = update(schema.conversation).where(schema.conversation.c.id == chat)
    store.run(lambda conn: conn.execute(statement, rows))
    store.run(lambda conn: conn.execute(head.values(outbox_head=first + count - 1)))


def test_many_chats_that_lose_messages_are_one_notice_to_owners(
    store: Store, burials: Burials, owner: int
) -> None:
    """Each chat is told; the owner hears of the account, and not again on the same day."""
    for sender in range(2, 12):
        chat = chat_of(store, str(sender))
        store.run(burials.bury_message, due_in(store, chat, f"k{sender}"), "down", "expired")
        assert texts_in(store, chat) == [EXPIRED]
    assert len(texts_in(store, owner)) == 1
    store.run(lambda conn: conn.execute(_shown()))
    chat = chat_of(store, "20")
    store.run(burials.bury_message, due_in(store, chat, "later"), "down", "expired")
    assert texts_in(store, owner) == []


def test_a_chat_is_told_again_of_another_trouble(store: Store, burials: Burials) -> None:
    """Once it has read the first notice."""
    chat = chat_of(store, "2")
    for key in ("one", "two"):
        store.run(burials.bury_message, due_in(store, chat, key), "bug", "failed")
        assert texts_in(store, chat) == [UNSHOWN]
        store.run(lambda conn: conn.execute(_shown()))


def _shown() -> Any:
    """All that waits was shown."""
    pending = schema.outbox.c.state == "pending"
    return update(schema.outbox).where(pending).values(state="sent")


def test_a_refusal_is_told_to_owners_once_for_each_chat(
    store: Store, burials: Burials, owner: int
) -> None:
    """The chat is told each time: it may refuse this message only, a file that is too large."""
    chat = chat_of(store, "2")
    for key, told_to_owner in (("one", 1), ("two", 0)):
        store.run(burials.bury_message, due_in(store, chat, key), "too large", "refused")
        assert texts_in(store, chat) == [UNSHOWN]
        assert len(texts_in(store, owner)) == told_to_owner
        store.run(lambda conn: conn.execute(_shown()))
        store.run(lambda conn: conn.execute(update(schema.outbox).values(source_key=_renamed())))


def _renamed() -> Any:
    """A key that does not tell what the row is."""
    return schema.outbox.c.conversation * 1000 + schema.outbox.c.seq


def test_an_owner_who_cannot_be_reached_elsewhere_is_told_as_a_chat(
    store: Store, burials: Burials, owner: int
) -> None:
    """Where it is the owner's own chat that refuses: one notice, not two."""
    burial = store.run(burials.bury_message, due_in(store, owner), "blocked", "refused")
    assert (*burial, texts_in(store, owner)) == (1, {owner}, [UNSHOWN])


def test_the_web_chat_is_where_owners_are_told_if_nowhere_else(store: Store) -> None:
    """The page is the operator's own."""
    web, chat = _web_chat(store), chat_of(store, "2")
    renderers = {account: lambda markdown: [markdown] for account in (ACCOUNT, ("web", "default"))}
    burials = Burials(Owners(Access(AccessSettings()), renderers))
    _, told = store.run(burials.bury_message, due_in(store, chat), "down", "expired")
    assert told == {chat, web}


def _web_chat(store: Store) -> int:
    address = Address("web", "default", "w1")
    conversation = store.run(admit, inbound(address=address, sender="web"))[0]
    assert store.run(members.newest_direct_chat, "web", "web", [("web", "default")]) is not None
    return conversation


def test_a_chat_for_one_question_is_read_by_nobody(store: Store) -> None:
    """`parley ask` opens one for each, and nobody comes back: owners are told elsewhere."""
    accounts, once = [("web", "default")], Address("web", "default", "ask-0123456789ab")
    store.run(admit, inbound(address=once, sender="web"))
    assert store.run(members.newest_direct_chat, "web", "web", accounts) is None
    web = _web_chat(store)
    store.run(admit, inbound(address=once, sender="web"))
    found = store.run(members.newest_direct_chat, "web", "web", accounts)
    assert found is not None
    assert found.id == web


def test_a_retried_letter_that_dies_again_is_told_again(store: Store, burials: Burials) -> None:
    """It is another trouble by then."""
    chat = chat_of(store, "2")
    store.run(burials.bury_message, due_in(store, chat), "bug", "failed")
    store.run(lambda conn: conn.execute(_shown()))
    store.run(dead_letters.retry, f"s{chat}.1")
    due = store.run(sending.next_due, chat)
    assert due is not None
    store.run(burials.bury_message, due, "bug", "failed")
    assert texts_in(store, chat) == [UNSHOWN]
