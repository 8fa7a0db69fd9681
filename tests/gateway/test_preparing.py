"""Summaries that are written ahead of need, in the background."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import update

from agent.errors import ModelRefused, ModelUnreachable
from agent.models.scripted import Step
from agent.view import load_plan
from gateway.errors import StorageUnavailable
from gateway.storage import compactions, models
from tests.support.gateway import Running, running
from tests.support.long_chats import LongChatModel, chatted, fact, until_compacted

FEW = {"protect_last_n": 2}
WINDOW_TOKENS = 36_000


async def until_pressed(chat: Running, model: LongChatModel) -> int:
    """Ask until a summary is asked for ahead; return the number of the next question."""
    n = 1
    while not model.prompts:
        await chatted(chat, n, n)
        n += 1
    return n


def roomy(**options: object) -> LongChatModel:
    """Return a model whose compactions have room for what was prepared."""
    return LongChatModel(context_length=WINDOW_TOKENS, **options)  # type: ignore[arg-type]


async def test_from_80_percent_of_the_threshold_on_a_summary_is_written(tmp_path: Path) -> None:
    """It covers what has settled: not the head, not the newest messages."""
    async with running(tmp_path, roomy(), compression=FEW) as chat:
        model = chat.agent.models[0]
        assert isinstance(model, LongChatModel)
        await until_pressed(chat, model)
        line = await chat.logged("summary_prepared")
        [row] = await chat.rows(models.summary_candidate)
        [session] = await chat.rows(models.session)
        newest = len(await chat.transcript())
    assert 0.75 * 18_000 < (session.prompt_tokens or 0) < 18_000
    assert (row.session_id, row.source, row.model) == (session.id, "model", "scripted")
    assert (row.first_seq, row.last_seq) == (line["first_seq"], line["last_seq"])
    assert row.first_seq == 3
    assert 3 < row.last_seq < newest - 2


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
        assert len(await chat.rows(models.session)) == 1


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
    tmp_path: Path, failure: Step, reason: str
) -> None:
    """Nobody notices; the same segment does not ask again at once."""
    model = roomy(summary=failure)
    async with running(tmp_path, model, compression=FEW) as chat:
        n = await until_pressed(chat, model)
        line = await chat.logged("summary_not_prepared")
        await chatted(chat, n, n + 1)
        assert len(model.prompts) == 1
        assert await chat.rows(models.summary_candidate) == []
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


async def test_an_extract_is_replaced_by_a_summary_of_the_originals(tmp_path: Path) -> None:
    """The summary model was away at the first compaction: later it reads what left the view."""
    model = roomy(summary=ModelUnreachable("503"))
    async with running(tmp_path, model, compression=FEW) as chat:
        n = await until_compacted(chat)
        first = load_plan((await chat.rows(models.session))[-1].view_plan).summaries[0]
        assert first.source == "extract"
    again = roomy()
    over = update(models.session).values(planner_state="{}")
    async with running(tmp_path, again, compression=FEW) as chat:
        await chat.execute(over)  # the model's cooldown
        while not chat.events("summary_prepared"):
            await chatted(chat, n, n)
            n += 1
        [candidate] = await chat.rows(models.summary_candidate)
    material = "\n".join(again.prompts)
    assert all(fact(k) in material for k in range(2, 4))
    assert (candidate.first_seq, candidate.source) == (first.first_seq, "model")


async def test_without_a_summary_model_nothing_is_prepared(tmp_path: Path) -> None:
    """The offline model only plays a part: the extractor works alone."""
    model = roomy()
    model.provider = "offline"
    async with running(tmp_path, model, compression=FEW) as chat:
        await until_compacted(chat)
        assert model.prompts == []
        assert chat.events("summary_not_prepared") == []
        assert (await chat.rows(models.compaction))[0].failure is None


async def test_two_are_written_side_by_side(tmp_path: Path) -> None:
    """A third conversation waits for its place."""
    model = roomy()
    async with running(tmp_path, model, compression=FEW) as chat:
        model.writing.clear()
        chats = ("c1", "c2", "c3")
        while not model.prompts:
            await asyncio.gather(*(chat.ask(f"{name} " + "word " * 330, name) for name in chats))
        assert len(model.prompts) == 2
        model.writing.set()
        await chat.logged("summary_prepared", 3)
    assert len(model.prompts) == 3
