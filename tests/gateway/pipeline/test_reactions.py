"""Reactions to messages: in order within a chat, best effort, and nothing waits for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from adapters.messages import Address, MessageRef, Reaction
from gateway.pipeline.reactions import AT_ONCE, WAITING, WAITING_IN_CHAT, ReactionQueue
from tests.support.recording_adapter import RecordingAdapter

ACCOUNT = ("telegram", "default")


def question(ref: str | None, chat: str = "c1") -> MessageRef:
    return MessageRef(Address(*ACCOUNT, chat), "u1", ref)


@asynccontextmanager
async def at_work(adapter: RecordingAdapter) -> AsyncIterator[ReactionQueue]:
    """Reactions of one account that are being shown."""
    reactions = ReactionQueue({ACCOUNT: adapter})
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(reactions.run())
        yield reactions
        work.cancel()


class Moody(RecordingAdapter):
    """Never comes back from, or breaks at, messages of these names."""

    @override
    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        if question.message_ref == "hang":
            await asyncio.Event().wait()
        if question.message_ref == "break":
            raise ZeroDivisionError
        await super().acknowledge(question, mark)


async def test_the_marks_of_a_message_stay_in_order() -> None:
    """Received comes before answered."""
    adapter = RecordingAdapter()
    async with at_work(adapter) as reactions:
        reactions.show(question("m1"), "received")
        reactions.show(question("m1"), "answered")
        await adapter.watch.until(lambda: len(adapter.marks) == 2)
    assert adapter.marks == [("m1", "received"), ("m1", "answered")]


async def test_what_has_no_message_is_not_marked() -> None:
    """A button press is no message."""
    adapter = RecordingAdapter()
    async with at_work(adapter) as reactions:
        reactions.show(question(None), "received")
        reactions.show(question("m2"), "received")
        await adapter.watch.until(lambda: adapter.marks)
    assert adapter.marks == [("m2", "received")]


@pytest.mark.parametrize("trouble", ["hang", "break"])
async def test_a_failing_reaction_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The next one of the same chat is shown."""
    monkeypatch.setattr("gateway.pipeline.reactions.TIMEOUT_S", 0.01)
    adapter = Moody()
    async with at_work(adapter) as reactions:
        reactions.show(question(trouble), "received")
        reactions.show(question("m1"), "received")
        await adapter.watch.until(lambda: adapter.marks)
    assert adapter.marks == [("m1", "received")]


async def test_a_slow_chat_holds_up_no_other() -> None:
    """As many chats hang as reactions may be on their way, less one."""
    adapter = Moody()
    async with at_work(adapter) as reactions:
        for number in range(AT_ONCE - 1):
            reactions.show(question("hang", f"slow{number}"), "received")
            reactions.show(question("hang", f"slow{number}"), "received")
        for number in range(9):
            reactions.show(question(f"m{number}", "c1"), "received")
        await adapter.watch.until(lambda: len(adapter.marks) == 9)
    assert adapter.marks == [(f"m{number}", "received") for number in range(9)]


async def test_too_many_are_dropped() -> None:
    """Of one chat, and of all together; what a platform is too slow for does not pile up."""
    adapter = RecordingAdapter()
    reactions = ReactionQueue({ACCOUNT: adapter})
    with capture_logs() as dropped:
        for number in range(WAITING_IN_CHAT + 3):
            reactions.show(question(str(number)), "received")
        for number in range(WAITING + 5):
            reactions.show(question("m", f"c{number}"), "received")
    assert [line["event"] for line in dropped] == ["reaction_dropped"] * (3 + 6)
