"""Several replicas on one PostgreSQL serve one bot: who receives, who sends, and what a kill costs.

Each is a whole gateway with the real Telegram client, against the strict Bot API double, whose
recorder knows the limits.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import func, select

from adapters.base import Share
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.client import LIMITS
from adapters.telegram.platform import TelegramSettings
from adapters.telegram.render import render
from agent.models.base import ChatModel
from gateway.app import Gateway
from gateway.storage import schema
from gateway.storage.queue.leases import Receiving
from gateway.wiring import Accounts
from tests.support.bot_api import TOKEN, BotApi
from tests.support.bot_replicas import WITHIN_S, BotReplica, bot_replica, until
from tests.support.gateway import HeldModel, log_lines
from tests.support.recording_adapter import Watch

HERE = Receiving("telegram", "default")
ANN = {"is_bot": False, "first_name": "Ann"}
MARK = "(re-sent)"
LATE_S = 0.5
"""Replicas that shared no limits would be found all the same."""
STANDBY = ("standby", "standby")
Start = Callable[..., AbstractAsyncContextManager[BotReplica]]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[BotApi]:
    """Telegram; nothing that a correct bot never does may have happened."""
    async with BotApi() as api:
        yield api
    assert api.violations == []


@pytest_asyncio.fixture
async def lines() -> AsyncIterator[list[dict[str, Any]]]:
    """What all replicas have logged."""
    async with log_lines(Watch()) as found:
        yield found


@pytest.fixture
def start(tmp_path: Path, postgres_url: str, api: BotApi, lines: list[dict[str, Any]]) -> Start:
    """Run a replica of this name, with a home of its own."""
    assert lines == []
    return partial(_started, tmp_path, postgres_url, api)


def _started(
    base: Path, url: str, api: BotApi, name: str, model: ChatModel | None = None
) -> AbstractAsyncContextManager[BotReplica]:
    block = TelegramSettings.model_validate({"token": TOKEN, "base_url": api.root})
    share = Share()

    def connect(intake: Any, _chats: Any, _door: Any) -> list[TelegramAdapter]:
        limits = replace(LIMITS, share=share)
        return [TelegramAdapter(block, intake, limits=limits, poll_timeout_s=1)]

    accounts = Accounts({("telegram", "default"): render}, connect, share)
    return bot_replica(base / name, url, accounts, model)


@asynccontextmanager
async def receiving(start: Start, model: ChatModel | None = None) -> AsyncIterator[BotReplica]:
    """Run the replica that receives, since it was there first."""
    async with start("a", model) as one:
        await until(lambda: one.receives(HERE))
        yield one


def state(at: BotReplica) -> str:
    return at.gateway.platforms.supervised[0].state


async def senders(gateway: Gateway) -> int:
    """Return how many replicas have sent something."""
    distinct = select(func.count(func.distinct(schema.outbox.c.sender)))
    return int(await gateway.database.read(lambda conn: conn.execute(distinct).scalar_one()))


def answers(api: BotApi, chat: int) -> list[str]:
    return [text for text in api.shown(chat) if text.startswith("re: ")]


@pytest.mark.thorough
async def test_one_receives_all_send_and_the_limits_hold_for_all(start: Start, api: BotApi) -> None:
    """90 people write at once: one poller, three senders, and no more than 30 messages a second."""
    async with receiving(start) as one, start("b") as two, start("c") as three:
        all_of_them = (one, two, three)
        await until(lambda: [each.replica._share.of for each in all_of_them] == [3] * 3)
        await until(lambda: [state(each) for each in all_of_them] == ["connected", *STANDBY])
        assert [each.receives(HERE) for each in all_of_them] == [True, False, False]
        for person in range(100, 190):
            api.push_text(person, "hello")
        await api.wait_for(lambda: all(answers(api, each) for each in range(100, 190)), WITHIN_S)
        assert [answers(api, each) for each in range(100, 190)] == [["re: hello"]] * 90
        # Who polls takes what it has places for, and the others what it has not.
        assert await senders(one.gateway) > 1
    assert api.excesses(LATE_S) == []


@pytest.mark.thorough
async def test_conversations_of_one_group_share_its_limits(
    start: Start, api: BotApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight people ask in a group at once; both replicas answer, a message a second together."""
    group, people = -100, [ANN | {"id": 200 + n} for n in range(8)]
    mention = [{"type": "mention", "offset": 0, "length": len("@parley_bot")}]
    # The first one has room for four turns, and none of these ends at first.
    model = HeldModel()
    go_on = model.hold("hello")
    async with receiving(start, model) as one, start("b") as two:
        await until(lambda: [each.replica._share.of for each in (one, two)] == [2, 2])
        # Now and then the other one is faster to claim them.
        monkeypatch.setattr(two.gateway.worker, "_room", lambda: 0)
        for person in people:
            api.push_text(group, "@parley_bot hello", person, entities=mention)
        await until(lambda: len(model.waiting) == 4)
        monkeypatch.delattr(two.gateway.worker, "_room")
        await api.wait_for(lambda: api.shown(group), WITHIN_S)
        go_on.set()
        await api.wait_for(lambda: len(api.shown(group)) >= len(people), WITHIN_S)
        assert await senders(one.gateway) > 1
    assert len(api.shown(group)) == len(people)
    assert api.excesses(LATE_S) == []


