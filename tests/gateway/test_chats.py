"""What the web chat reads: list of chats, what was said, how full the context is."""

from pathlib import Path

from adapters.base import ContextGauge
from adapters.errors import SendRejected
from adapters.messages import Address
from gateway.chats import ChatHistory
from tests.support.gateway import HeldModel, Running, running
from tests.support.recording_adapter import RecordingAdapter

HERE = Address("telegram", "default", "c1")


def history_of(chat: Running) -> ChatHistory:
    return ChatHistory(chat.gateway.database, 1000, 10)


async def said(chat: Running, **after: int) -> list[tuple[int, int, str]]:
    items = await history_of(chat).items(HERE, **after)
    return [(item.inbox_seq, item.outbox_seq, item.markdown) for item in items]


async def test_chats_come_newest_first(tmp_path: Path) -> None:
    """With their titles; other accounts' are not among them."""
    async with running(tmp_path) as chat:
        for text, name in (("one", "a"), ("two", "b"), ("three", "a")):
            await chat.ask(text, name)
        found = await history_of(chat).chats("telegram", "default")
        assert [(it.chat, it.title) for it in found] == [("a", "one"), ("b", "two")]
        assert found[0].updated_at.endswith("Z")
        assert await history_of(chat).chats("telegram", "other") == []


async def test_an_answer_stands_behind_its_question(tmp_path: Path) -> None:
    """Also where another question came before the answer."""
    model = HeldModel()
    gate = model.hold("one")
    async with running(tmp_path, model) as chat:
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await chat.say("two")
        gate.set()
        await chat.answers(2)
        assert await said(chat) == [
            (1, 0, "one"),
            (1, 1, "re: one"),
            (2, 0, "two"),
            (2, 2, "re: two"),
        ]


async def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    """Both positions count on their own."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        await chat.ask("two")
        assert await said(chat, after_inbox=1, after_outbox=1) == [
            (2, 0, "two"),
            (2, 2, "re: two"),
        ]
        assert await said(chat, after_inbox=2, after_outbox=1) == [(2, 2, "re: two")]
        assert await said(chat, after_inbox=2, after_outbox=2) == []


async def test_an_unknown_chat_is_empty(tmp_path: Path) -> None:
    """No items, and nothing known about the context."""
    async with running(tmp_path, at_work=False) as chat:
        assert await said(chat) == []
        assert await history_of(chat).gauge(HERE) == ContextGauge(None, 1000)


async def test_the_gauge_shows_how_full_the_window_is(tmp_path: Path) -> None:
    """What is fixed before anything was said, more after an answer, the same again after /new."""
    async with running(tmp_path) as chat:
        await chat.ask("/status")
        assert (await history_of(chat).gauge(HERE)).used_tokens == 10
        await chat.ask("one")
        used = (await history_of(chat).gauge(HERE)).used_tokens
        assert used is not None
        assert used > 10
        await chat.ask("/new")
        assert (await history_of(chat).gauge(HERE)).used_tokens == 10


async def test_edits_are_no_items_of_their_own(tmp_path: Path) -> None:
    """A waiting message is shown in its newest wording."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("teh", message_ref="m1")
        await chat.say("the", message_ref="m1", kind="edit")
        assert await said(chat) == [(1, 0, "the")]


async def test_a_buried_answer_is_still_readable(tmp_path: Path) -> None:
    """The page shows what the platform did not take."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendRejected("blocked"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.logged("message_buried")
        assert (1, 1, "re: one") in await said(chat)


async def test_ids_with_colons_are_kept_apart(tmp_path: Path) -> None:
    """Chat "c1:t" is no thread of chat "c1"."""
    async with running(tmp_path) as chat:
        await chat.ask("one", "c1:t")
        thread = Address("telegram", "default", "c1", "t")
        assert await history_of(chat).items(thread) == []
