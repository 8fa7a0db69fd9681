"""What is looked at, and what chats are told, once and when it is over: with a whole gateway."""

import errno
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from adapters.errors import SendDelayed, SendRejected
from agent.errors import (
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
)
from gateway.backup import backups
from gateway.findings import machine, telling, watch, webhook
from gateway.findings.models import FAILING_S
from gateway.findings.people import UNREACHABLE_S
from gateway.findings.report import FINDINGS
from gateway.findings.telling import FLOOD, REASON_CHARS, AlertsTold
from gateway.findings.watch import AlertWatch
from gateway.findings.webhook import AlertWebhook
from gateway.storage import schema
from gateway.storage.queue import alerts, outbox
from gateway.storage.queue.alerts import Alert
from gateway.supervision.vitals import Models, Vitals
from tests.support.alerts import end_soon
from tests.support.gateway import Running, running, serving
from tests.support.recording_adapter import RecordingAdapter
from tests.support.scripted_model import ScriptedModel

HERE = "telegram:default"


@pytest.fixture(autouse=True)
def _soon_over() -> Iterator[None]:
    """What nobody sees any more is over at the next look."""
    with pytest.MonkeyPatch.context() as patch:
        end_soon(patch)
        yield


def watch_of(chat: Running) -> AlertWatch:
    found = chat.gateway.platforms.alerts
    assert found is not None
    return found


async def look(chat: Running) -> AlertsTold:
    return await watch_of(chat).look()


def kinds(found: Sequence[Alert]) -> list[str]:
    return [each.kind for each in found]


def fail(chat: Running, failure: ModelError) -> None:
    """Have the model fail as a call of it would."""
    chat.agent.recovery.rests.note_failure(chat.agent.models[0].label, failure)


async def test_a_stopped_adapter_is_told_once_and_when_it_is_over(tmp_path: Path) -> None:
    """The owner reads what happened, since when, and what to do."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        [supervised] = chat.gateway.platforms.supervised
        supervised.stopped = "401: *no*"
        assert kinds((await look(chat)).begun) == ["adapter-stopped"]
        assert (await look(chat)).begun == []
        text = (await chat.answers(2))[1]
        assert text.startswith(
            f"**Trouble:** {HERE} does not work: 401: \\*no\\*; it has stopped. Since "
        )
        assert "docs/operations.md#adapter-stopped" in text
        supervised.stopped = None
        assert kinds((await look(chat)).ended) == ["adapter-stopped"]
        assert (await chat.answers(3))[2].startswith(f"**Over:** {HERE} works again.")
        assert await look(chat) == AlertsTold()


@pytest.mark.parametrize("part", [AlertWatch, AlertWebhook])
async def test_what_a_look_meets_ends_no_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    """It is told with its trace, and the next look comes."""

    async def broken(_: object) -> None:
        raise RuntimeError("of a disk")

    monkeypatch.setattr(part, "look" if part is AlertWatch else "post_due", broken)
    for module in (watch, webhook):
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    async with serving(tmp_path, alerts={"webhook": "http://127.0.0.1:9/"}) as gateway:
        line = await gateway.chat.logged("work_failed", 2)
        assert await gateway.chat.ask("one") == "re: one"
    assert line["level"] == "error"


async def test_a_connection_may_be_lost_for_a_while(tmp_path: Path) -> None:
    """Two minutes without one are a trouble; a stop that was told stays open meanwhile."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        now = [0.0]
        chat.gateway.platforms.examination.vitals.clock = lambda: now[0]
        [supervised] = chat.gateway.platforms.supervised
        supervised.stopped = "refused"
        await look(chat)
        supervised.stopped, chat.adapter.connected = None, False
        assert await look(chat) == AlertsTold()
        now[0] = UNREACHABLE_S
        told = await look(chat)
        assert (kinds(told.begun), told.ended) == (["adapter-unreachable"], [])
        assert "has had no connection for 2 minutes" in (await chat.answers(3))[2]
        chat.adapter.connected = True
        ended = kinds((await look(chat)).ended)
        assert sorted(ended) == ["adapter-stopped", "adapter-unreachable"]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (CredentialsRefused("401 invalid x-api-key"), "key-refused"),
        (CreditUsedUp("402 credit balance too low"), "money-gone"),
    ],
)
async def test_a_key_is_told_of_until_the_model_answers(
    tmp_path: Path, failure: ModelError, kind: str
) -> None:
    """A restart in between tells nothing: nobody knows whether it is over."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        fail(chat, failure)
        assert kinds((await look(chat)).begun) == [kind]
        assert str(failure) in (await chat.answers(2))[1]
        await chat.gateway.delivery.wait_idle()
    async with running(tmp_path) as chat:
        assert await look(chat) == AlertsTold()
        fail(chat, failure)
        assert await look(chat) == AlertsTold()
        await chat.ask("again")
        assert kinds((await look(chat)).ended) == [kind]
        assert "no longer" in (await chat.answers(2))[1]


@pytest.mark.parametrize(
    ("older", "newest", "kinds_"),
    [
        (CredentialsRefused("401"), CreditUsedUp("402"), ("key-refused", "money-gone")),
        (CreditUsedUp("402"), CredentialsRefused("401"), ("money-gone", "key-refused")),
    ],
)
async def test_the_newest_verdict_on_a_key_ends_the_older(
    tmp_path: Path, older: ModelError, newest: ModelError, kinds_: tuple[str, str]
) -> None:
    """One model is never refused for both; what may pass ends neither."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        fail(chat, older)
        assert kinds((await look(chat)).begun) == [kinds_[0]]
        fail(chat, ModelUnreachable("502"))
        assert (await look(chat)).ended == []
        fail(chat, newest)
        told = await look(chat)
        assert (kinds(told.ended), kinds(told.begun)) == ([kinds_[0]], [kinds_[1]])


