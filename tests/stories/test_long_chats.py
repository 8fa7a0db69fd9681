"""Long chats in a running gateway: what the model sees, what is stored, what people are told."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from sqlalchemy import update

from agent.errors import ContextOverflow
from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.settings import AgentSettings
from agent.tokens import estimate_messages
from agent.tools.builtin.history import read_conversation
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from agent.view.view import NOTE, load_plan
from gateway import wiring
from gateway.commands.compress import NOTHING_TO_COMPRESS
from gateway.commands.new import NEW_TEXT
from gateway.pipeline import notices
from gateway.storage import schema
from gateway.storage.database import location_of
from tests.support.gateway import Running, agent_of, newest_question, running, settings_of
from tests.support.long_chats import (
    LongChatModel,
    chatted,
    compactions,
    digest,
    live_tips,
    question,
    reasons,
    reply,
    sent,
    shown,
    summary_of,
    systems,
    tokens_of,
    unnoted,
    until_compacted,
    until_prepared,
)
from tests.support.scripted_model import Step, tool_call
from tests.support.turns import lose_the_first_answer

pytestmark = pytest.mark.untraced

FIGURES = (
    "trigger",
    "engine",
    "messages_before",
    "messages_after",
    "tokens_before",
    "tokens_after",
    "summary_model",
    "retained_share",
    "cache_tokens_lost",
    "duration_ms",
    "failure",
)
"""What a row and an event say alike about a compaction."""

EACH_ENGINE = pytest.mark.parametrize("engine", ["compressor", "lcm"])

Run = Callable[[], Awaitable[str]]


class NoArguments(Arguments):
    """For a tool that takes none."""


def tool_of(run: Run) -> Tool:
    """Return a tool named "look" that only reads."""

    async def look(_context: ToolContext, _arguments: NoArguments) -> str:
        return await run()

    return Tool("look", "Looks.", "read", NoArguments, look)


# A long chat


@EACH_ENGINE
async def test_a_long_chat_is_compacted_again_and_again(tmp_path: Path, engine: str) -> None:
    """Each view is valid and fits; the question stands in it word for word."""
    model = LongChatModel()
    async with running(tmp_path, model, context={"engine": engine}) as chat:
        await chatted(chat, 1, 50)
        assert len(chat.events("context_compressed")) >= 5
    assert model.wrong == []
    assert [newest_question(view) for view in model.views] == [question(n) for n in range(1, 51)]
    assert all(view.messages[1]["role"] == "user" for view in model.views)


@pytest.mark.thorough
async def test_the_system_prompt_changes_by_the_note_only_and_once(tmp_path: Path) -> None:
    """The bytes of prompt and tools are those of the first request, also after a restart."""
    models_ = [LongChatModel(), LongChatModel()]
    for n, model in enumerate(models_):
        agent = agent_of(model, tools=[read_conversation])
        async with running(tmp_path, agent) as chat:
            await chatted(chat, 20 * n + 1, 20 * n + 20)
    views = [view for model in models_ for view in model.views]
    prompts = systems(views)
    assert {unnoted(prompt) for prompt in prompts} == {prompts[0]}
    noted = [prompt.endswith(NOTE) for prompt in prompts]
    assert noted == sorted(noted)
    assert noted[-1]
    assert {orjson.dumps(view.tools) for view in views} == {orjson.dumps(views[0].tools)}


@EACH_ENGINE
async def test_compactions_never_touch_the_transcript(tmp_path: Path, engine: str) -> None:
    """Its rows hash to the same before and after; there is one live segment at any time."""
    async with running(tmp_path, LongChatModel(), context={"engine": engine}) as chat:
        n = await until_compacted(chat)
        upto_seq = len(await chat.transcript())
        before = await digest(chat)
        await until_compacted(chat, n, count=3)
        await chat.ask("/compress")
        assert await digest(chat, upto_seq) == before
        assert len(await live_tips(chat)) == 1
        assert [row.seq for row in await chat.rows(schema.message)] == [
            *range(1, len(await chat.transcript()) + 1)
        ]


@EACH_ENGINE
async def test_segments_form_one_line(tmp_path: Path, engine: str) -> None:
    """Each continues the one before; the conversation is in the newest, which alone lives."""
    async with running(tmp_path, LongChatModel(), context={"engine": engine}) as chat:
        await until_compacted(chat, count=3)
        segments = await chat.rows(schema.session)
        [conversation] = await chat.rows(schema.conversation)
    assert [row.parent_session_id for row in segments] == [None, *(row.id for row in segments[:-1])]
    assert [row.end_reason for row in segments] == ["compression"] * (len(segments) - 1) + [None]
    assert [row.number for row in segments] == [*range(1, len(segments) + 1)]
    assert conversation.active_session_id == segments[-1].id


@pytest.mark.thorough
@EACH_ENGINE
async def test_a_compaction_leaves_one_row_and_one_event_that_agree(
    tmp_path: Path, engine: str
) -> None:
    """The figures are the same, and the row has the size that the next call reported."""
    model = LongChatModel()
    async with running(tmp_path, model, context={"engine": engine}) as chat:
        await until_compacted(chat, count=4)
        rows, events = await compactions(chat), chat.events("context_compressed")
    logged = [[event[name] for name in FIGURES] for event in events]
    assert [[getattr(row, name) for name in FIGURES] for row in rows] == logged
    assert [row.level for row in rows] == [event["rung"] for event in events]
    first_views = [model.views[event["turn"] - 1] for event in events]
    assert [row.tokens_after_reported for row in rows] == [tokens_of(view) for view in first_views]
    assert [row.messages_after for row in rows] == [len(view.messages) for view in first_views]


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_restart_shows_the_very_same_view(tmp_path: Path) -> None:
    """What is asked after a restart goes out byte for byte as it would have without one."""
    for compacted in range(5):
        going_on, restarted = LongChatModel(), LongChatModel()
        async with running(tmp_path / f"a{compacted}", going_on) as chat:
            n = await until_compacted(chat, count=compacted)
            await chat.gateway.delivery.wait_idle()
            copied(chat, tmp_path / f"b{compacted}")
            await chatted(chat, n, n)
        async with running(tmp_path / f"b{compacted}", restarted) as chat:
            await chatted(chat, n, n)
        assert sent(restarted.views[0]) == sent(going_on.views[-1])


def copied(chat: Running, home: Path) -> None:
    """Copy the database of a running gateway to where another one will find it."""
    home.mkdir()
    files = location_of(chat.gateway.settings), location_of(settings_of(home))
    assert all(isinstance(each, Path) for each in files)
    with (
        closing(sqlite3.connect(str(files[0]))) as source,
        closing(sqlite3.connect(str(files[1]))) as copy,
    ):
        source.backup(copy)


@pytest.mark.thorough
async def test_one_long_turn_is_compacted_inside_of_it(tmp_path: Path) -> None:
    """One user message, 60 tool calls with large results: it stays first, word for word."""

    async def run() -> str:
        return f"result {len(model.views)}: " + "many words of a large result " * 150

    def script(request: ModelRequest) -> Step:
        n = len(model.views)
        return "found it" if n > 60 else [tool_call("look", {}, f"call_{n}")]

    model = LongChatModel(script, context_length=20_000)
    async with running(tmp_path, agent_of(model, tools=[tool_of(run)])) as chat:
        assert await chat.ask("look everywhere") == "found it"
        assert len(await chat.rows(schema.turn)) == 1
        assert len(await chat.transcript()) == 122
        assert {row.trigger for row in await compactions(chat)} == {"threshold"}
    assert model.wrong == []
    assert all(text_of(view.messages[1]) == "look everywhere" for view in model.views)
    assert 3 <= len(chat.events("context_compressed")) <= 30


async def test_a_refused_view_is_made_smaller_and_sent_again(tmp_path: Path) -> None:
    """The provider's window is smaller than believed: one compaction, one answer."""

    def script(request: ModelRequest) -> Step:
        return ContextOverflow("prompt is too long") if len(model.views) == 12 else reply(request)

    model = LongChatModel(script, context_length=40_000)
    async with running(tmp_path, model) as chat:
        await chatted(chat, 1, 13)
        [row] = await compactions(chat)
    assert row.trigger == "overflow"
    refused, smaller = model.views[11:13]
    fixed = estimate_messages(refused.messages[:1])
    assert tokens_of(smaller) - fixed <= (tokens_of(refused) - fixed) // 2
    assert newest_question(model.views[12]) == question(12)
    assert model.wrong == []


