"""Summaries that are written ahead of need, in the background."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, delete, update

from agent.context import summary_model
from agent.errors import ModelRefused, ModelUnreachable
from agent.models.catalog import find_facts
from agent.models.recovery import RetryPolicy
from agent.view.view import load_plan
from gateway import wiring
from gateway.errors import StorageUnavailable
from gateway.storage import schema
from gateway.storage.conversation import compactions
from tests.support.gateway import Running, running
from tests.support.long_chats import (
    LongChatModel,
    chatted,
    fact,
    until_compacted,
    until_prepared,
)
from tests.support.scripted_model import Step

FEW = {"protect_last_n": 2}
WINDOW_TOKENS = 36_000
CHATS = ("c1", "c2", "c3")


async def until_pressed(chat: Running, model: LongChatModel) -> int:
    """Ask until a summary is asked for ahead; return the number of the next question."""
    begun, n = noted(chat, "ask"), 1
    while not begun.is_set():
        await chatted(chat, n, n)
        n += 1
    await chat.until(lambda: model.prompts)
    return n


async def until_three_are_pressed(chat: Running, model: LongChatModel) -> None:
    """Ask in three chats until each has asked for a summary ahead; two of these are begun."""
    begun = noted(chat, "ask")
    while not begun.is_set():
        await asyncio.gather(*(chat.ask(f"{name} " + "word " * 330, name) for name in CHATS))
    await chat.until(lambda: len(model.prompts) == 2)


def roomy(**options: object) -> LongChatModel:
    """Return a model whose compactions have room for what was prepared."""
    return LongChatModel(context_length=WINDOW_TOKENS, **options)  # type: ignore[arg-type]


def noted(chat: Running, name: str) -> asyncio.Event:
    """Return an event that is set when a turn calls this method of what prepares summaries."""
    ahead, called = chat.gateway.beside.preparations, asyncio.Event()
    method = getattr(ahead, name)

    def call(*args: Any) -> Any:
        called.set()
        return method(*args)

    setattr(ahead, name, call)
    return called


async def booked(chat: Running) -> list[Row[Any]]:
    """Return what summaries were paid for, and calls that led to nothing."""
    return [row for row in await chat.rows(schema.ledger) if row.purpose != "answer"]


async def test_from_80_percent_of_the_threshold_on_a_summary_is_written(tmp_path: Path) -> None:
    """It covers what has settled: not the head, not the newest messages."""
    async with running(tmp_path, roomy(), compression=FEW) as chat:
        model = chat.agent.models[0]
        assert isinstance(model, LongChatModel)
        await until_pressed(chat, model)
        line = await chat.logged("summary_prepared")
        [session] = await chat.rows(schema.session)
        newest = len(await chat.transcript())
    assert 0.75 * 18_000 < (session.prompt_tokens or 0) < 18_000
    assert (line["session"], line["model"], line["first_seq"]) == (session.id, "scripted", 3)
    assert 3 < line["last_seq"] < newest - 2


async def test_a_window_that_has_shrunk_decides_what_has_settled(tmp_path: Path) -> None:
    """The provider gives this account less than the start knew: more has to leave the view."""
    model = LongChatModel(context_length=1_000_000)
    async with running(tmp_path, model, compression=FEW) as chat:
        model.context_length = WINDOW_TOKENS
        await until_pressed(chat, model)
        line = await chat.logged("summary_prepared")
    assert line["last_seq"] > line["first_seq"]


async def test_one_summary_is_written_for_a_segment(tmp_path: Path) -> None:
    """However many turns ask for it while it is being written and after."""
    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        model.writing.clear()
        n = await until_pressed(chat, model)
        await chatted(chat, n, n)
        model.writing.set()
        await chat.logged("summary_prepared")
        await chatted(chat, n + 1, n + 1)
        assert len(model.prompts) == 1
        assert len(await chat.rows(schema.session)) == 1


async def test_a_turn_does_not_wait_for_it(tmp_path: Path) -> None:
    """Answers come while the summary model hangs."""
    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        model.writing.clear()
        n = await until_pressed(chat, model)
        await chatted(chat, n, n + 1)
        assert chat.events("summary_prepared") == []


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ModelUnreachable("503"), "ModelUnreachable: 503"),
        (ModelRefused("no"), "ModelRefused: no"),
        ("", "the summary is empty"),
        ("Sorry.", "the answer is not a summary"),
    ],
)
async def test_a_failure_is_logged_and_waits_before_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Step, reason: str
) -> None:
    """Nobody notices; the same segment does not ask again at once."""
    monkeypatch.setattr(summary_model, "RETRIES", RetryPolicy(retry_for_s=0))
    model = roomy(summary=failure)
    async with running(tmp_path, model, compression=FEW) as chat:
        n = await until_pressed(chat, model)
        line = await chat.logged("summary_not_prepared")
        await chatted(chat, n, n + 1)
        assert len(model.prompts) == 1
        assert await chat.rows(schema.summary_candidate) == []
    assert (line["level"], line["reason"]) == ("warning", reason)


async def test_a_failing_database_costs_only_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged, and the next turn asks again."""

    def broken(*_: object) -> None:
        raise StorageUnavailable("disk full")

    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        with monkeypatch.context() as patched:
            patched.setattr(compactions, "put_candidate", broken)
            n = await until_pressed(chat, model)
            assert (await chat.logged("summary_not_prepared"))["reason"] == "disk full"
        await chatted(chat, n, n)
        await chat.logged("summary_prepared")