async def test_a_key_that_is_taken_is_no_refused_one(tmp_path: Path) -> None:
    """Where the account has no credit that shows with an answer alone."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        rests, label = chat.agent.recovery.rests, chat.agent.models[0].label
        fail(chat, CredentialsRefused("401"))
        await look(chat)
        rests.note_accepted(label)
        assert kinds((await look(chat)).ended) == ["key-refused"]
        fail(chat, CreditUsedUp("402"))
        assert kinds((await look(chat)).begun) == ["money-gone"]
        rests.note_accepted(label)
        assert await look(chat) == AlertsTold()


async def test_a_model_that_fails_is_told_of_after_five_minutes(tmp_path: Path) -> None:
    """Twice at least: one failure says nothing about the hour before it."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        rests, now = chat.agent.recovery.rests, [0.0]
        rests._now = lambda: now[0]
        fail(chat, RateLimited("529 overloaded"))
        assert await look(chat) == AlertsTold()
        now[0] = FAILING_S
        assert await look(chat) == AlertsTold()
        fail(chat, ModelUnreachable("no answer"))
        assert kinds((await look(chat)).begun) == ["model-failing"]
        assert "has failed for 5 minutes: no answer" in (await chat.answers(2))[1]


async def test_a_model_that_its_provider_does_not_know_is_told_of_at_once(tmp_path: Path) -> None:
    """Waiting mends no name, and at night nobody writes twice."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        fail(chat, ModelNotFound("404"))
        [alert] = (await look(chat)).begun
        assert "has failed at once: 404" in alert.text


async def test_a_budget_is_told_of_at_two_marks(tmp_path: Path) -> None:
    """At 80 % and when it is used up; then the first one says no more."""
    async with running(tmp_path, budget={"daily_usd": 1.0}) as chat:
        await chat.ask("hello")
        for usd, begun in ((0.8, "budget-low"), (1.0, "budget-used-up")):
            await chat.execute(update(schema.ledger).values(usd=usd))
            assert kinds((await look(chat)).begun) == [begun]
        first, second = (await chat.answers(3))[1:]
        spent = "has used 80% of today's budget ($0.80 of $1.00; most by telegram:u1: $0.80)"
        assert f"everybody together {spent}" in first
        spent = "used up today's budget ($1.00 of $1.00; most by telegram:u1: $1.00)"
        assert f"{spent}; it resets at 00:00 UTC" in second
        await chat.execute(update(schema.ledger).values(usd=0.0))
        assert await chat.ask("more") == "re: more"
        assert kinds((await look(chat)).ended) == ["budget-used-up"]


async def test_a_budget_of_each_person_is_told_of(tmp_path: Path) -> None:
    """With whose it is."""
    async with running(tmp_path, budget={"sender_daily_usd": 5.0}) as chat:
        await chat.ask("hello")
        await chat.execute(update(schema.ledger).values(usd=4.5))
        told = await look(chat)
        assert [each.subject for each in told.begun] == ["telegram:u1"]
        assert "($4.50 of $5.00; the limit of each person)" in told.begun[0].text


async def test_a_disk_that_is_full_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A little more room than the limit is not the end of it."""
    async with running(tmp_path, alerts={"disk_free_bytes": 1_000_000}) as chat:
        await chat.ask("hello")
        usage = shutil.disk_usage(tmp_path)
        free = [999_999]
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
        assert kinds((await look(chat)).begun) == ["disk-full"]
        assert f"only 1 MB are free on the disk of {tmp_path}" in (
            (await chat.answers(2))[1].replace("\\", "")
        )
        free[0] = 1_100_000
        assert await look(chat) == AlertsTold()
        free[0] = 1_200_000
        assert kinds((await look(chat)).ended) == ["disk-full"]