async def test_a_view_that_is_always_refused_ends_the_turn(tmp_path: Path) -> None:
    """After three compactions its user is told what to do; nothing is lost."""

    def script(request: ModelRequest) -> Step:
        refuses = "Question 12" in newest_question(request)
        return ContextOverflow("prompt is too long") if refuses else reply(request)

    model = LongChatModel(script, context_length=40_000)
    async with running(tmp_path, model) as chat:
        await chatted(chat, 1, 11)
        assert "too long for the model" in await chat.ask(question(12))
        assert {row.trigger for row in await compactions(chat)} == {"overflow"}
        assert 1 <= len(await compactions(chat)) <= 3
        await chatted(chat, 13, 13)


async def test_switched_off_nothing_is_compacted(tmp_path: Path) -> None:
    """With `compression.enabled` false the provider alone says when it is too much."""
    model = LongChatModel()
    async with running(tmp_path, model, compression={"enabled": False}) as chat:
        await chatted(chat, 1, 11)
        assert "too long for the model" in await chat.ask("x " * 20_000)
        assert await compactions(chat) == []


# A message that is larger than the window


async def test_a_huge_message_is_clipped_and_can_be_read_in_full(tmp_path: Path) -> None:
    """Its user is told once, and the model reads all of it from the transcript."""
    huge = "".join(f"line {n} of a very long report\n" for n in range(40_000))
    pages: list[str] = []

    def script(request: ModelRequest) -> Step:
        if request.messages[-1]["role"] == "tool":
            pages.append(text_of(request.messages[-1]).partition(": ")[2].partition(" [+")[0])
        start = sum(map(len, pages))
        if start >= 60_000:
            return "read"
        arguments = {"from_seq": 1, "limit": 1, "from_char": start}
        return [tool_call("read_conversation", arguments, f"call_{start}")]

    model = LongChatModel(script, context_length=50_000)
    agent = agent_of(model, tools=[read_conversation])
    async with running(tmp_path, agent) as chat:
        await chat.say(huge)
        assert await chat.answers(2) == [notices.CONTEXT["clipped"], "read"]
        assert text_of((await chat.transcript())[0]) == huge
        assert (await compactions(chat))[0].level == "clip_newest"
    assert model.wrong == []
    assert huge.startswith("".join(pages))
    first = text_of(model.views[0].messages[1])
    assert first.startswith(huge[:1000])
    assert first.endswith(huge[-1000:])


