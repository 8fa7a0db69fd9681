"""Session hygiene: the safety net before a turn, at 85 % of the window."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from agent.context.planner import PAUSED
from agent.messages import Usage, assistant_message
from agent.models.base import Completion, ModelRequest
from agent.ports import PlannerState
from agent.settings import AgentSettings
from agent.view.view import load_plan
from gateway.pipeline import notices, turn
from gateway.storage import schema
from gateway.storage.conversation import sessions
from tests.support.gateway import RecordingModel, Running, agent_of, running
from tests.support.long_chats import (
    SUMMARY,
    LongChatModel,
    chatted,
    compactions,
    live_tips,
    question,
    summary_of,
)
from tests.support.scripted_model import Step

NEVER_IN_THE_LOOP = {"threshold": 1.0, "protect_last_n": 2}
"""The in-loop compressor waits for a full window, which leaves the field to hygiene."""
TOO_LATE_S = 0.05


@pytest.mark.parametrize(
    ("tokens", "messages", "due"),
    [(850, 4, True), (849, 4, False), (850, 3, False), (5000, 3, False), (5000, 400, True)],
)
def test_it_is_due_from_85_percent_and_four_messages_on(
    tokens: int, messages: int, due: bool
) -> None:
    """Both must hold."""
    assert turn.hygiene_is_due(tokens, 1000, messages) is due


async def outgrown(home: Path, model: LongChatModel | None = None) -> None:
    """Have a conversation whose view is larger than 85 % of the window of the next model."""
    roomy = model or LongChatModel(context_length=100_000)
    async with running(home, roomy, compression=NEVER_IN_THE_LOOP) as chat:
        await chatted(chat, 1, 20)
        assert await compactions(chat) == []
        # Else the next process sends the last answer once more.
        await chat.gateway.delivery.wait_idle()


@pytest.mark.thorough
async def test_a_model_with_a_smaller_window_triggers_it(tmp_path: Path) -> None:
    """One event and one row; the first request fits into the new window."""
    await outgrown(tmp_path)
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        await chatted(chat, 21, 21)
        [row] = await compactions(chat)
        [event] = chat.events("context_compressed")
        assert len(await live_tips(chat)) == 1
    assert (row.trigger, event["trigger"]) == ("hygiene", "hygiene")
    assert row.tokens_before >= 0.85 * 8_000 > row.tokens_after
    assert summary_of(model.views[0])
    assert model.wrong == []


@pytest.mark.thorough
async def test_a_summary_model_that_always_writes_too_long_is_not_asked_in_vain(
    tmp_path: Path,
) -> None:
    """Once for each part and once to merge them: what it wrote is cut, used, and told once."""
    await outgrown(tmp_path)
    model = LongChatModel(summary=f"{SUMMARY}\n{'There was more to be said. ' * 120}")
    async with running(tmp_path, model) as chat:
        await chatted(chat, 21, 21)
        [row] = await compactions(chat)
        [event] = chat.events("summary_too_long")
        booked = [each for each in await chat.rows(schema.ledger) if each.purpose == "summary"]
    assert (row.trigger, row.summary_model, row.failure) == ("hygiene", "scripted", None)
    merges = sum("summaries of consecutive parts" in prompt for prompt in model.prompts)
    assert (len(model.prompts), merges) == (4, 1)
    assert len(booked) == event["answers"] == len(model.prompts)
    assert 0 < event["kept_tokens"] < event["tokens"]
    assert "Sort out the orders." in summary_of(model.views[0])
    assert model.wrong == []


@pytest.mark.thorough
async def test_a_window_that_is_large_enough_does_not(tmp_path: Path) -> None:
    """The same history at a little less than 85 %."""
    await outgrown(tmp_path)
    model = LongChatModel(context_length=17_000)
    async with running(tmp_path, model, compression=NEVER_IN_THE_LOOP) as chat:
        await chatted(chat, 21, 21)
        assert await compactions(chat) == []


def reported(tokens: int) -> Callable[[ModelRequest], Step]:
    """Return a script whose short answers are reported with so many prompt tokens."""

    def script(_: ModelRequest) -> Step:
        return Completion(assistant_message("short"), "stop", Usage(tokens, 5), "scripted")

    return script


async def test_what_the_model_reported_counts_more_than_an_estimate(tmp_path: Path) -> None:
    """A few words that the provider counted as 90 % of the window."""
    model = LongChatModel(reported(7_200))
    async with running(tmp_path, model, compression=NEVER_IN_THE_LOOP) as chat:
        for text in ("one", "two"):
            await chat.ask(text)
        assert not chat.events("hygiene_without_effect")  # that turn began with three messages
        await chat.ask("three")
        [event] = chat.events("hygiene_without_effect")
    assert 7_200 <= event["tokens"] <= 7_300


@pytest.mark.thorough
async def test_a_small_report_prevents_it(tmp_path: Path) -> None:
    """What would be estimated at 90 % was reported as 10 %."""
    model = RecordingModel(reported(800), context_length=7_200)
    async with running(tmp_path, model, compression=NEVER_IN_THE_LOOP) as chat:
        for n in range(1, 20):
            assert await chat.ask("x" * 1_000 + str(n)) == "short"
        assert await compactions(chat) == []
        assert not chat.events("hygiene_without_effect")


@pytest.mark.thorough
async def test_without_effect_there_is_a_warning_and_an_answer(tmp_path: Path) -> None:
    """Instructions that take 90 % of the window cannot be condensed."""
    model = LongChatModel(lambda _: "ok", context_length=3_000)
    settings = AgentSettings(instructions="obey " * 1_350)
    agent = replace(agent_of(model), settings=settings)
    async with running(tmp_path, agent) as chat:
        for n in (1, 2, 3):
            await chat.say("hello")
            await answered(chat, n)
        assert chat.events("hygiene_without_effect")[0]["window_tokens"] == 3_000
        assert await compactions(chat) == []


async def answered(chat: Running, times: int) -> None:
    """Wait until the chat was answered so often, whatever else it was told."""
    await chat.until(lambda: chat.texts().count("ok") == times)


async def test_switched_off_it_does_nothing(tmp_path: Path) -> None:
    """`compression.enabled` false leaves everything to the provider."""
    await outgrown(tmp_path)
    model = LongChatModel()
    async with running(tmp_path, model, compression={"enabled": False}) as chat:
        await chat.ask(question(21))
        assert await compactions(chat) == []


@pytest.mark.thorough
async def test_a_hanging_summary_model_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time limit the extractor takes over; the call is given up."""
    # The model must have been asked by then, however slow the machine is.
    monkeypatch.setattr(turn, "HYGIENE_TIMEOUT_S", 3.0)
    await outgrown(tmp_path)
    model = LongChatModel()
    model.writing.clear()
    async with running(tmp_path, model) as chat:
        await chatted(chat, 21, 21)
        [row] = await compactions(chat)
        [event] = chat.events("context_compressed")
        plan = load_plan((await chat.rows(schema.view_plan))[-1].body)
        assert await chat.answers(1) == chat.texts()
        await chat.until(lambda: model.given_up)
    assert row.failure == event["failure"] == "the summary took too long"
    assert plan.summaries[0].source == "extract"
    assert row.summary_model is None
    assert model.wrong == []


