"""Who stops waiting ends no request to Discord; a client that does not reach it is replaced."""

import asyncio

import pytest

from adapters.discord.adapter import DiscordAdapter
from adapters.errors import SendDelayed
from tests.adapters.discord.conftest import MakeAdapter, asked, row, where
from tests.support.cancelling import cancelled_at
from tests.support.discord.faults import Fault
from tests.support.discord.server import DiscordServer
from tests.support.process import free_port

SLOW = Fault("slow", delay_s=0.3)
MOST_AWAITS = 20


async def test_a_send_cancelled_at_any_await_loses_nothing(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Whichever await a send is cancelled at, its request is carried out and the next one, too."""
    ann = server.direct()
    await adapter.send(row(adapter, "first", where(ann)))
    for n in range(1, MOST_AWAITS):
        message = row(adapter, f"text {n}", where(ann), nonce=f"{n:024x}")
        if not await cancelled_at(adapter.send(message), n):
            break
        await server.wait_for(lambda n=n: ann.messages[-1].content == f"text {n}")
    assert [m.content for m in ann.messages] == ["first", *[f"text {k}" for k in range(1, n + 1)]]
    assert (adapter.pool.in_use, adapter.pool.limit, adapter.pool.replaced) == (0, None, 0)


async def test_an_unreachable_discord_is_asked_with_a_fresh_client(
    server: DiscordServer, make: MakeAdapter
) -> None:
    """After five failures in a row the client is replaced, and not again at the tenth."""
    adapter = make(api_url=f"http://127.0.0.1:{free_port()}")
    replaced = []
    for _ in range(10):
        with pytest.raises(SendDelayed):
            await adapter.send(row(adapter, "hi", where(server.direct())))
        replaced.append(adapter.pool.replaced)
    assert replaced == [0, 0, 0, 0, *[1] * 6]


async def test_a_fresh_client_logs_in_by_itself(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Where the connections break five times in a row the next message goes out all the same."""
    ann = server.direct()
    server.fail("edit", *[Fault("drop")] * 5)
    for _ in range(5):
        with pytest.raises(SendDelayed):
            await adapter.send(row(adapter, "hi", where(ann), preview_ref="1"))
    assert adapter.pool.replaced == 1
    await adapter.send(row(adapter, "hi", where(ann)))
    assert [m.content for m in ann.messages] == ["hi"]


async def test_an_answer_takes_the_place_of_a_preview_that_came_late(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """A preview whose caller stopped waiting is not overtaken, and does not stay beside it."""
    ann = server.direct()
    said = server.write(ann, "?")
    server.fail("send", SLOW)
    showing = asyncio.get_running_loop().create_task(adapter.preview(asked(said), "half", None))
    await server.wait_for(lambda: any(call.route == "send" for call in server.calls))
    showing.cancel()
    await adapter.send(row(adapter, "the answer", where(ann), reply_to=asked(said).message_ref))
    assert [m.content for m in ann.messages if m.author is server.bot] == ["the answer"]


async def test_a_login_that_ends_behind_the_close_leaves_no_connection(
    server: DiscordServer, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is there too late is closed, and the row waits."""
    adapter = make()
    server.fail("login", SLOW)
    sending = asyncio.get_running_loop().create_task(
        adapter.send(row(adapter, "hi", where(server.direct())))
    )
    await server.wait_for(lambda: any(call.route == "login" for call in server.calls))
    await adapter.close(within_s=0)
    with pytest.raises(SendDelayed):
        await sending
    assert adapter.pool.in_use == 0
    assert adapter._api._http is None