async def test_instructions_that_fill_the_window_are_told(tmp_path: Path) -> None:
    """What no plan can change is above the threshold: the user hears of it, and is answered."""
    model = LongChatModel(context_length=3_000)
    instructions = "obey " * 700
    agent = replace(agent_of(model), settings=AgentSettings(instructions=instructions))
    async with running(tmp_path, agent) as chat:
        await chat.say("hello " * 200)
        told = await chat.answers(3)
    assert told[:2] == [notices.CONTEXT["clipped"], notices.CONTEXT["floor"]]
    assert chat.events("context_floor_reached")
    assert told[-1].startswith("re: hello")


# Summaries in the background


async def test_a_prepared_summary_is_used_without_a_call(tmp_path: Path) -> None:
    """At the threshold nobody waits for a model: the summary is there, with notes of what came."""
    model = LongChatModel(context_length=24_000)
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        n = await until_prepared(chat)
        candidates = await chat.rows(schema.summary_candidate)
        model.writing.clear()
        await until_compacted(chat, n)
        [row] = await compactions(chat)
        plan = load_plan((await chat.rows(schema.view_plan))[-1].body)
        assert await chat.rows(schema.summary_candidate) == []
    assert len(model.prompts) == 1
    # It is gone where the threshold came in the same turn.
    assert all(plan.summaries[0].text.startswith(each.text) for each in candidates)
    assert "Sort out the orders." in plan.summaries[0].text
    assert (plan.summaries[0].source, row.failure) == ("model", None)
    assert row.summary_model == "scripted"
    assert model.wrong == []


