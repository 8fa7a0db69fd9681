"""Who stops waiting ends no call of Slack's Web API; a client that is of no use is replaced."""

import asyncio

import pytest

from adapters.errors import SendDelayed
from adapters.slack import client
from adapters.slack.adapter import SlackAdapter
from tests.adapters.slack.conftest import (
    MENU,
    MakeAdapter,
    outgoing,
    question,
    settings_of,
    until,
)
from tests.support.cancelling import cancelled_at
from tests.support.process import free_port
from tests.support.recording_intake import FAST, RecordingIntake
from tests.support.slack.faults import slow
from tests.support.slack.people import ANNS_DM
from tests.support.slack.server import SlackServer
from tests.support.virtual_time import run_virtually

MOST_AWAITS = 20


async def test_a_send_cancelled_at_any_await_loses_nothing(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """Whichever await a send is cancelled at, its request is carried out and the next one, too."""
    await adapter.send(outgoing("first"))
    for n in range(1, MOST_AWAITS):
        if not await cancelled_at(adapter.send(outgoing(f"text {n}")), n):
            break
        await until(lambda n=n: slack.shown(ANNS_DM)[-1] == f"text {n}")
    assert slack.shown(ANNS_DM) == ["first", *[f"text {k}" for k in range(1, n + 1)]]
    assert (adapter.pool.in_use, adapter.pool.limit, adapter.pool.replaced) == (0, 100, 0)


async def test_an_unreachable_slack_is_asked_with_a_fresh_client(make: MakeAdapter) -> None:
    """After five failures in a row the client is replaced, and not again at the tenth."""
    adapter = make(base_url=f"http://127.0.0.1:{free_port()}/api/")
    replaced = []
    for _ in range(10):
        with pytest.raises(SendDelayed):
            await adapter.send(outgoing("hi"))
        replaced.append(adapter.pool.replaced)
    assert replaced == [0, 0, 0, 0, *[1] * 6]


def test_an_exhausted_client_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that finds no free connection is delayed; the next one goes out on a fresh client."""
    monkeypatch.setattr(client, "_CONNECTIONS", 1)

    async def three_sent() -> None:
        async with SlackServer() as slack:
            adapter = SlackAdapter(settings_of(slack), RecordingIntake(), MENU, limits=FAST)
            slack.fail("chat.postMessage", slow(client._CONNECT_TIMEOUT_S * 2))
            hanging = asyncio.get_running_loop().create_task(adapter.send(outgoing("hangs")))
            await slack.wait_for(lambda: slack.calls)
            with pytest.raises(SendDelayed):
                await adapter.send(outgoing("too many"))
            await adapter.send(outgoing("goes out"))
            assert adapter.pool.replaced == 1
            assert slack.shown(ANNS_DM) == ["goes out"]
            hanging.cancel()
            await adapter.close()
            assert slack.violations == []

    run_virtually(three_sent())


async def test_an_answer_takes_the_place_of_a_preview_that_came_late(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """A preview whose caller stopped waiting is not overtaken, and does not stay beside it."""
    slack.fail("chat.postMessage", slow(0.3))
    showing = asyncio.get_running_loop().create_task(adapter.preview(question(), "half", None))
    await slack.wait_for(lambda: slack.calls)
    showing.cancel()
    await adapter.send(outgoing("the answer"))
    assert slack.shown(ANNS_DM) == ["the answer"]