async def test_a_long_wait_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user hears of it while it goes on, and then gets the answer."""
    monkeypatch.setattr(turn, "TELL_AFTER_S", TOO_LATE_S)
    await outgrown(tmp_path)
    model = LongChatModel()
    model.writing.clear()
    async with running(tmp_path, model) as chat:
        await chat.say(question(21))
        assert await chat.answers(1) == [notices.HYGIENE]
        model.writing.set()
        told = await chat.answers(2)
        await chat.gateway.delivery.wait_idle()
        assert len(chat.texts()) == 2
    assert told[1].startswith("re: Question 21")


async def test_a_short_wait_is_not_told(tmp_path: Path) -> None:
    """Nobody is bothered with what takes less than five seconds."""
    await outgrown(tmp_path)
    async with running(tmp_path, LongChatModel()) as chat:
        await chatted(chat, 21, 21)
        await chat.gateway.delivery.wait_idle()
        assert len(chat.texts()) == 1


async def begun(chat: Running, model: LongChatModel) -> None:
    """Ask what makes hygiene wait for the summary model."""
    model.writing.clear()
    await chat.say(question(21))
    await chat.until(lambda: model.prompts)


async def test_everybody_else_goes_on_meanwhile(tmp_path: Path) -> None:
    """Messages are admitted, commands and other chats are answered."""
    await outgrown(tmp_path)
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        await begun(chat, model)
        assert (await chat.say(question(22))).outcome == "queued"
        assert "working on an answer, 1 message queued" in await chat.ask("/status")
        assert (await chat.ask("hello", "c2")).startswith("re: hello")
        assert await compactions(chat) == []
        model.writing.set()
        assert [text[:14] for text in (await chat.answers(3))[1:]] == [
            "re: Question 21"[:14],
            "re: Question 22"[:14],
        ]
        assert len(await compactions(chat)) == 1


async def test_stop_ends_it_at_once(tmp_path: Path) -> None:
    """Nothing was committed, and the next message makes up for it."""
    await outgrown(tmp_path)
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        await begun(chat, model)
        assert await chat.ask("/stop") == "Stopped."
        assert (await chat.logged("turn_finished"))["outcome"] == "interrupted"
        assert await compactions(chat) == []
        model.writing.set()
        await chatted(chat, 22, 22)
        assert [row.trigger for row in await compactions(chat)] == ["hygiene"]


async def test_a_stop_whose_signal_was_lost_ends_it_at_its_commit(tmp_path: Path) -> None:
    """The row alone says that it was stopped: no compaction, no failure, one attempt."""
    await outgrown(tmp_path)
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        await begun(chat, model)
        stopped = update(schema.conversation).values(cancel_upto_seq=21)
        await chat.execute(stopped)
        model.writing.set()
        line = await chat.logged("turn_finished")
        assert (line["outcome"], line["attempt"]) == ("interrupted", 1)
        assert chat.events("turn_failed") == []
        assert await compactions(chat) == []


@pytest.mark.thorough
async def test_a_restart_in_the_middle_does_it_again(tmp_path: Path) -> None:
    """The process dies while the summary is written: one row, one answer."""
    await outgrown(tmp_path)
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        await begun(chat, model)
    model.writing.set()
    async with running(tmp_path, model) as chat:
        assert (await chat.answers(1))[0].startswith("re: Question 21")
        assert [row.trigger for row in await compactions(chat)] == ["hygiene"]
        assert len(await live_tips(chat)) == 1


@pytest.mark.parametrize(("window_tokens", "asked"), [(8_000, True), (24_000, False)])
async def test_only_the_loop_respects_a_cooldown(
    tmp_path: Path, window_tokens: int, asked: bool
) -> None:
    """The summary model failed a moment ago: hygiene asks it all the same, the loop does not."""
    await outgrown(tmp_path)
    model = LongChatModel(context_length=window_tokens)
    state = PlannerState(summary_not_before=time.time() + 300)
    stored = update(schema.session).values(planner_state=sessions.dump_state(state))
    async with running(tmp_path, model, at_work=False) as chat:
        await chat.execute(stored)
    async with running(tmp_path, model) as chat:
        await chatted(chat, 21, 21)
        [row] = await compactions(chat)
    assert row.trigger == ("hygiene" if asked else "preflight")
    assert bool(model.prompts) is asked
    told = ("scripted", None) if asked else (None, PAUSED)
    assert (row.summary_model, row.failure) == told