@pytest.mark.thorough
async def test_a_summary_that_is_not_ready_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compaction asks for its own; what comes later belongs to an ended segment."""
    monkeypatch.setattr(wiring, "SIDE_TASK_S", 1.0)
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        model.writing.clear()
        await until_compacted(chat, count=4)
        model.writing.set()
        assert await chat.rows(schema.summary_candidate) == []
        assert {row.summary_model for row in await compactions(chat)} == {None}
    assert model.wrong == []


async def test_a_summary_for_an_ended_segment_is_dropped(tmp_path: Path) -> None:
    """`/new` while it is being written: nothing is kept for the old segment, nothing breaks."""
    model = LongChatModel(context_length=36_000)
    model.writing.clear()
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        n = 1
        while not chat.events("context_pressure"):
            await chatted(chat, n, n)
            n += 1
        # It is asked for by now; a compaction, which comes later, would wait for it.
        await chat.until(lambda: model.prompts)
        assert await chat.ask("/new") == NEW_TEXT
        model.writing.set()
        await chat.logged("summary_prepared")
        assert await chat.rows(schema.summary_candidate) == []
        await chatted(chat, n, n)


async def test_stop_ends_a_summary_at_once(tmp_path: Path) -> None:
    """A turn that waits for the summary model is stopped like any other."""
    model = LongChatModel()
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        await chatted(chat, 1, 4)
        model.writing.clear()
        await chat.say("/compress")
        await chat.until(lambda: model.prompts)
        assert await chat.ask("/stop") == "Stopped."
        line = await chat.logged("turn_finished", 5)
        assert line["outcome"] == "interrupted"
        await chat.until(lambda: model.given_up)
        assert await compactions(chat) == []
        model.writing.set()
        await chatted(chat, 5, 5)


# Commands


async def test_compress_dwells_on_its_topic(tmp_path: Path) -> None:
    """The summary model is told the topic; the answer and the row have the same figures."""
    model = LongChatModel()
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        await chatted(chat, 1, 5)
        told = await chat.ask("/compress order ORD-7037")
        [row] = await compactions(chat)
    # The last question may have asked for a summary ahead of need, which may begin after this one.
    assert any('"order ORD-7037"' in prompt for prompt in model.prompts)
    assert (row.trigger, row.failure, row.summary_model) == ("manual", None, "scripted")
    assert f"{row.messages_before:,} → {row.messages_after:,} messages" in told
    assert f"{row.tokens_before:,} → {row.tokens_after:,} tokens" in told
    assert "Topic: `order ORD-7037`" in told
    assert model.wrong == []


async def test_compress_keeps_its_place_in_the_queue(tmp_path: Path) -> None:
    """What was asked before it is answered before it, what came after sees the summary."""
    model = LongChatModel()
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        await chatted(chat, 1, 4)
    async with running(tmp_path, model, at_work=False) as chat:
        for text in (question(5), "/compress", question(6)):
            await chat.say(text)
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        told = await chat.answers(3)
    assert told[0].startswith("re: Question 5")
    assert told[1].startswith("Condensed: ")
    assert told[2].startswith("re: Question 6")
    assert [bool(summary_of(view)) for view in model.views[-2:]] == [False, True]


async def test_compress_survives_a_crash(tmp_path: Path) -> None:
    """The process dies while the summary is written: the next one writes it, and answers once."""
    before, after = LongChatModel(), LongChatModel()
    async with running(tmp_path, before, compression={"protect_last_n": 2}) as chat:
        await chatted(chat, 1, 5)
        await chat.gateway.delivery.wait_idle()
        # The last question may have asked for a summary ahead of need.
        await chat.gateway.beside.preparations.wait_idle()
        before.writing.clear()
        await chat.say("/compress orders")
        await chat.until(lambda: '"orders"' in "".join(before.prompts))
    async with running(tmp_path, after, compression={"protect_last_n": 2}) as chat:
        told = await chat.answers(1)
        assert len(await compactions(chat)) == 1
        assert [row.state for row in await chat.rows(schema.inbox)] == ["done"] * 6
        await chatted(chat, 6, 6)
        assert len(chat.texts()) == 2
    assert told[0].startswith("Condensed: ")
    assert '"orders"' in after.prompts[0]
    assert after.wrong == []


async def test_compress_is_answered_for_what_was_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compaction is on record and its answer is not: it is told, not done once more."""
    lose_the_first_answer(monkeypatch)
    model = LongChatModel()
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        await chatted(chat, 1, 4)
        told = await chat.ask("/compress")
        [row] = await compactions(chat)
        assert len(chat.events("turn_failed")) == 1
    assert told.startswith("Condensed: ")
    assert f"{row.tokens_before:,}" in told
    assert len(model.prompts) == 1


