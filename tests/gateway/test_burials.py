"""Messages that are given up: dead letters, and who is told of them, once for each trouble."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from adapters.errors import SendDelayed, SendRejected, SendUnknown
from adapters.messages import Address
from gateway import delivery
from gateway.access import Access
from gateway.burials import DAY_S, Burials
from gateway.delivery import NOTICE_PATIENCE, least_failures
from gateway.notices import EXPIRED, UNSHOWN
from gateway.owners import Owners
from gateway.settings import AccessSettings
from gateway.storage import deadletters, maintenance, members, models, outbox
from gateway.storage.outbox import Due
from tests.support.gateway import running
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import Store, admit, inbound, part

TRIED = least_failures(DAY_S)
ACCOUNT = ("telegram", "default")


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have failed sends tried again at once."""
    monkeypatch.setattr(delivery, "backoff_s", lambda _attempt: 0.0)


@pytest.fixture
def burials() -> Burials:
    """The burials of a gateway whose owner is 1 on Telegram."""
    access = Access(AccessSettings(owners=("telegram:1",)))
    return Burials(Owners(access, {ACCOUNT: lambda markdown: [markdown]}), DAY_S)


@pytest.fixture
def owner(store: Store) -> int:
    """The owner's direct chat."""
    return chat_of(store, "1")


def chat_of(store: Store, sender: str) -> int:
    return store.run(admit, inbound(chat=sender, sender=sender))[0]


def due_in(store: Store, chat: int, key: str = "k", *, old_s: float = 0.0) -> Due:
    """Have something to be shown in a chat; return what is due there first."""
    store.run(outbox.append, chat, [part(key)], inbox_seq=1)
    change = update(models.outbox).where(models.outbox.c.source_key == key)
    store.run(lambda conn: conn.execute(change.values(at=models.now_s() - old_s)))
    due = store.run(outbox.next_due, chat)
    assert due is not None
    return due


def texts_in(store: Store, chat: int) -> list[str]:
    """Return what waits to be shown in a chat."""
    rows = store.rows(models.outbox, conversation=chat, state="pending")
    return [row.payload for row in rows]


async def left_behind(home: Path, *, age_s: float, failures: int) -> None:
    """Leave an answer in chat c1 that an earlier process has tried so often."""
    async with running(home, at_work=False) as chat:
        await chat.say("/help")
        values = {"at": models.now_s() - age_s, "failures": failures}
        await chat.execute(update(models.outbox).values(**values))


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
        [letter] = await chat.gateway.database.read(deadletters.find_all)
        assert (letter.id, "delivery.retry_for_s" in letter.reason) == ("s1.1", True)


@pytest.mark.parametrize(("age_s", "failures"), [(DAY_S + 60, 3), (DAY_S - 60, TRIED)])
async def test_age_or_tries_alone_bury_nothing(tmp_path: Path, age_s: float, failures: int) -> None:
    """A clock that is set forward makes all rows old, but none of them tried for long."""
    await left_behind(tmp_path, age_s=age_s, failures=failures)
    async with running(tmp_path, adapter=failing(SendDelayed("down", 0), 1)) as chat:
        [shown] = await chat.answers(1)
        assert shown != EXPIRED
        assert chat.events("message_buried") == []


async def test_the_time_is_a_setting(tmp_path: Path) -> None:
    """`delivery.retry_for_s`."""
    await left_behind(tmp_path, age_s=61, failures=5)
    adapter = failing(SendDelayed("down", 0), 1)
    async with running(tmp_path, adapter=adapter, delivery={"retry_for_s": 60}) as chat:
        assert await chat.answers(1) == [EXPIRED]


async def test_a_notice_does_not_expire_with_the_rest(tmp_path: Path) -> None:
    """It is told after an outage of days; what waits behind it expires meanwhile, too."""
    adapter = failing(SendDelayed("down", 0), 3)
    await left_behind(tmp_path, age_s=DAY_S + 60, failures=TRIED)
    async with running(tmp_path, at_work=False) as chat:
        await chat.execute(_as_notice(DAY_S * NOTICE_PATIENCE - 60))
        await chat.say("/status")
        old = models.now_s() - DAY_S - 60
        await chat.execute(update(models.outbox).where(models.outbox.c.seq == 2).values(at=old))
    async with running(tmp_path, adapter=adapter) as chat:
        assert len(await chat.answers(2)) == 2
        await chat.gateway.delivery.wait_idle()
        rows = await chat.rows(models.outbox)
        assert [row.state for row in rows] == ["sent", "dead", "sent"]


def _as_notice(age_s: float) -> Any:
    values = {"source_key": "dead:9:1:1", "at": models.now_s() - age_s}
    return update(models.outbox).values(**values)


