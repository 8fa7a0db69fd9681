"""Event streams: nothing lost, nothing twice, nothing dangerous."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import ChatItem
from adapters.door import Visitor
from adapters.messages import Address, Choice, MessageRef, OutgoingFile
from adapters.web.events import Hub, Position, page_html, positions
from gateway.access.rate_limits import VisitorLimits
from tests.adapters.web.conftest import Serve, Served
from tests.adapters.web.streams import Event, listen
from tests.support.door import TOKEN, MemoryDoor

C1 = MessageRef(Address("web", "default", "c1"))


def keys(events: list[Event]) -> list[tuple[int, int]]:
    return [
        (event.data["inbox_seq"], event.data["outbox_seq"])
        for event in events
        if event.name == "item"
    ]


async def test_a_stream_starts_with_what_was_said(chat: Served) -> None:
    """The history comes first, in order, then the gauge and the mark that it is complete."""
    chat.history.write("c1", "one")
    chat.history.answer("c1", "**two**")
    async with listen(chat) as stream:
        assert stream.response.content_type == "text/event-stream"
        one, two, gauge, synced = await stream.until("synced")
    assert one.data == {
        "inbox_seq": 1,
        "outbox_seq": 0,
        "html": "one",
        "who": "you",
        "at": "2026-11-21T14:05:00+00:00",
    }
    assert (two.data["who"], two.data["html"]) == ("parley", "<p><strong>two</strong></p>\n")
    assert (gauge.name, gauge.data) == ("gauge", {"used": None, "window": 200_000})
    assert (one.id, two.id, synced.id) == ("1-0", "1-1", None)


async def test_an_item_tells_its_files_buttons_and_id(chat: Served) -> None:
    """What an item has not is left out of it, see above."""
    photo = chat.history.keep("c1", OutgoingFile("a.png", "image/png", b"1234"))
    paper = chat.history.keep("c1", OutgoingFile("b.pdf", "application/pdf", b"12"))
    chat.history.write("c1", "look", files=(photo, paper), ref="m1")
    chat.history.answer("c1", "go on?", choices=(Choice("Yes", "/yes"),))
    async with listen(chat) as stream:
        asked, answered, *_ = await stream.until("synced")
    assert asked.data["ref"] == "m1"
    assert asked.data["files"] == [
        {"id": 1, "name": "a.png", "size": 4, "picture": True},
        {"id": 2, "name": "b.pdf", "size": 2, "picture": False},
    ]
    assert answered.data["choices"] == [{"label": "Yes", "text": "/yes"}]
    assert "files" not in answered.data


async def test_a_long_history_comes_in_several_writes(chat: Served) -> None:
    """All of it arrives, in order."""
    for n in range(10):
        chat.history.write("c1", f"{n}" * 10_000)
    async with listen(chat) as stream:
        events = await stream.until("synced")
    assert keys(events) == [(n, 0) for n in range(1, 11)]


async def test_an_answer_arrives_live(chat: Served) -> None:
    """A committed answer is shown as soon as it is sent, with the new state of the gauge."""
    async with listen(chat) as stream:
        await stream.until("synced")
        chat.history.used_tokens = 4000
        chat.history.write("c1", "hi")
        assert await chat.answer("hello") == "7:1"
        events = await stream.until("gauge")
    assert keys(events) == [(1, 0), (1, 1)]
    assert events[-1].data == {"used": 4000, "window": 200_000}


async def test_an_item_of_another_tab_arrives(chat: Served) -> None:
    """What is posted elsewhere shows up on every page that has the chat open."""
    async with listen(chat) as first, listen(chat) as second:
        await first.until("synced")
        await second.until("synced")
        await chat.post("from a third tab")
        assert (await first.one("item")).data["html"] == "from a third tab"
        assert (await second.one("item")).data["html"] == "from a third tab"


async def test_another_chat_stays_silent(chat: Served) -> None:
    """A stream carries its own chat only."""
    async with listen(chat, "c2") as stream:
        await stream.until("synced")
        await chat.post("elsewhere", chat="c1")
        await chat.post("here", chat="c2")
        assert (await stream.one("item")).data["html"] == "here"


@pytest.mark.parametrize("how", ["at", "last_event_id"])
async def test_a_reconnect_loses_and_repeats_nothing(chat: Served, how: str) -> None:
    """A client that comes back with its position gets exactly what it missed."""
    await chat.post("one")
    await chat.answer("first")
    async with listen(chat) as stream:
        last = [event.id for event in await stream.until("synced") if event.id][-1]
    await chat.post("two", key="m2")
    await chat.answer("second")
    async with listen(chat, **{how: last}) as stream:
        assert keys(await stream.until("synced")) == [(2, 0), (2, 2)]


async def test_a_late_answer_to_an_older_message_is_not_missed(chat: Served) -> None:
    """An answer that belongs before what was already shown is new all the same."""
    chat.history.write("c1", "long job")
    chat.history.write("c1", "/status")
    chat.history.answer("c1", "still working", inbox_seq=2)
    async with listen(chat) as stream:
        seen = await stream.until("synced")
        await chat.answer("done", inbox_seq=1)
        late = await stream.one("item")
    assert keys(seen) == [(1, 0), (2, 0), (2, 1)]
    assert (keys([late]), late.id) == ([(1, 2)], "2-2")


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12),
    st.integers(0, 12),
    st.randoms(use_true_random=False),
)
def test_a_cut_at_any_item_loses_nothing(shape: list, cut: int, random: object) -> None:
    """From the position of any item, all items after it are still to come."""
    outbox = list(range(1, len(shape) + 1))
    random.shuffle(outbox)  # type: ignore[attr-defined]
    answers = [ChatItem(seq, outbox[n], "", "") for n, (seq, _) in enumerate(shape)]
    people = [ChatItem(seq, 0, "", "") for seq in range(1, 5)]
    items = sorted(people + answers, key=lambda item: (item.inbox_seq, item.outbox_seq))
    at = positions(Position(), items)[min(cut, len(items) - 1)]
    missed = [
        item
        for item in items[cut + 1 :]
        if (item.outbox_seq <= at.outbox if item.outbox_seq else item.inbox_seq <= at.inbox)
    ]
    assert missed == []
    assert positions(Position(), items)[-1] == Position(4, len(shape))


async def test_a_late_joiner_gets_the_current_preview(chat: Served) -> None:
    """Who opens the page in the middle of an answer sees what is there of it."""
    assert await chat.adapter.preview(C1, "Once *upon*", None) is None
    await chat.adapter.preview(C1, "Once *upon* a", None)
    async with listen(chat) as stream:
        assert (await stream.one("preview")).data == {"html": "<p>Once <em>upon</em> a</p>\n"}


async def test_a_preview_ends_with_its_answer(chat: Served) -> None:
    """The answer comes first and the preview goes then, so that the text never disappears."""
    async with listen(chat) as stream:
        await chat.adapter.preview(C1, "Hel", None)
        await stream.until("preview")
        await chat.answer("Hello")
        names = [event.name for event in await stream.until("preview_end")]
    assert names == ["item", "preview_end"]
    async with listen(chat) as stream:
        assert "preview" not in [event.name for event in await stream.until("synced")]


async def test_work_is_shown(chat: Served) -> None:
    """The sign of work reaches those who listen, once each time."""
    async with listen(chat) as stream:
        await stream.until("synced")
        await chat.adapter.show_working(C1)
        assert (await stream.next()).name == "working"
        await chat.adapter.preview(C1, "x", None)
        assert (await stream.next()).name == "preview"


async def test_a_quiet_stream_is_pinged(serve: Serve) -> None:
    """Silence is broken by comments, so that a dead connection is noticed."""
    served = await serve(ping_s=0.01)
    async with listen(served) as stream:
        assert (await stream.until("ping"))[-1].name == "ping"
        await stream.until("ping")


async def test_a_ping_brings_what_nobody_announced(serve: Serve) -> None:
    """An answer committed by another process arrives with the next ping."""
    served = await serve(ping_s=0.05)
    async with listen(served) as stream:
        await stream.until("synced")
        served.history.answer("c1", "from a replica")
        assert "replica" in (await stream.one("item")).data["html"]


async def test_a_slow_client_blocks_nobody(chat: Served) -> None:
    """A stream whose reader stands still does not hold up sends or other readers."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", chat.port))
        lines = ["GET /api/chats/c1/events HTTP/1.1", f"Host: 127.0.0.1:{chat.port}"]
        lines += [f"Authorization: Bearer {TOKEN}"]
        slow.sendall("\r\n".join([*lines, "", ""]).encode())
        async with listen(chat) as stream:
            await stream.until("synced")
            for n in range(40):
                await chat.answer(f"{n} " + "x" * 200_000)
            seen = 0
            while seen < 40:
                seen += len(keys([await stream.next()]))
            await chat.answer("last")
            assert "last" in (await stream.one("item")).data["html"]
        assert any(listener.stale for listener in chat.adapter._hub._chats["c1"].listeners)


