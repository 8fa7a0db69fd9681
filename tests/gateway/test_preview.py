"""A preview whose id was not stored: found again, or named by what is said last."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import update
from typing_extensions import override

from adapters.base import UNANNOUNCED, PreviewIntent
from adapters.errors import SendDelayed, SendRejected
from adapters.messages import Question
from agent.errors import ModelRefused
from agent.models.base import ModelRequest
from agent.models.scripted import Script
from gateway import notices
from gateway.storage import models
from tests.support.gateway import HeldModel, Running, echo, running
from tests.support.recording_adapter import RecordingAdapter

NAMED = f"{notices.REPLACES}\n\n"
SILENT = SendRejected("this platform has no look-up")


@pytest.fixture(autouse=True)
def _no_last_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway that is ended wait for no preview: it would, for one that is held."""
    monkeypatch.setattr("gateway.live.LAST_PREVIEW_S", 0.0)


async def killed_while_shown(home: Path) -> None:
    """Leave a turn whose preview was announced, and whose id was never stored."""
    adapter = RecordingAdapter()
    adapter.held_previews = asyncio.Event()
    model = HeldModel(begun="Once")
    async with running(home, model, adapter=adapter) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: adapter.previews)
        [row] = await chat.rows(models.turn)
        assert row.preview_ref.startswith("?")


@asynccontextmanager
async def resumed(
    home: Path, *findings: str | Exception, answers: Script = echo
) -> AsyncIterator[Running]:
    """Run a gateway on what the first one left; look-ups end as given."""
    await killed_while_shown(home)
    adapter = RecordingAdapter()
    adapter.findings.extend(findings)
    async with running(home, answers, adapter=adapter) as chat:
        yield chat


async def test_a_preview_is_found_and_becomes_the_answer(tmp_path: Path) -> None:
    """Nothing is said about it."""
    async with resumed(tmp_path, "m77") as chat:
        assert await chat.answers(1) == ["re: a story"]
        assert chat.adapter.shown[0].preview_ref == "m77"
        assert len(chat.adapter.looked_up) == 1


async def test_a_preview_that_was_never_shown_is_not_named(tmp_path: Path) -> None:
    """The platform says that there is none."""
    async with resumed(tmp_path) as chat:
        assert await chat.answers(1) == ["re: a story"]
        assert chat.adapter.shown[0].preview_ref is None


async def test_a_preview_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    """The answer says so, and is no edit of anything."""
    async with resumed(tmp_path, SILENT) as chat:
        assert await chat.answers(1) == [f"{NAMED}re: a story"]
        assert chat.adapter.shown[0].preview_ref is None
        assert (await chat.logged("preview_lost"))["reason"] == str(SILENT)


async def test_what_the_transcript_says_names_no_preview(tmp_path: Path) -> None:
    """The model does not read what its chat was told about messages."""
    async with resumed(tmp_path, SILENT) as chat:
        await chat.answers(1)
        assert (await chat.transcript())[-1]["content"] == "re: a story"


async def test_there_is_no_second_preview_below_a_lost_one(tmp_path: Path) -> None:
    """At most one message of a turn can be left behind."""
    await killed_while_shown(tmp_path)
    model = HeldModel(begun="Once more")
    gate = model.hold("a story")
    adapter = RecordingAdapter()
    adapter.findings.append(SILENT)
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.logged("preview_lost")
        gate.set()
        await chat.answers(1)
        assert adapter.previews == []


async def test_a_platform_that_cannot_say_it_now_is_asked_again(tmp_path: Path) -> None:
    """It may not be connected yet."""
    async with resumed(tmp_path, SendDelayed("not connected", 0.01), "m77") as chat:
        await chat.answers(1)
        assert chat.adapter.shown[0].preview_ref == "m77"