async def test_a_disk_that_is_gone_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its home was unmounted: what was told stays open."""
    async with running(tmp_path, alerts={"disk_free_bytes": 1_000_000}) as chat:
        await chat.ask("hello")
        usage = shutil.disk_usage(tmp_path)
        looked_in: list[threading.Thread] = []

        def full(_: Path) -> Any:
            looked_in.append(threading.current_thread())
            return usage._replace(free=1)

        monkeypatch.setattr(machine.shutil, "disk_usage", full)
        assert kinds((await look(chat)).begun) == ["disk-full"]
        assert threading.main_thread() not in looked_in

        def gone(_: Path) -> Any:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

        monkeypatch.setattr(machine.shutil, "disk_usage", gone)
        for _ in range(2):
            assert await look(chat) == AlertsTold()


async def test_an_old_answer_is_told_of_but_no_old_alert(tmp_path: Path) -> None:
    """Else an alert that cannot be shown would be told of, and that, and so on."""
    adapter = RecordingAdapter()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.ask("hello")
        adapter.failures["c1"].extend(SendDelayed("flood", 3600.0) for _ in range(3))
        await chat.say("more")
        await chat.logged("send_delayed")
        await chat.execute(update(schema.outbox).values(at=schema.outbox.c.at - 400))
        told = await look(chat)
        assert kinds(told.begun) == ["outbox-old"]
        await chat.execute(update(schema.outbox).values(at=schema.outbox.c.at - 40_000))
        assert (await look(chat)).begun == []
        is_answer = ~schema.outbox.c.source_key.startswith(outbox.ALERT)
        await chat.execute(update(schema.outbox).where(is_answer).values(state="sent"))
        assert kinds((await look(chat)).ended) == ["outbox-old"]
        assert await look(chat) == AlertsTold()


async def test_an_alert_nobody_takes_is_no_dead_letter(tmp_path: Path) -> None:
    """The platform refuses it: the row is dropped, and nothing tells of that."""
    adapter = RecordingAdapter()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.ask("hello")
        fail(chat, CreditUsedUp("402"))
        adapter.failures["c1"].append(SendRejected("blocked"))
        await look(chat)
        await chat.logged("message_buried")
        assert [row.state for row in await chat.rows(schema.outbox)] == ["sent", "dropped"]
        assert await look(chat) == AlertsTold()


async def test_a_question_that_got_no_answer_is_told_of(tmp_path: Path) -> None:
    """Once for an account and a day; an answer that was not shown is announced anyhow."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        # A receipt that comes behind the change would make it undone.
        await chat.gateway.delivery.wait_idle()
        await chat.execute(update(schema.turn).values(state="dead"))
        await chat.execute(update(schema.outbox).values(state="dead"))
        told = await look(chat)
        assert kinds(told.begun) == ["answer-dead", "message-dead"]
        text = (await chat.answers(2))[1]
        assert f"1 question on {HERE} got no answer and was given up" in text
        await chat.execute(update(schema.turn).values(state="dropped"))
        await chat.execute(update(schema.outbox).values(state="dropped"))
        assert kinds((await look(chat)).ended) == ["answer-dead", "message-dead"]
        assert len(chat.texts()) == 2


async def test_a_stranger_is_announced_with_buttons_and_not_twice(tmp_path: Path) -> None:
    """The alert of it is for chats that the settings name."""
    access = {"mode": "pairing"}
    async with running(tmp_path, access=access) as chat:
        await chat.ask("hello")
        await chat.say("may I?", "c2", sender="u2", sender_name="Bo")
        assert kinds((await look(chat)).begun) == ["stranger-asks"]
        await chat.answers(1, "c2")
        assert len(await chat.answers(2)) == 2
    named = {"to": ["telegram:ops"]}
    async with running(tmp_path, access=access, alerts=named) as chat:
        await change_alert(chat, over_at=1.0)
        assert kinds((await look(chat)).begun) == ["stranger-asks"]
        assert "let in: 1 waiting" in (await chat.answers(1, "ops"))[0]


