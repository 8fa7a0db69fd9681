"""Who stops waiting ends no request, and no connection is lost; what is lost is replaced."""

import asyncio

import pytest
from aiohttp.test_utils import unused_port

from adapters.base import PoolUse
from adapters.errors import SendDelayed
from adapters.telegram import client
from tests.adapters.telegram.conftest import MakeAdapter
from tests.adapters.telegram.test_send import ANN, asked, row
from tests.support.bot_api import HANG, BotApi, Fault
from tests.support.cancelling import cancelled_at

MOST_AWAITS = 20
MOST_ROUNDS = 40
BEGUN_BY = 5


@pytest.fixture(autouse=True)
def _one_connection(api: BotApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is lost is missed at once."""
    api.add_chat(7)
    monkeypatch.setattr(client, "_CONNECTIONS", 1)


@pytest.mark.parametrize("used", [False, True], ids=["new connection", "used connection"])
async def test_a_send_cancelled_at_any_await_loses_no_connection(
    make: MakeAdapter, used: bool
) -> None:
    """Whichever await a send is cancelled at, the only connection is there for the next one."""
    for n in range(1, MOST_AWAITS):
        adapter = make()
        if used:
            await adapter.send(row(adapter, "before"))
        is_cancelled = await cancelled_at(adapter.send(row(adapter, "cancelled")), n)
        await adapter.send(row(adapter, "after"))
        assert adapter.pool == PoolUse(in_use=0, limit=1, replaced=0)
        if not is_cancelled:
            return
    pytest.fail("a send has more awaits than were tried")


async def test_a_request_goes_on_when_its_caller_is_cancelled(
    api: BotApi, make: MakeAdapter
) -> None:
    """A request that has begun is carried out, however far it has come when its caller goes."""
    adapter = make()
    for n in range(1, MOST_ROUNDS):
        sending = asyncio.get_running_loop().create_task(adapter.send(row(adapter, f"text {n}")))
        for _ in range(n):
            await asyncio.sleep(0)
        sending.cancel()
        await adapter.send(row(adapter, "next"))
    shown = {message.text for message in api.messages}
    assert {f"text {n}" for n in range(BEGUN_BY, MOST_ROUNDS)} <= shown


async def test_an_exhausted_client_is_replaced(
    api: BotApi, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that finds no free connection is delayed; the next one goes out on a fresh client."""
    monkeypatch.setattr(client, "_POOL_TIMEOUT_S", 0.05)
    adapter = make()
    api.fail("sendMessage", HANG)
    hanging = asyncio.get_running_loop().create_task(adapter.send(row(adapter, "hangs")))
    await api.wait_for(lambda: api.made("sendMessage"))
    assert adapter.pool == PoolUse(in_use=1, limit=1, replaced=0)
    with pytest.raises(SendDelayed, match="Pool timeout"):
        await adapter.send(row(adapter, "too many"))
    await adapter.send(row(adapter, "goes out"))
    assert adapter.pool == PoolUse(in_use=0, limit=1, replaced=1)
    assert not hanging.done()
    hanging.cancel()


async def test_an_unreachable_telegram_is_asked_with_a_fresh_client(make: MakeAdapter) -> None:
    """After five failures in a row the client is replaced, and not again at the tenth."""
    adapter = make(base_url=f"http://127.0.0.1:{unused_port()}")
    replaced = []
    for _ in range(10):
        with pytest.raises(SendDelayed):
            await adapter.send(row(adapter, "hi"))
        replaced.append(adapter.pool.replaced)
    assert replaced == [0, 0, 0, 0, *[1] * 6]


async def test_an_answer_takes_the_place_of_a_preview_that_came_late(
    api: BotApi, make: MakeAdapter
) -> None:
    """A preview whose caller stopped waiting is not overtaken, and does not stay beside it."""
    adapter = make()
    api.fail("sendMessage", Fault("slow", delay_s=0.3))
    showing = asyncio.get_running_loop().create_task(adapter.preview(asked(ANN), "half", None))
    await api.wait_for(lambda: api.made("sendMessage"))
    showing.cancel()
    await adapter.send(row(adapter, "the answer"))
    assert [(shown.text, shown.edits) for shown in api.messages] == [("the answer", 1)]


async def test_a_late_edit_does_not_come_behind_the_answer(api: BotApi, make: MakeAdapter) -> None:
    """An edit of a preview that is on its way at the end of a turn is waited for."""
    adapter = make()
    ref = await adapter.preview(asked(ANN), "half", None)
    api.fail("editMessageText", Fault("slow", delay_s=0.3))
    showing = asyncio.get_running_loop().create_task(adapter.preview(asked(ANN), "half more", ref))
    await api.wait_for(lambda: api.made("editMessageText"))
    showing.cancel()
    await adapter.send(row(adapter, "the answer", preview_ref=ref))
    assert [(shown.text, shown.edits) for shown in api.messages] == [("the answer", 2)]