async def test_compress_with_nothing_to_compress(tmp_path: Path) -> None:
    """A short chat stays as it is, without a row."""
    async with running(tmp_path, LongChatModel()) as chat:
        assert await chat.ask("/compress") == NOTHING_TO_COMPRESS
        await chat.ask("hello")
        assert await chat.ask("/compress") == NOTHING_TO_COMPRESS
        assert await compactions(chat) == []
        assert "- **Last turn**: nothing to compress" in await chat.ask("/status")


async def test_commands_are_not_counted_as_turns(tmp_path: Path) -> None:
    """`/compress` and `/model` take one, and answer nobody."""
    async with running(tmp_path, LongChatModel()) as chat:
        for text in ("hello", "/compress", "/model"):
            await chat.ask(text)
        told = await chat.ask("/usage")
        assert "1 turn," in told
        assert "3 turns" not in told


async def test_status_and_usage_tell_what_the_rows_say(tmp_path: Path) -> None:
    """Context as last reported, compactions and what they saved, calls and tokens."""
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        n = await until_compacted(chat, count=3)
        await chatted(chat, n, n)
        status, usage = await chat.ask("/status"), await chat.ask("/usage")
        rows, turns = await compactions(chat), await chat.rows(schema.turn)
        calls = await chat.rows(schema.ledger)
        here = (await chat.rows(schema.session))[-1]
    tokens = here.prompt_tokens + here.prompt_output_tokens
    context = f"{tokens:,} of 8,000 tokens ({tokens / 8000:.0%}), reported"
    assert context in status
    assert context in usage
    assert f"session {here.id}\n" in status
    assert f"from 4,000 tokens on (engine compressor); {len(rows)} compactions so far" in status
    saved = sum(row.tokens_before - row.tokens_after for row in rows)
    assert f"{len(rows)} compactions saved {saved:,} tokens" in usage
    read = sum(call.input_tokens for call in calls)
    wrote = sum(call.output_tokens for call in calls)
    asked = len(model.views) + len(model.prompts)
    assert f"{len(turns)} turns, {asked} model calls, 0 tool calls" in usage
    assert f"{read:,} tokens in, 0 from the cache (0%); {wrote:,} out" in usage