async def change_alert(chat: Running, **values: Any) -> None:
    await chat.execute(update(schema.alert).values(values))


async def test_a_database_that_was_away_is_told_of_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is, nothing can be entered; a moment of it is no trouble."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        now, states = [0.0], ["not writable: full", "not writable: full"]
        chat.gateway.platforms.examination.vitals.clock = lambda: now[0]
        real = Vitals.database_state

        async def state(vitals: Vitals) -> str:
            return states.pop() if states else await real(vitals)

        monkeypatch.setattr(Vitals, "database_state", state)
        assert await look(chat) == AlertsTold()
        now[0] = 45.0
        assert await look(chat) == AlertsTold()
        now[0] = 60.0
        assert kinds((await look(chat)).begun) == ["database-down"]
        assert "nothing can be stored: not writable: full" in (await chat.answers(2))[1]
        assert kinds((await look(chat)).ended) == ["database-down"]
        states.append("not writable: full")
        await look(chat)
        assert await look(chat) == AlertsTold()


async def test_a_flapping_account_is_told_of_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calm that ends a trouble grows each time that it comes again."""
    monkeypatch.setattr(telling, "QUIET_S", 60.0)
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        [supervised] = chat.gateway.platforms.supervised
        for _ in range(20):
            supervised.stopped = "flaps"
            await look(chat)
            supervised.stopped = None
            await change_alert(chat, seen_at=schema.alert.c.seen_at - 90)
            await look(chat)
        assert len(await chat.answers(4)) == 4
        assert len(await chat.rows(schema.alert)) == 2


async def test_more_than_there_is_room_for_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not told begins and ends in silence; it is on record."""
    monkeypatch.setattr(telling, "PER_HOUR", 2)
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        rests = chat.agent.recovery.rests
        named = [ScriptedModel([], name=f"m{n}") for n in range(4)]
        labels = frozenset(each.label for each in named)
        vitals = chat.gateway.platforms.examination.vitals
        vitals.models = lambda: Models(labels, dict(rests.failing), line=labels)
        for each in named:
            rests.note_failure(each.label, CredentialsRefused("401"))
        assert len((await look(chat)).begun) == 4
        texts = await chat.answers(4)
        assert [text == FLOOD for text in texts] == [False, False, False, True]
        await look(chat)
        await change_alert(chat, told_at=1.0)
        await chat.execute(update(schema.alert).where(schema.alert.c.id == 4).values(told_at=None))
        await look(chat)
        assert "m3" in (await chat.answers(5))[4]
        vitals.models = Models
        assert len((await look(chat)).ended) == 4
        assert len(await chat.answers(6)) == 6


async def test_an_end_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told to have begun is told to be over, after a flood too, and before what is new."""
    monkeypatch.setattr(telling, "PER_HOUR", 1)
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        [supervised] = chat.gateway.platforms.supervised
        supervised.stopped = "refused"
        await look(chat)
        supervised.stopped = None
        assert kinds((await look(chat)).ended) == ["adapter-stopped"]
        assert (await chat.answers(3))[2] == FLOOD
        assert await look(chat) == AlertsTold()
        await change_alert(chat, told_at=1.0)
        fail(chat, CreditUsedUp("402"))
        assert kinds((await look(chat)).begun) == ["money-gone"]
        texts = await chat.answers(5)
        assert texts[3].startswith(f"**Over:** {HERE} works again.")
        # An error begins, whatever else was told.
        assert "no credit left" in texts[4]
        await look(chat)
        assert len(chat.texts()) == 5


LESSER = tuple(each.id for each in FINDINGS.values() if each.told and each.level != "error")


@pytest.mark.parametrize("kind", [*LESSER, "adapter-stopped: over"])
async def test_lesser_messages_leave_room_for_an_error(tmp_path: Path, kind: str) -> None:
    """A refused key is told after ten of them; an eleventh of them is not."""
    kind, _, is_over = kind.partition(": ")
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        lately = time.time()
        told = {"told_at": 1.0 if is_over else lately, "over_told_at": lately}
        for number in range(10):
            row = {"kind": kind, "subject": f"s{number}", "text": "x", "over_at": lately, **told}
            times = dict.fromkeys(("at", "since", "seen_at"), lately)
            await chat.execute(insert(schema.alert).values({**row, **times, "posted": 2}))
        fail(chat, CredentialsRefused("401"))
        assert kinds((await look(chat)).begun) == ["key-refused"]
        assert "refuses" in (await chat.answers(2))[1]
        chat.gateway.platforms.examination.vitals.refused = lambda: ("file", "line 1")
        assert (await look(chat)).begun
        assert (await chat.answers(3))[2] == FLOOD


async def test_what_is_there_again_is_not_told_to_be_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no room for its end, and now there is nothing that would be over."""
    monkeypatch.setattr(telling, "PER_HOUR", 1)
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        [supervised] = chat.gateway.platforms.supervised
        for stopped in ("refused", None, "refused again"):
            supervised.stopped = stopped
            await look(chat)
        first = schema.alert.c.id == 1
        await chat.execute(update(schema.alert).where(first).values(told_at=1.0))
        await look(chat)
        texts = await chat.answers(4)
        assert texts[2] == FLOOD
        assert "does not work: refused again; it has stopped" in texts[3]
        # The end of the second one says it; that of the first would say it once more.
        await change_alert(chat, told_at=1.0)
        supervised.stopped = None
        assert kinds((await look(chat)).ended) == ["adapter-stopped"]
        assert (await chat.answers(5))[4].startswith(f"**Over:** {HERE} works again.")
        await chat.execute(
            update(schema.alert)
            .where(schema.alert.c.over_told_at.is_not(None))
            .values(over_told_at=1.0)
        )
        assert await look(chat) == AlertsTold()