async def test_nobody_is_told_of_a_notice_that_cannot_be_delivered(tmp_path: Path) -> None:
    """It is dropped, whatever the reason, and takes nothing with it."""
    adapter = failing(SendRejected("blocked"), 1)
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("/help")
        await chat.execute(_as_notice(0))
    async with running(tmp_path, adapter=adapter) as chat:
        assert (await chat.logged("message_buried"))["letters"] == 0
        assert [row.state for row in await chat.rows(models.outbox)] == ["dropped"]


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


async def test_a_chat_that_was_forgotten_meanwhile_is_told_nothing(tmp_path: Path) -> None:
    """Its message was on its way when it was erased; the gateway goes on."""
    adapter = RecordingAdapter()
    gate = adapter.held["c1"] = asyncio.Event()
    adapter.failures["c1"].append(SendRejected("bot was blocked"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until(lambda: adapter.attempts)
        [place] = await chat.rows(models.conversation)
        await chat.gateway.database.write(maintenance.forget, place.id)
        gate.set()
        assert (await chat.logged("message_buried"))["letters"] == 0
        assert await chat.ask("two", "c2") == "re: two"
        assert await chat.gateway.database.read(deadletters.find_all) == []


def test_5000_rows_that_die_together_are_told_once(
    store: Store, burials: Burials, owner: int
) -> None:
    """One statement buries what is as old; what is younger goes on, with as many failures."""
    chat = chat_of(store, "2")
    due = due_in(store, chat, old_s=DAY_S + 60)
    _insert_rows(store, chat, 4999, age_s=DAY_S + 30)
    _insert_rows(store, chat, 1, age_s=60, first=6000)
    burial = store.run(burials.bury_message, due, "down", "expired")
    assert (burial.letters, burial.told) == (5000, {chat, owner})
    assert texts_in(store, chat) == ["text", EXPIRED]
    following = store.run(outbox.next_due, chat)
    assert following is not None
    assert (following.message.seq, following.failures) == (6000, due.failures)
    assert len(texts_in(store, owner)) == 1


def _insert_rows(store: Store, chat: int, count: int, *, age_s: float, first: int = 2) -> None:
    at = models.now_s() - age_s
    statement = insert(models.outbox).values(
        conversation=chat, inbox_seq=1, payload="text", state="pending", at=at
    )
    rows = [{"seq": first + n, "source_key": f"r{first + n}"} for n in range(count)]
    head = update(models.conversation).where(models.conversation.c.id == chat)
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
    pending = models.outbox.c.state == "pending"
    return update(models.outbox).where(pending).values(state="sent")


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
        store.run(lambda conn: conn.execute(update(models.outbox).values(source_key=_renamed())))


def _renamed() -> Any:
    """A key that does not tell what the row is."""
    return models.outbox.c.conversation * 1000 + models.outbox.c.seq


def test_an_owner_who_cannot_be_reached_elsewhere_is_told_as_a_chat(
    store: Store, burials: Burials, owner: int
) -> None:
    """Where it is the owner's own chat that refuses: one notice, not two."""
    burial = store.run(burials.bury_message, due_in(store, owner), "blocked", "refused")
    assert (burial.letters, burial.told, texts_in(store, owner)) == (1, {owner}, [UNSHOWN])


def test_the_web_chat_is_where_owners_are_told_if_nowhere_else(store: Store) -> None:
    """The page is the operator's own."""
    web, chat = _web_chat(store), chat_of(store, "2")
    renderers = {account: lambda markdown: [markdown] for account in (ACCOUNT, ("web", "default"))}
    burials = Burials(Owners(Access(AccessSettings()), renderers), DAY_S)
    burial = store.run(burials.bury_message, due_in(store, chat), "down", "expired")
    assert burial.told == {chat, web}


def _web_chat(store: Store) -> int:
    address = Address("web", "default", "w1")
    conversation = store.run(admit, inbound(address=address, sender="web"))[0]
    assert store.run(members.newest_direct_chat, "web", "web", [("web", "default")]) is not None
    return conversation


def test_a_retried_letter_that_dies_again_is_told_again(store: Store, burials: Burials) -> None:
    """It is another trouble by then."""
    chat = chat_of(store, "2")
    store.run(burials.bury_message, due_in(store, chat), "bug", "failed")
    store.run(lambda conn: conn.execute(_shown()))
    store.run(deadletters.retry, f"s{chat}.1")
    due = store.run(outbox.next_due, chat)
    assert due is not None
    store.run(burials.bury_message, due, "bug", "failed")
    assert texts_in(store, chat) == [UNSHOWN]