@pytest.mark.thorough
async def test_status_after_a_compaction_is_an_estimate(tmp_path: Path) -> None:
    """Until the next call the figure is the one of the compaction's row."""
    async with running(tmp_path, LongChatModel(), compression={"protect_last_n": 2}) as chat:
        await chatted(chat, 1, 5)
        await chat.ask("/compress")
        [row] = await compactions(chat)
        assert f"{row.tokens_after:,} of 8,000 tokens" in await chat.ask("/status")


async def test_retry_after_a_compaction(tmp_path: Path) -> None:
    """The question is asked again without its first answer; the summary stays."""
    model = LongChatModel()
    async with running(tmp_path, model, compression={"protect_last_n": 2}) as chat:
        n = await until_compacted(chat, count=2)
        await chatted(chat, n, n)
        summary = summary_of(model.views[-1])
        assert (await chat.ask("/retry")).startswith(f"re: Question {n}:")
        assert (await reasons(chat))[-1] == ("retry", None)
        assert len(await live_tips(chat)) == 1
    again = model.views[-1]
    assert summary_of(again) == summary
    assert shown(again).count(question(n)) == 1
    assert f"re: Question {n}:" not in shown(again)
    assert model.wrong == []


@pytest.mark.thorough
@EACH_ENGINE
async def test_retry_of_the_turn_that_was_compacted(tmp_path: Path, engine: str) -> None:
    """The newest turn's own messages are hidden, also where its compaction pinned them."""
    model = LongChatModel()
    async with running(tmp_path, model, context={"engine": engine}) as chat:
        n = await until_compacted(chat, count=3) - 1
        for _ in range(3):
            assert (await chat.ask("/retry")).startswith(f"re: Question {n}:")
            assert shown(model.views[-1]).count(question(n)) == 1
        await chatted(chat, n + 1, n + 10)
    assert model.wrong == []


# New beginnings


async def test_new_after_a_compaction_starts_without_a_summary(tmp_path: Path) -> None:
    """A root of its own: no summary, no note; the old segments and all messages stay."""
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        n = await until_compacted(chat, count=3)
        before = await digest(chat)
        await chat.ask("/new")
        assert await digest(chat) == before
        await chatted(chat, n, n)
        rows = await chat.rows(schema.session)
    assert [text_of(m) for m in model.views[-1].messages[1:]] == [question(n)]
    assert NOTE not in systems(model.views)[-1]
    assert (rows[-2].end_reason, rows[-1].start_reason) == ("new", "new")
    assert (rows[-1].parent_session_id, rows[-1].number) == (None, 1)


@pytest.mark.parametrize(
    ("reset", "pause_s", "reason"),
    [("idle", 2 * 3600, "idle"), ("daily", 86_400, "daily"), ("both", 2 * 3600, "idle")],
)
async def test_a_pause_begins_anew(tmp_path: Path, reset: str, pause_s: float, reason: str) -> None:
    """The reason ends the segment; nothing of the messages changes."""
    model = LongChatModel()
    sessions = {"reset": reset, "idle_minutes": 60}
    async with running(tmp_path, model, sessions=sessions) as chat:
        n = await until_compacted(chat)
        await chat.execute(update(schema.message).values(at=schema.message.c.at - pause_s))
        before, upto_seq = await digest(chat), len(await chat.transcript())
        await chatted(chat, n, n + 1)
        assert await digest(chat, upto_seq) == before
        assert (await reasons(chat))[-2:] == [("compression", reason), (reason, None)]
    assert [text_of(m) for m in model.views[n - 1].messages[1:]] == [question(n)]
    assert summary_of(model.views[-1]) == ""


async def test_without_resets_a_pause_is_none(tmp_path: Path) -> None:
    """The default: a conversation goes on after a year."""
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        await chatted(chat, 1, 1)
        await chat.execute(update(schema.message).values(at=schema.message.c.at - 365 * 86_400))
        await chatted(chat, 2, 2)
        assert await reasons(chat) == [("first_message", None)]
    assert question(1) in shown(model.views[-1])


