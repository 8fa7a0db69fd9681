"""A long chat with the real process: compactions, a kill, and what the command line shows."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.web_chat import WebChat
from tests.support.process import ParleyProcess

SETTINGS = {"model": {"context_length": 6000}, "compression": {"protect_last_n": 4}}
FILLER = f"count to 3 {'x' * 1_500}"
"""Long to read, and answered in three words: the offline model streams word by word."""


@pytest.fixture
async def parley(tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway on the offline model with a small window."""
    async with ParleyProcess(tmp_path / "home", SETTINGS) as process:
        yield process


async def until_compacted(chat: WebChat, times: int) -> int:
    """Write until there were so many compactions; return how many messages were written."""
    written = 0
    while len(chat.parley.named("context_compressed")) < times:
        written += 1
        await chat.ask(f"The code of box {written} is BX-{written:04d}; {FILLER}")
        assert written < 60, "nothing is ever compacted"
    return written


async def test_a_long_chat_survives_a_kill_and_can_be_looked_at(parley: ParleyProcess) -> None:
    """Kill -9 and restart: it goes on; lineage, show and export print every segment and message."""
    chat = WebChat(parley)
    await chat.ask("My name is Ann.")
    written = await until_compacted(chat, 2)
    before = parley.transcript()
    await parley.kill9()
    await parley.restart()
    assert (
        await chat.ask("what was my first message?")
        == "Your first message was:\n\n> My name is Ann."
    )
    assert parley.transcript()[: len(before)] == before

    lineage = await parley.run("sessions", "lineage", "1")
    assert lineage.code == 0, lineage.stderr
    assert lineage.stdout.count("compression") >= 2
    assert "#3" in lineage.stdout

    export = await parley.run("sessions", "export", "1")
    assert export.code == 0, export.stderr
    assert "My name is Ann." in export.stdout
    records = [json.loads(line) for line in export.stdout.splitlines()]
    assert len(records) > len(before)
    for n in range(1, written + 1):
        assert f"The code of box {n} is BX-{n:04d}" in export.stdout
    assert parley.rows("SELECT count(*) FROM session WHERE ended_at IS NULL") == [(1,)]


@pytest.mark.thorough
async def test_a_kill_while_compress_waits_its_turn(parley: ParleyProcess) -> None:
    """`/compress` is on record when it was accepted: the next process carries it out, once."""
    # Room enough that nothing was condensed before.
    parley.settings["model"] = {"context_length": 12_000}
    await parley.terminate()
    await parley.restart()
    chat = WebChat(parley)
    for n in range(4):
        await chat.ask(f"Note {n}: {FILLER}")
    await chat.say("count to 30")
    await chat.until(lambda: chat.preview)
    seq = await chat.say("/compress notes")
    await parley.kill9()
    await parley.restart()
    await chat.until(lambda: seq in chat.answered())
    told = [text for text in chat.answers if text.startswith("Condensed: ")]
    assert len(told) == 1
    assert "Topic: `notes`" in told[0]
    query = "SELECT count(*) FROM compaction WHERE trigger = 'manual'"
    assert parley.rows(query) == [(1,)]


@pytest.mark.thorough
async def test_a_smaller_window_after_a_restart(parley: ParleyProcess) -> None:
    """The operator names a model with a smaller window: hygiene makes the history fit."""
    parley.settings["model"] = {"context_length": 60_000}
    await parley.terminate()
    await parley.restart()
    chat = WebChat(parley)
    for n in range(12):
        await chat.ask(f"Note {n}: {FILLER}")
    assert parley.named("context_compressed") == []
    await parley.terminate()
    parley.settings["model"] = {"context_length": 8_000}
    await parley.restart()
    await chat.ask("hello again")
    event = await parley.event("context_compressed")
    assert event["trigger"] == "hygiene"
    assert event["tokens_before"] >= 0.85 * 8_000 > event["tokens_after"]
    status = await chat.ask("/status")
    assert "of 8,000 tokens" in status