async def test_what_should_not_happen_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is left alone for a while; turns go on."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        monkeypatch.setattr(compactions, "put_candidate", broken)
        n = await until_pressed(chat, model)
        line = await chat.logged("summary_preparation_failed")
        await chatted(chat, n, n + 1)
        assert len(model.prompts) == 1
    assert line["level"] == "error"


async def test_a_view_without_a_middle_has_nothing_to_prepare(tmp_path: Path) -> None:
    """All of it is kept as newest messages: no model is asked, and nothing is reported."""
    model = roomy()
    async with running(tmp_path, model, compression={"protect_last_n": 100}) as chat:
        asked = noted(chat, "ask")
        n = 1
        while not asked.is_set():
            await chatted(chat, n, n)
            n += 1
        await chatted(chat, n, n + 1)
        events = {line["event"] for line in chat.log}
    assert model.prompts == []
    assert not {"summary_prepared", "summary_not_prepared"} & events


@pytest.mark.thorough
@pytest.mark.parametrize("is_whole", [True, False])
async def test_an_extract_is_replaced_by_a_summary_of_the_originals(
    tmp_path: Path, is_whole: bool
) -> None:
    """The summary model was away at the first compaction: later it reads what left the view.

    Where retention has erased some of that, the extract is all that tells of it: it is read.
    """
    model = roomy(summary=ModelUnreachable("503"))
    async with running(tmp_path, model, compression=FEW) as chat:
        n = await until_compacted(chat)
        first = load_plan((await chat.rows(schema.view_plan))[-1].body).summaries[0]
        assert first.source == "extract"
        assert f"\n[{datetime.now(UTC).date().isoformat()[:8]}" in first.text
        if not is_whole:
            seq = schema.message.c.seq
            await chat.execute(delete(schema.message).where(seq.between(first.first_seq, 6)))
    again = roomy()
    over = update(schema.session).values(planner_state="{}")
    async with running(tmp_path, again, compression=FEW) as chat:
        await chat.execute(over)  # the model's cooldown
        await until_prepared(chat, n)
        line = await chat.logged("summary_prepared")
    material = "\n".join(again.prompts)
    assert all(fact(k) in material for k in range(2, 4))
    assert ("Notes taken without a model" in material) is not is_whole
    assert (line["first_seq"], line["model"]) == (first.first_seq, again.name)


async def test_without_a_summary_model_nothing_is_prepared(tmp_path: Path) -> None:
    """The offline model only plays a part: the extractor works alone."""
    model = roomy()
    model.provider = "offline"
    async with running(tmp_path, model, compression=FEW) as chat:
        await until_compacted(chat)
        assert model.prompts == []
        assert chat.events("summary_not_prepared") == []
        assert (await chat.rows(schema.compaction))[0].failure is None


