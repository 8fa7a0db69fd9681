"""The web chat as an adapter."""

import asyncio

from typing_extensions import override

from adapters.base import Adapter, Elsewhere, Viewers
from adapters.messages import Address, MessageRef
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


class Noting(Elsewhere):
    """Notes what is told to other processes, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    @override
    def join(self, viewers: Viewers) -> None:
        self.viewers = viewers

    @override
    def opened(self, chat: str) -> None:
        self.told.append(("opened", chat))

    @override
    def closed(self, chat: str) -> None:
        self.told.append(("closed", chat))

    @override
    def growing(self, chat: str, text: str) -> None:
        self.told.append(("growing", chat, text))

    @override
    def working(self, chat: str) -> None:
        self.told.append(("working", chat))

    @override
    def ended(self, chat: str) -> None:
        self.told.append(("ended", chat))


async def test_other_processes_are_told_what_happens_in_a_chat() -> None:
    """What grows here, until it has ended."""
    noting = Noting()
    adapter = WebAdapter(WebSettings(), web_host(MemoryHistory(), elsewhere=noting))
    here = Address("web", "default", "c1")
    question = MessageRef(here)
    await adapter.show_working(question)
    await adapter.preview(question, "Hel", None)
    await send(adapter, "c1", 1, "Hello")
    assert noting.told == [
        ("working", "c1"),
        ("growing", "c1", "Hel"),
        ("ended", "c1"),
    ]


async def test_other_processes_know_which_chats_are_looked_at_here() -> None:
    """Each from the first who looks at it to the last."""
    noting = Noting()
    hub = WebAdapter(WebSettings(), web_host(MemoryHistory(), elsewhere=noting))._hub
    with hub.listen("c1"), hub.listen("c2"):
        with hub.listen("c1"):
            pass
        assert noting.told == [("opened", "c1"), ("opened", "c2")]
    assert noting.told[2:] == [("closed", "c2"), ("closed", "c1")]


async def test_what_other_processes_tell_is_shown_and_not_told_again() -> None:
    """Else two of them would never stop."""
    noting = Noting()
    hub = WebAdapter(WebSettings(), web_host(MemoryHistory(), elsewhere=noting))._hub
    with hub.listen("c1") as listener:
        listener.stale = False
        noting.viewers.show("c1", "Hel")
        noting.viewers.show_working("c1")
        noting.viewers.refresh("c1")
        assert (hub.preview("c1"), listener.working, listener.stale) == ("Hel", True, True)
        noting.viewers.show("c1", "")
        assert hub.preview("c1") == ""
    assert noting.told == [("opened", "c1"), ("closed", "c1")]