async def test_streams_end_when_the_adapter_closes(chat: Served) -> None:
    """A stop does not wait for browsers to go away."""
    async with listen(chat) as stream:
        await stream.until("synced")
        await chat.adapter.close()
        assert await stream.ended()


async def test_a_gone_client_is_forgotten(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ping to a client that left ends its stream, and nothing is kept for it."""
    served = await serve(ping_s=0.01)
    hub, gone = served.adapter._hub, asyncio.Event()
    monkeypatch.setattr(hub, "_forget_if_unused", lambda _chat: gone.set())
    async with listen(served) as stream:
        await stream.until("synced")
        assert len(hub._chats["c1"].listeners) == 1
    async with asyncio.timeout(30):
        await gone.wait()
    assert hub._chats["c1"].listeners == set()


async def test_a_ninth_stream_closes_the_oldest(chat: Served) -> None:
    """Its page gets `closed` and does not reconnect by itself; all others continue."""
    async with AsyncExitStack() as opened:
        streams = [await opened.enter_async_context(listen(chat, f"c{n}")) for n in range(9)]
        assert (await streams[0].until("closed"))[-1].data == {}
        assert await streams[0].ended()
        for n, stream in enumerate(streams[1:], 1):
            await chat.answer(f"answer {n}", chat=f"c{n}")
            assert f"answer {n}" in (await stream.one("item")).data["html"]


async def test_a_stream_that_there_is_no_room_for_comes_again(serve: Serve) -> None:
    """The stream does not start: a page tries again after a pause."""
    door = MemoryDoor()
    door.limits = VisitorLimits(1, 1)
    served = await serve(door=door)
    async with listen(served) as stream:
        await stream.until("synced")
        served.sign_in(Visitor("gina", "gina", "guest"))
        async with served.client.get("/api/chats/c1/events") as response:
            assert (response.status, response.headers.get("Retry-After")) == (503, "5")


def test_nothing_is_kept_for_a_chat_that_nobody_looks_at() -> None:
    """A chat takes memory only while it has a listener or a preview."""
    hub = Hub()
    with hub.listen("c1"):
        hub.show("c1", "x")
    assert hub.preview("c1") == "x"
    hub.show("c1", "")
    assert hub._chats == {}


@pytest.mark.parametrize("at", ["x-0", "-1-0", "0-1.5", f"{'9' * 30}-0"])
async def test_a_malformed_position_is_refused(chat: Served, at: str) -> None:
    """Numbers that are none do not silently start over."""
    inbox, _, outbox = at.rpartition("-")
    params = {"inbox": inbox, "outbox": outbox}
    async with chat.client.get("/api/chats/c1/events", params=params) as response:
        assert response.status == 400


async def test_markdown_is_sent_on_request(chat: Served) -> None:
    """The terminal client gets the text as it was written."""
    chat.history.write("c1", "1 < 2")
    chat.history.answer("c1", "**yes**")
    await chat.adapter.preview(C1, "*mo", None)
    async with listen(chat, markdown=True) as stream:
        events = await stream.until("preview")
    assert [event.data["markdown"] for event in events if "markdown" in event.data] == [
        "1 < 2",
        "**yes**",
        "*mo",
    ]


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '"><svg onload=alert(1)>',
        "[click](javascript:alert(1))",
        "![x](data:text/html;base64,PHNjcmlwdD4=)",
        '[a](https://ok.example/"onmouseover="alert(1))',
        "```html\n</code></pre><script>alert(1)</script>\n```",
    ],
)
async def test_no_markup_gets_through(chat: Served, attack: str) -> None:
    """Neither a person's text nor an answer or its preview can bring markup of its own."""
    chat.history.write("c1", attack)
    chat.history.answer("c1", attack)
    await chat.adapter.preview(C1, attack, None)
    async with listen(chat) as stream:
        events = await stream.until("preview")
    for html in [event.data["html"] for event in events if "html" in event.data]:
        assert "<script" not in html
        assert "<svg" not in html
        assert "<img src=x" not in html
        assert 'href="javascript' not in html
        assert 'src="data:text' not in html
        assert '"onmouseover' not in html


def test_a_tables_alignment_needs_no_style_attribute() -> None:
    """The page's policy forbids style attributes; quoted ones in the text stay text."""
    html = page_html('| a |\n|--:|\n| b style="text-align:right" |')
    assert '<td class="align-right">b style=&quot;text-align:right&quot;</td>' in html
    assert " style=" not in html.replace(" style=&quot;", "")
