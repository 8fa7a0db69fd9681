"""The web chat as an adapter."""

import asyncio

from adapters.base import Adapter
from adapters.web.adapter import WebAdapter
from adapters.web.platform import WebSettings
from tests.adapters.web.conftest import Served, send
from tests.support.door import web_host
from tests.support.history import MemoryHistory


def test_it_fulfils_the_port() -> None:
    """The adapter has everything the gateway asks for."""
    adapter: Adapter = WebAdapter(WebSettings(), web_host(MemoryHistory()))
    assert (adapter.platform, adapter.account, adapter.idempotent_sends) == ("web", "default", True)
    assert adapter.preview_interval_s == 0.05


async def test_it_is_connected_while_it_runs(chat: Served) -> None:
    """`run` waits until it is cancelled and can be called again."""
    assert not chat.adapter.connected
    for _ in range(2):
        running = asyncio.ensure_future(chat.adapter.run())
        await asyncio.sleep(0)
        assert chat.adapter.connected
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert not chat.adapter.connected


def test_an_answer_is_one_payload() -> None:
    """A page has no limit on length, and an empty answer is still a payload."""
    adapter = WebAdapter(WebSettings(), web_host(MemoryHistory()))
    assert adapter.render("x" * 300_000) == ["x" * 300_000]
    assert adapter.render("") == [""]


async def test_a_send_needs_no_listener(chat: Served) -> None:
    """The receipt names the row; the page reads it when it comes."""
    assert await send(chat.adapter, "nobody-there", 3, "hi") == "7:3"
    assert chat.adapter._hub._chats == {}
