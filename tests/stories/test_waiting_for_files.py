"""Messages that wait for their files: nothing else waits for them."""

import asyncio
from pathlib import Path

import pytest
from typing_extensions import override

from adapters.messages import Address, Attachment
from gateway.storage import schema
from tests.support.gateway import Running, running, serving
from tests.support.recording_adapter import RecordingAdapter


class Slow(RecordingAdapter):
    """Its downloads hang until a test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.files = {"f": b"what it says"}
        self.gate = asyncio.Event()

    @override
    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        content = await super().fetch(address, attachment, limit_bytes)
        await self.gate.wait()
        return content


@pytest.fixture
def slow() -> Slow:
    """A platform whose downloads hang."""
    return Slow()


async def send_file(chat: Running, text: str = "see", where: str = "c1") -> None:
    """Send a file, and wait until it is being fetched."""
    before = len(chat.adapter.fetched)
    file = Attachment(name="a.txt", kind="file", ref="f")
    await chat.say(text, where, attachments=(file,))
    await chat.until(lambda: len(chat.adapter.fetched) > before)


async def test_a_question_is_answered_with_its_file(tmp_path: Path, slow: Slow) -> None:
    """As soon as that is there."""
    async with running(tmp_path, adapter=slow) as chat:
        await send_file(chat)
        slow.gate.set()
        [answer] = await chat.answers(1)
        assert answer.startswith("re: see\n\n[file: a.txt")
        assert "what it says" in answer


async def test_other_chats_do_not_wait(tmp_path: Path, slow: Slow) -> None:
    """However many of them hang, however few turns run at once."""
    async with running(tmp_path, adapter=slow, queue={"max_concurrent_turns": 1}) as chat:
        for n in range(3):
            await send_file(chat, where=f"slow{n}")
        assert await chat.ask("hello", "other") == "re: hello"


async def test_what_is_written_meanwhile_is_the_same_turn(tmp_path: Path, slow: Slow) -> None:
    """An album is several messages, and a question may come before or after its picture."""
    async with running(tmp_path, adapter=slow) as chat:
        await send_file(chat, "one")
        await chat.say("two")
        assert await chat.ask("hello", "other") == "re: hello"
        slow.gate.set()
        [answer] = await chat.answers(1)
        assert answer.startswith("re: one\ntwo\n\n[file: a.txt")


async def test_a_waiting_conversation_is_claimed_once(tmp_path: Path, slow: Slow) -> None:
    """Not again and again: it has no work until its file is there."""
    async with running(tmp_path, adapter=slow) as chat:
        await send_file(chat)
        await chat.until_rows(schema.conversation, lambda rows: rows[0].epoch == 1)
        await chat.until_rows(schema.conversation, lambda rows: rows[0].owner is None)
        assert await chat.ask("hello", "other") == "re: hello"
        waiting = (await chat.rows(schema.conversation))[0]
        assert (waiting.owner, waiting.ready_no, waiting.epoch) == (None, None, 1)


async def test_a_stop_reaches_a_download(tmp_path: Path, slow: Slow) -> None:
    """The next question is answered at once, and the file is not fetched again."""
    async with running(tmp_path, adapter=slow) as chat:
        await send_file(chat)
        assert "One queued message was dropped" in await chat.ask("/stop")
        assert await chat.ask("hello") == "re: hello"
        await chat.until_rows(schema.attachment, lambda rows: rows[0].state == "failed")
        assert slow.fetched == ["f"]


async def test_a_restart_resumes(tmp_path: Path, slow: Slow) -> None:
    """What hung is fetched by the next process."""
    async with running(tmp_path, adapter=slow) as chat:
        await send_file(chat)
    slow.gate.set()
    async with running(tmp_path, adapter=slow) as chat:
        assert (await chat.answers(1))[0].startswith("re: see")


async def test_the_end_of_a_gateway_does_not_wait_for_downloads(tmp_path: Path, slow: Slow) -> None:
    """They begin anew with the next one."""
    async with serving(tmp_path, adapter=slow, queue={"grace_s": 60}) as served:
        await send_file(served.chat)
        served.stop.set()
        await served.ended()
    assert not served.chat.texts()
