"""Long chats in a running gateway: what the model sees, what is stored, what people are told."""

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from agent.errors import ContextOverflow
from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.models.scripted import Step, tool_call
from agent.tools.builtin import read_conversation
from agent.tools.registry import Arguments, Tool, ToolContext
from agent.view import MARKER, NOTE, load_plan
from gateway import commands, notices
from gateway.storage import models
from gateway.storage.opening import database_path
from tests.support.gateway import Running, agent_of, newest_question, running, settings_of
from tests.support.long_chats import (
    SUMMARY,
    LongChatModel,
    chatted,
    compactions,
    digest,
    fact,
    live_tips,
    question,
    reasons,
    reply,
    sent,
    shown,
    summary_of,
    systems,
    unnoted,
    until_compacted,
)

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

Run = Callable[[], Awaitable[str]]


class NoArguments(Arguments):
    """For a tool that takes none."""


def tool_of(run: Run) -> Tool:
    """Return a tool named "look" that only reads."""

    async def look(_context: ToolContext, _arguments: NoArguments) -> str:
        return await run()

    return Tool("look", "Looks.", "read", NoArguments, look)


# A long chat


async def test_a_long_chat_is_compacted_again_and_again(tmp_path: Path) -> None:
    """Each view is valid and fits; the question stands in it word for word."""
    model = LongChatModel()
    async with running(tmp_path, model) as chat:
        await chatted(chat, 1, 50)
        assert len(chat.events("context_compressed")) >= 5
    assert model.wrong == []
    assert [newest_question(view) for view in model.views] == [question(n) for n in range(1, 51)]
    assert all(view.messages[1]["role"] == "user" for view in model.views)


async def test_the_system_prompt_changes_by_the_note_only_and_once(tmp_path: Path) -> None:
    """The bytes of prompt and tools are those of the first request, also after a restart."""
    models_ = [LongChatModel(), LongChatModel()]
    for n, model in enumerate(models_):
        agent = agent_of(model, tools=[read_conversation.TOOL])
        async with running(tmp_path, agent) as chat:
            await chatted(chat, 20 * n + 1, 20 * n + 20)
    views = [view for model in models_ for view in model.views]
    prompts = systems(views)
    assert {unnoted(prompt) for prompt in prompts} == {prompts[0]}
    noted = [prompt.endswith(NOTE) for prompt in prompts]
    assert noted == sorted(noted)
    assert noted[-1]
    assert {view.tools for view in views} == {views[0].tools}


async def test_compactions_never_touch_the_transcript(tmp_path: Path) -> None:
    """Its rows hash to the same before and after; there is one live segment at any time."""
    async with running(tmp_path, LongChatModel()) as chat:
        n = await until_compacted(chat)
        upto_seq = len(await chat.transcript())
        before = await digest(chat)
        await until_compacted(chat, n, count=3)
        await chat.ask("/compress")
        assert await digest(chat, upto_seq) == before
        assert len(await live_tips(chat)) == 1
        assert [row.seq for row in await chat.rows(models.message)] == [
            *range(1, len(await chat.transcript()) + 1)
        ]


async def test_segments_form_one_line(tmp_path: Path) -> None:
    """Each continues the one before; the conversation is in the newest, which alone lives."""
    async with running(tmp_path, LongChatModel()) as chat:
        await until_compacted(chat, count=3)
        segments = await chat.rows(models.session)
        [conversation] = await chat.rows(models.conversation)
    assert [row.parent_session_id for row in segments] == [None, *(row.id for row in segments[:-1])]
    assert [row.end_reason for row in segments] == ["compression"] * (len(segments) - 1) + [None]
    assert [row.number for row in segments] == [*range(1, len(segments) + 1)]
    assert conversation.active_session_id == segments[-1].id


async def test_a_compaction_leaves_one_row_and_one_event_that_agree(tmp_path: Path) -> None:
    """The figures are the same; the next call's report is added to the row."""
    async with running(tmp_path, LongChatModel()) as chat:
        await until_compacted(chat, count=4)
        rows, events = await compactions(chat), chat.events("context_compressed")
        logged = [[event[name] for name in FIGURES] for event in events]
        assert [[getattr(row, name) for name in FIGURES] for row in rows] == logged
        reported = await chat.rows(models.session)
    assert [row.tokens_after_reported for row in rows] == [
        next(r.prompt_tokens for r in chat_tokens) if (chat_tokens := []) else row.tokens_after
        for row in rows
    ]
    assert reported[-1].prompt_tokens is not None