@pytest.mark.thorough
async def test_two_are_written_side_by_side(tmp_path: Path) -> None:
    """A third conversation waits for its place."""
    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        model.writing.clear()
        await until_three_are_pressed(chat, model)
        for name in CHATS:
            await chat.ask("Hello", name)
        assert len(model.prompts) == 2
        model.writing.set()
        await chat.logged("summary_prepared", 3)
    assert len(model.prompts) == 3


async def test_a_summary_is_booked_for_the_sender_who_asked(tmp_path: Path) -> None:
    """It belongs to no turn."""
    model, known = roomy(), find_facts("claude-sonnet-4-5")
    assert known is not None
    model.name, model.facts = known.name, known
    async with running(tmp_path, model, compression=FEW) as chat:
        await until_pressed(chat, model)
        await chat.logged("summary_prepared")
        [row] = await booked(chat)
    assert (row.purpose, row.sender, row.turn_id) == ("summary", "telegram:u1", None)
    assert (row.provider, row.model, row.estimated) == ("scripted", model.name, False)
    assert row.usd > 0


async def test_an_auxiliary_model_is_sent_the_material(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator wants it to write."""
    main, small = roomy(), roomy()
    monkeypatch.setattr(wiring, "build_models", lambda *_: [small])
    block = {"compression": {"model": "small"}}
    async with running(tmp_path, main, compression=FEW, auxiliary=block) as chat:
        small.watch = main.watch
        await until_prepared(chat)
    assert small.prompts
    assert main.prompts == []


# What it may cost


async def test_a_preparation_that_fails_was_paid_for(tmp_path: Path) -> None:
    """There is no candidate, and a row for the call."""
    model = roomy(summary="Sorry.")
    async with running(tmp_path, model, compression=FEW) as chat:
        await until_pressed(chat, model)
        await chat.logged("summary_not_prepared")
        [row] = await booked(chat)
    assert (row.purpose, row.sender) == ("summary", "telegram:u1")
    assert row.input_tokens > 5_000


async def test_what_failed_is_not_paid_for_again_by_the_compaction(tmp_path: Path) -> None:
    """A short time later the threshold is there: the extractor stands in."""
    model = roomy(summary="Sorry.")
    async with running(tmp_path, model, compression=FEW) as chat:
        n = await until_pressed(chat, model)
        await chat.logged("summary_not_prepared")
        await until_compacted(chat, n)
        [row] = await chat.rows(schema.compaction)
        assert (row.level, row.failure) == ("extract", "the answer is not a summary")
        assert (len(model.prompts), len(await booked(chat))) == (1, 1)


@pytest.mark.thorough
async def test_a_used_up_budget_has_none_written(tmp_path: Path) -> None:
    """Nobody waits for it."""
    model = roomy()
    async with running(tmp_path, model, compression=FEW, budget={"daily_usd": 0}) as chat:
        begun, n = noted(chat, "ask"), 1
        while not begun.is_set():
            await chatted(chat, n, n)
            n += 1
        assert (await chat.logged("summary_not_prepared"))["reason"] == "a budget is used up"
        assert model.prompts == []


# When it is needed


async def test_a_compaction_waits_for_the_summary_that_is_being_written(tmp_path: Path) -> None:
    """It is paid for once."""
    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        needed = noted(chat, "ready")
        model.writing.clear()
        await until_pressed(chat, model)
        await chat.say("word " * 2_200)
        await needed.wait()
        model.writing.set()
        await chat.logged("context_compressed")
        [row] = await chat.rows(schema.compaction)
        assert (row.level, row.summary_model) == ("summary", "scripted")
        assert (len(model.prompts), len(await booked(chat))) == (1, 1)


@pytest.mark.thorough
async def test_a_compaction_does_not_wait_for_a_summary_that_nobody_has_begun(
    tmp_path: Path,
) -> None:
    """Both writers are busy with other conversations: it asks for its own."""
    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        model.writing.clear()
        await until_three_are_pressed(chat, model)
        material = "\n".join(model.prompts)
        third = next(name for name in CHATS if f"{name} word" not in material)
        await chat.say("word " * 6_000, third)
        await chat.until(lambda: len(model.prompts) == 3)
        assert f"{third} word" in model.prompts[2]
        model.writing.set()
        await chat.logged("context_compressed")
        await chat.logged("summary_prepared", 2)