async def test_a_kill_costs_no_update_and_no_answer(
    start: Start, api: BotApi, lines: list[dict[str, Any]]
) -> None:
    """Another replica polls before a lease would end; each message is answered once."""
    async with receiving(start) as one, start("b") as two:
        await until(lambda: two.replica.accounts.want(HERE).elsewhere)
        for n in range(3):
            for person in range(100, 110):
                api.push_text(person, f"{n}")
        await api.wait_for(lambda: answers(api, 100))
        await one.kill()
        for person in range(100, 110):
            api.push_text(person, "after")
        await until(lambda: two.receives(HERE))
        await api.wait_for(
            lambda: all("after" in "".join(api.shown(each)) for each in range(100, 110)), WITHIN_S
        )
    for person in range(100, 110):
        shown = api.shown(person)
        said = [text.removeprefix(MARK).strip().removeprefix("re: ") for text in shown]
        words = [word for text in said for word in text.split("\n")]
        unmarked = [text for text in shown if not text.startswith(MARK)]
        assert len(unmarked) == len(set(unmarked))
        assert sorted(set(words)) == ["0", "1", "2", "after"]
        assert [each for n, each in enumerate(words) if each not in words[:n]] == sorted(set(words))
    assert [line["reason"] for line in lines if line["event"] == "replica_reaped"] == [
        "process gone"
    ]


@pytest.mark.thorough
async def test_of_two_pollers_the_older_one_stores_nothing(
    start: Start, api: BotApi, lines: list[dict[str, Any]]
) -> None:
    """A replica believes to hold the lease: what it gets is refused, and answered once even so."""
    async with receiving(start) as one, start("b") as two:
        await until(lambda: two.replica.accounts.want(HERE).elsewhere)
        note, two.replica.accounts.note = two.replica.accounts.note, lambda _rows: None
        two.replica.accounts.want(HERE).take(99)
        await until(lambda: api.made("getMe")[1:])
        for n in range(20):
            api.push_text(100 + n, "hello")
            await asyncio.sleep(0.02)
        await until(lambda: any(line["event"] == "account_lost" for line in lines))
        two.replica.accounts.note = note
        await api.wait_for(lambda: all(answers(api, 100 + n) for n in range(20)), WITHIN_S)
        assert [answers(api, 100 + n) for n in range(20)] == [["re: hello"]] * 20
        assert one.receives(HERE)
        await until(lambda: not two.receives(HERE))


@pytest.mark.thorough
async def test_a_replica_that_stops_hands_over_at_once(
    start: Start, api: BotApi, lines: list[dict[str, Any]]
) -> None:
    """Nobody finds it dead: it has given back what it received for and what it was working on."""
    async with receiving(start):
        async with start("b") as two:
            pass
        assert not two.receives(HERE)
        api.push_text(100, "hello")
        await api.wait_for(lambda: answers(api, 100))
    async with start("c") as three:
        await until(lambda: three.receives(HERE))
    assert [line["event"] for line in lines if line["event"].startswith("replica_")] == [
        "replica_joined",
        "replica_joined",
        "replica_left",
        "replica_left",
        "replica_joined",
        "replica_left",
    ]