async def test_nobody_waits_long_for_a_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the answer names what may stand there."""
    monkeypatch.setattr("gateway.preview.LOOK_UP_S", 0.0)
    async with resumed(tmp_path, *[SendDelayed("busy", 60.0)] * 9) as chat:
        assert await chat.answers(1) == [f"{NAMED}re: a story"]


async def test_a_flaw_of_a_look_up_costs_no_answer(tmp_path: Path) -> None:
    """A turn that failed by it would ask the model again, and could not even be given up."""
    async with resumed(tmp_path, KeyError("bug")) as chat:
        assert await chat.answers(1) == [f"{NAMED}re: a story"]
        assert (await chat.logged("preview_lost"))["reason"] == "KeyError('bug')"


class Undecided(RecordingAdapter):
    """Takes a preview back while its look-up waits for what is known of other messages."""

    intent: PreviewIntent = UNANNOUNCED

    @override
    async def preview(
        self,
        question: Question,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        await super().preview(question, text, ref, grows=grows, intent=intent)
        self.intent = intent
        return None


async def test_what_is_taken_back_meanwhile_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a nonce a look-up could take another message for it."""
    adapter = Undecided()
    model = HeldModel(begun="Once")
    gate = model.hold("a story")

    def taken_back(*_: object) -> frozenset[str]:
        adapter.intent.undo()
        return frozenset()

    monkeypatch.setattr("gateway.storage.outbox.newest_refs", taken_back)
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.say("a story")
        await chat.until(lambda: adapter.previews)
        gate.set()
        assert await chat.answers(1) == ["re: a story"]
        assert adapter.looked_up == []


def refuses(_: ModelRequest) -> str:
    """Answer nothing; a script."""
    raise ModelRefused("never")


async def test_a_failed_turn_names_what_stands_there(tmp_path: Path) -> None:
    """The notice has the place of the answer."""
    async with resumed(tmp_path, SILENT, answers=refuses) as chat:
        assert await chat.answers(1) == [f"{NAMED}{notices.REFUSED}"]


async def test_a_failed_turn_takes_the_place_of_what_is_found(tmp_path: Path) -> None:
    """The notice replaces it."""
    async with resumed(tmp_path, "m77", answers=refuses) as chat:
        await chat.answers(1)
        assert chat.adapter.shown[0].preview_ref == "m77"


@pytest.mark.parametrize("finding", [SILENT, "m77"])
async def test_giving_up_deals_with_it(tmp_path: Path, finding: str | Exception) -> None:
    """The notice names it, or takes its place."""
    await killed_while_shown(tmp_path)
    adapter = RecordingAdapter()
    adapter.findings.append(finding)
    async with running(tmp_path, at_work=False) as chat:
        await chat.execute(update(models.turn).values(attempt=99))
    async with running(tmp_path, adapter=adapter) as chat:
        told = NAMED * (finding is SILENT) + notices.GAVE_UP
        assert await chat.answers(1) == [told]
        assert adapter.shown[0].preview_ref == (None if finding is SILENT else finding)


async def test_a_turn_that_cannot_begin_again_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be asked at that point."""
    await killed_while_shown(tmp_path)

    def failing(*_: object) -> None:
        raise LookupError("bug")

    monkeypatch.setattr("gateway.storage.turns.count_attempt", failing)
    monkeypatch.setattr("gateway.worker.RETRY_AFTER_S", 0.0)
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == [NAMED + notices.NEVER_BEGAN]


class Forgetful(RecordingAdapter):
    """Shows a preview, or refuses it, and returns no id."""

    def __init__(self, *, refused: bool) -> None:
        super().__init__()
        self._refused = refused

    @override
    async def preview(
        self,
        question: Question,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        await super().preview(question, text, ref, grows=grows, intent=intent)
        if self._refused:
            intent.undo()
        return None


@pytest.mark.parametrize("refused", [True, False])
async def test_a_lost_reply_is_dealt_with_in_the_same_process(
    tmp_path: Path, *, refused: bool
) -> None:
    """The answer looks for the preview, unless the platform has refused to show one."""
    adapter = Forgetful(refused=refused)
    adapter.findings.extend([] if refused else ["m77"])
    model = HeldModel(begun="Once")
    gate = model.hold("a story")
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.say("a story")
        await chat.until(lambda: adapter.previews)
        gate.set()
        await chat.answers(1)
        assert adapter.shown[0].preview_ref == (None if refused else "m77")
        assert len(adapter.looked_up) == (0 if refused else 1)


async def test_a_turn_without_a_preview_announces_none(tmp_path: Path) -> None:
    """It ends before the first one could be shown."""
    async with running(tmp_path, adapter=RecordingAdapter(preview_interval_s=60)) as chat:
        await chat.ask("hello")
        [row] = await chat.rows(models.turn)
        assert row.preview_ref is None
