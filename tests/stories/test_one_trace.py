"""One id from the update to the receipt, in every line in between: also where something fails."""

from pathlib import Path

import pytest

from adapters.messages import Attachment
from tests.support.gateway import HeldModel, running
from tests.support.recording_adapter import RecordingAdapter


async def test_what_fails_around_a_turn_has_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is written behind the turn, by the worker."""
    monkeypatch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 0.0)
    async with running(tmp_path, [KeyError("bug"), "fine"]) as chat:
        assert await chat.ask("one") == "fine"
        [failed] = chat.events("turn_failed")
        assert failed["trace"] == chat.events("message_admitted")[0]["trace"]


async def test_a_crash_changes_no_trace(tmp_path: Path) -> None:
    """The turn of the next process, and its receipt, go on under that of the admission."""
    held = HeldModel()
    held.hold("one")
    async with running(tmp_path, held) as chat:
        await chat.say("one")
        await chat.until(lambda: held.waiting)
        admitted = chat.events("message_admitted")[0]["trace"]
    async with running(tmp_path) as chat:
        sent = await chat.logged("message_sent")
        finished = await chat.logged("turn_finished")
        assert finished["trace"] == sent["trace"] == admitted


async def test_a_file_has_the_trace_of_its_message(tmp_path: Path) -> None:
    """It is fetched beside the path, and in its log."""
    adapter = RecordingAdapter()
    adapter.files["f1"] = b"words"
    file = Attachment(name="a.txt", kind="file", mime="text/plain", size_bytes=5, ref="f1")
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("look", attachments=(file,))
        stored = await chat.logged("attachment_stored")
        assert stored["trace"] == chat.events("message_admitted")[0]["trace"]
