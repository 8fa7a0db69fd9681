"""What the web chat reads: list of chats, what was said, how full the context is."""

from dataclasses import replace
from pathlib import Path

from adapters.base import Adapter, ContextGauge
from adapters.errors import SendRejected
from adapters.messages import Address, Attachment, OutgoingFile
from agent.errors import CredentialsRefused, ModelUnreachable
from agent.models.scripted import ScriptedModel
from agent.settings import AgentSettings
from gateway import notices
from gateway.app import assembled
from gateway.chats import ChatHistory
from gateway.commands import StatusFacts
from gateway.storage.opening import database_path, open_database
from tests.support.gateway import (
    HeldModel,
    RecordingModel,
    Running,
    agent_of,
    running,
    settings_of,
)
from tests.support.recording_adapter import RecordingAdapter

HERE = Address("telegram", "default", "c1")
FACTS = StatusFacts("claude-test", 1000, 500, "compressor", 10)


def history_of(chat: Running) -> ChatHistory:
    return ChatHistory(chat.gateway.database, lambda _: FACTS)


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


async def test_a_file_is_handed_out_to_its_own_chat_only(tmp_path: Path) -> None:
    """By its number, to whoever looks at that chat."""
    photo = Attachment(name="a.txt", kind="file", mime="text/plain", content=b"hi")
    async with running(tmp_path) as chat:
        await chat.ask("see", attachments=(photo,))
        await chat.ask("hello", "c2")
        history = history_of(chat)
        [[file], *_] = [item.files for item in await history.items(HERE)]
        assert await history.file(HERE, file.id) == OutgoingFile("a.txt", "text/plain", b"hi")
        assert await history.file(Address("telegram", "default", "c2"), file.id) is None
        assert await history.file(Address("telegram", "default", "nobody"), file.id) is None


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


async def test_the_gauge_goes_by_the_window_as_it_is_now(tmp_path: Path) -> None:
    """A provider may give the account less of it than its model has."""
    given: list[ChatHistory] = []

    def platforms(_settings: object, _intake: object, chats: ChatHistory) -> list[Adapter]:
        given.append(chats)
        return [RecordingAdapter()]

    model, settings = RecordingModel(context_length=1_000_000), settings_of(tmp_path)
    async with (
        open_database(database_path(settings)) as database,
        assembled(settings, database, agent_of(model), platforms),
    ):
        assert (await given[0].gauge(HERE)).window_tokens == 1_000_000
        model.context_length = 200_000
        assert (await given[0].gauge(HERE)).window_tokens == 200_000


async def test_notices_are_told_from_answers(tmp_path: Path) -> None:
    """What was said while the turn went on, whatever it was about."""
    failures = [ModelUnreachable("away") for _ in range(3)]
    model = ScriptedModel([*failures, "at last"], context_length=3_000)
    agent = replace(agent_of(model), settings=AgentSettings(instructions="obey " * 700))
    async with running(tmp_path, agent) as chat:
        await chat.say("hello " * 200)
        await chat.answers(4)
        await chat.ask("/help")
        items = [item for item in await history_of(chat).items(HERE) if item.outbox_seq]
        assert {item.markdown for item in items if item.notice} == {
            notices.TROUBLE,
            *notices.CONTEXT.values(),
        }
        assert next(item.markdown for item in items if not item.notice) == "at last"


async def test_a_failure_is_no_notice(tmp_path: Path) -> None:
    """Nothing comes after it."""
    async with running(tmp_path, [CredentialsRefused("no")]) as chat:
        await chat.ask("one")
        assert [item.notice for item in await history_of(chat).items(HERE)] == [False, False]


async def test_an_edit_comes_behind_what_it_changes(tmp_path: Path) -> None:
    """A page that has the message shows the new wording in its place."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("teh", message_ref="m1")
        await chat.say("the", message_ref="m1", kind="edit")
        items = await history_of(chat).items(HERE)
        assert [(item.markdown, item.ref) for item in items] == [("the", "m1"), ("the", "m1")]


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