# Engines


async def test_the_rounds_engine_is_chosen_by_settings(tmp_path: Path) -> None:
    """It keeps the newest rounds and heads its summary as HelloAgents does."""
    model = LongChatModel()
    context = {"engine": "rounds", "rounds": {"min_retain_rounds": 4}}
    async with running(tmp_path, model, context=context) as chat:
        await until_compacted(chat, count=3)
        assert {row.engine for row in await compactions(chat)} == {"rounds"}
        assert "(engine rounds)" in await chat.ask("/status")
    assert "## Archived Session Summary" in summary_of(model.views[-1])
    assert model.wrong == []
    assert model.prompts == []


async def test_rounds_can_have_its_summary_written(tmp_path: Path) -> None:
    """With `context.rounds.summary: llm` the summary model is asked."""
    parts = ("Task Goal", "Key Decisions", "Finished Work", "Open Items", "Important Findings")
    model = LongChatModel(summary="\n".join(f"### {part}\nNone." for part in parts))
    context = {"engine": "rounds", "rounds": {"min_retain_rounds": 4, "summary": "llm"}}
    async with running(tmp_path, model, context=context) as chat:
        await until_compacted(chat)
        assert [row.summary_model for row in await compactions(chat)] == [model.name]
    assert model.wrong == []


PLUGIN = '''
"""Keeps the newest message only."""
from dataclasses import replace
from agent.context_engine import Compressed, ContextEngine
from agent.view.view import Summary

class OnlyTheNewest(ContextEngine):
    name = "newest"

    def compress(self, request):
        first, newest = request.entries[0], request.entries[-1]
        if newest.message["role"] != "user" or newest.seq < first.seq + 2:
            return None
        summary = Summary("All forgotten.", first.seq + 1, newest.seq - 1, role="assistant")
        plan = replace(request.plan, head_upto=first.seq, summaries=(summary,),
                       tail_from=newest.seq, edits=())
        return Compressed(plan, "extract", 0)
'''


def plugged_in(home: Path, source: str) -> None:
    """Write a plugin named "newest" into a home."""
    folder = home / "plugins" / "context_engine" / "newest"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(source)
    for path in (folder / "__init__.py", folder, folder.parent, folder.parent.parent, home):
        path.chmod(0o700)


async def test_a_plugin_decides_what_is_shown(tmp_path: Path) -> None:
    """It lies in the home, the settings name it, and its plan is committed."""
    plugged_in(tmp_path, PLUGIN)
    model = LongChatModel()
    async with running(tmp_path, model, context={"engine": "newest"}) as chat:
        await until_compacted(chat, count=2)
        assert {row.engine for row in await compactions(chat)} == {"newest"}
    assert summary_of(model.views[-1]).endswith("All forgotten.")
    assert len(model.views[-1].messages) == 4
    assert model.wrong == []


async def test_a_broken_plugin_costs_nobody_an_answer(tmp_path: Path) -> None:
    """Each of its failures is a warning; the built-in compressor does its work."""
    broken = PLUGIN.replace("first, newest = request.entries[0], request.entries[-1]", "1 / 0")
    plugged_in(tmp_path, broken)
    model = LongChatModel()
    async with running(tmp_path, model, context={"engine": "newest"}) as chat:
        await until_compacted(chat, count=2)
        assert chat.events("engine_failed")[0]["reason"].startswith("ZeroDivisionError")
    assert model.wrong == []


async def test_an_unknown_engine_is_told_and_replaced(tmp_path: Path) -> None:
    """The warning lists what there is."""
    model = LongChatModel()
    async with running(tmp_path, model, context={"engine": "nonesuch"}) as chat:
        await until_compacted(chat)
        assert "rounds" in str(chat.events("engine_unavailable")[0])
        assert (await compactions(chat))[0].engine == "compressor"