def overdue(monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> None:
    monkeypatch.setattr(backups, "overdue_s", lambda *_: seconds)


async def test_a_backup_that_is_overdue_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until there is a new one."""
    async with running(tmp_path, backup={"to": "kept"}) as chat:
        await chat.ask("hello")
        assert await look(chat) == AlertsTold()
        overdue(monkeypatch, 40 * 3600.0)
        assert kinds((await look(chat)).begun) == ["backup-overdue"]
        assert "there has been no new backup for 40 hours." in (await chat.answers(2))[1]
        # After a restart, where there still is none.
        overdue(monkeypatch, 0.0)
        assert await look(chat) == AlertsTold()
        overdue(monkeypatch, None)
        assert kinds((await look(chat)).ended) == ["backup-overdue"]


async def test_only_the_replica_that_makes_backups_tells_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in the folder of another one says nothing, in either direction."""
    async with running(tmp_path, backup={"to": "kept"}) as chat:
        await chat.ask("hello")
        overdue(monkeypatch, 40 * 3600.0)
        with monkeypatch.context() as patch:
            patch.setattr("gateway.storage.reports.health.oldest_replica", lambda _: 0)
            assert await look(chat) == AlertsTold()
        assert kinds((await look(chat)).begun) == ["backup-overdue"]
        overdue(monkeypatch, None)
        with monkeypatch.context() as patch:
            patch.setattr("gateway.storage.reports.health.oldest_replica", lambda _: 0)
            assert await look(chat) == AlertsTold()
        assert kinds((await look(chat)).ended) == ["backup-overdue"]


async def test_a_backup_that_never_was_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its folder could not be written from the first day on."""
    async with running(tmp_path, backup={"to": "kept"}) as chat:
        await chat.ask("hello")
        assert await look(chat) == AlertsTold()
        monkeypatch.setattr(backups, "FIRST_WITHIN_S", 0.0)
        assert kinds((await look(chat)).begun) == ["backup-overdue"]
        monkeypatch.undo()
        assert (await look(chat)).ended == []


async def test_a_file_that_is_not_taken_is_told_of(tmp_path: Path) -> None:
    """Until it is taken, or is what it was; another mistake in it is the same trouble."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        reloading = chat.gateway.reloading
        for reason in ("line 3: agent.max_iterations: -3 is not allowed", "not valid YAML"):
            reloading.refused = str(tmp_path / "parley.yaml"), reason
            told = await look(chat)
        assert (
            (await chat.answers(2))[1]
            .replace("\\", "")
            .startswith(
                f"**Trouble:** {tmp_path}/parley.yaml was changed and is not used: line 3: agent."
            )
        )
        assert told == AlertsTold()
        reloading.refused = None
        assert kinds((await look(chat)).ended) == ["settings-refused"]


async def test_what_nobody_could_be_told_is_told_later(tmp_path: Path) -> None:
    """An owner who never wrote to the bot has no chat for it; as soon as one has, it is told."""
    async with running(tmp_path) as chat:
        [supervised] = chat.gateway.platforms.supervised
        supervised.stopped = "refused"
        told = await look(chat)
        assert (kinds(told.begun), told.chats) == (["adapter-stopped"], set())
        assert (await chat.logged("alert_raised"))["kind"] == "adapter-stopped"
        await chat.ask("hello")
        assert (await look(chat)).begun == []
        assert "does not work" in (await chat.answers(2))[1]
        await look(chat)
        assert len(chat.texts()) == 2


async def test_a_named_chat_may_be_one_where_nobody_talks_to_the_bot(tmp_path: Path) -> None:
    """It gets a conversation for alerts; one that is there is used; an account can be named."""
    named = ["telegram:default:ops", "telegram:c1", "telegram:c1", "telegram:other:c1", "slack:C1"]
    async with running(tmp_path, alerts={"to": named}) as chat:
        await chat.ask("hello")
        fail(chat, CreditUsedUp("it is gone."))
        assert len((await look(chat)).chats) == 2
        assert "no credit left: it is gone. Since" in (await chat.answers(1, "ops"))[0]
        assert "no credit left" in (await chat.answers(2, "c1"))[1]


async def test_a_secret_in_a_reason_is_masked(tmp_path: Path) -> None:
    """Whatever a platform says about a token."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        [supervised] = chat.gateway.platforms.supervised
        secret = chat.gateway.settings.web.token.get_secret_value()
        filling = "x" * (REASON_CHARS - 27 - len(secret))
        # Also where the reason is cut within the token.
        supervised.stopped = f"bad token {secret}: `{filling} [a](b) {secret}"
        [alert] = (await look(chat)).begun
        assert "bad token" in alert.text
        assert secret[:6] not in alert.text
        assert "`" not in alert.text


async def test_a_kind_of_an_earlier_version_is_over(tmp_path: Path) -> None:
    """Nobody looks for it any more, and nobody is told."""
    async with running(tmp_path) as chat:
        await chat.gateway.database.write(alerts.note, "old", "x", "was", 1.0)
        assert kinds((await look(chat)).ended) == ["old"]
        assert await chat.rows(schema.outbox) == []


async def test_an_account_that_was_taken_out_does_not_work_again(tmp_path: Path) -> None:
    """Its trouble is over, and that is said as it is."""
    async with running(tmp_path) as chat:
        await chat.ask("hello")
        write = chat.gateway.database.write
        number = await write(alerts.note, "adapter-stopped", "slack:work", "it stopped", 1.0)
        await write(alerts.mark_told, number, over=False)
        assert kinds((await look(chat)).ended) == ["adapter-stopped"]
        assert (await chat.answers(2))[1].startswith("**Over:** slack:work is not set up any more.")


async def test_alerts_can_be_off(tmp_path: Path) -> None:
    """Then nothing looks."""
    async with serving(tmp_path, alerts={"enabled": False}) as gateway:
        assert gateway.chat.gateway.platforms.alerts is None
        connector = await gateway.get("/healthz")
        assert connector[0] == 200


async def test_it_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the gateway runs; a test can be asked for."""
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.01)
    async with serving(tmp_path) as gateway:
        chat = gateway.chat
        await chat.ask("hello")
        fail(chat, CreditUsedUp("402"))
        assert "no credit left" in (await chat.answers(2))[1]
        assert await watch_of(chat).test() == (1, None)
        assert telling.TEST in (await chat.answers(3))[2]


async def test_a_look_that_fails_ends_no_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one finds what it did not."""
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.01)
    async with serving(tmp_path) as gateway:
        chat = gateway.chat
        await chat.ask("hello")
        real, failures = watch.judged, [ValueError("what nobody thought of")]

        def judged(*found: Any) -> Any:
            if failures:
                raise failures.pop()
            return real(*found)

        monkeypatch.setattr(watch, "judged", judged)
        line = await chat.logged("work_failed")
        assert (line["level"], "nobody thought of" in line["error"]) == ("error", True)
        fail(chat, CreditUsedUp("402"))
        assert "no credit left" in (await chat.answers(2))[1]


async def test_what_a_restart_left_open_is_told_once(tmp_path: Path) -> None:
    """A crash between the rows and their sending loses neither and doubles neither."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("hello")
        fail(chat, CreditUsedUp("402"))
        await look(chat)
    async with running(tmp_path) as chat:
        # The question is answered by now: an answer while it is looked would end the trouble.
        texts = await chat.answers(2)
        fail(chat, CreditUsedUp("402"))
        assert await look(chat) == AlertsTold()
        assert sum("no credit left" in text for text in texts) == 1
