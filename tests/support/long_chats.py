"""Chats that outgrow the window: a model that looks at every view it gets, and what to check."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy import Row
from typing_extensions import override

from agent.errors import ContextOverflow
from agent.messages import ChatMessage, text_of
from agent.models.base import Completion, ModelRequest, TextSink
from agent.tokens import estimate_messages, estimate_tools
from agent.view.view import MARKER, NOTE
from gateway.storage import schema
from tests.support.conversations import faults
from tests.support.gateway import RecordingModel, Running, newest_question
from tests.support.scripted_model import Script, Step

WINDOW_TOKENS = 8_000
SUMMARY = (
    "## Active Task\nNone.\n## Goal\nSort out the orders.\n## Progress\n### Done\n1. Asked.\n"
    "## Critical Context\n2026-05-07"
)
"""What the model accepts as a summary; short, so that facts are appended to it."""

_ASKED = "text that a person wrote about it " * 20
_SAID = "words that the model found for it " * 25


def faithful(prompt: str) -> str:
    """Write a summary that keeps every order that the prompt names."""
    return f"{SUMMARY} {' '.join(sorted(set(re.findall('ORD-[0-9]+', prompt))))}"


def question(n: int) -> str:
    """Return what is asked at the n-th place: about 170 tokens with a fact of its own."""
    return f"Question {n}: where is order {fact(n)} of customer Cust{n:03d}? {_ASKED}".strip()


def fact(n: int) -> str:
    """Return what stands in the n-th question and nowhere else."""
    return f"ORD-{7000 + 37 * n}"


def reply(request: ModelRequest) -> Step:
    """Answer at some length: about 200 tokens."""
    return f"re: {newest_question(request)[:60]} {_SAID}".strip()


class LongChatModel(RecordingModel):
    """Answers and writes summaries; notes what is wrong with the views that it is given.

    Attributes:
        views: The requests for answers, in order.
        prompts: The prompts for summaries, in order.
        wrong: What a strict provider would have refused.
        summary: What is answered to the next prompts; it may depend on them.
        writing: Summaries wait while this is not set.
    """

    def __init__(
        self,
        script: Script = reply,
        *,
        context_length: int = WINDOW_TOKENS,
        summary: Step | Callable[[str], Step] = SUMMARY,
    ) -> None:
        super().__init__(script, context_length=context_length)
        self.views: list[ModelRequest] = []
        self.prompts: list[str] = []
        self.wrong: list[str] = []
        self.summary = summary
        self.writing = asyncio.Event()
        self.writing.set()
        self.given_up = 0
        self._answer = self._choose
        self._choose = self._step

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        if is_summary(request):
            self.prompts.append(text_of(request.messages[0]))
            self.watch.note()
            await self._held()
        else:
            self.views.append(request)
        return await super().complete(request, sink)

    async def _held(self) -> None:
        try:
            await self.writing.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            self.watch.note()
            raise

    def _step(self, request: ModelRequest) -> Step:
        if is_summary(request):
            return self.summary(self.prompts[-1]) if callable(self.summary) else self.summary
        self.views[-1] = request
        tokens = tokens_of(request)
        self.wrong += faults(request.messages)
        if tokens > self.context_length:
            self.wrong.append(f"{tokens} tokens in a window of {self.context_length}")
            return ContextOverflow("prompt is too long")
        return self._answer(request)


def is_summary(request: ModelRequest) -> bool:
    """Whether a request asks for a summary: those have no system prompt."""
    return request.messages[0]["role"] != "system"


def tokens_of(request: ModelRequest) -> int:
    """Return what a request takes, as the scripted models report it."""
    return estimate_messages(request.messages) + estimate_tools(request.tools)


def sent(request: ModelRequest) -> bytes:
    """Return all that a provider would get to see of a request, as bytes."""
    return orjson.dumps([request.messages, request.tools])


def systems(requests: Sequence[ModelRequest]) -> list[str]:
    """Return the system prompts of requests."""
    return [text_of(request.messages[0]) for request in requests]


def summary_of(request: ModelRequest) -> str:
    """Return the summary in a view; empty for none."""
    return next((text for m in request.messages if MARKER in (text := text_of(m))), "")


def shown(request: ModelRequest) -> str:
    """Return all texts of a view."""
    return "\n".join(map(text_of, request.messages))


def unnoted(system: str) -> str:
    """Return a system prompt without the note; it must stand there once at most."""
    assert system.count(NOTE) <= 1
    return system.removesuffix(NOTE)


async def chatted(chat: Running, first: int, last: int) -> None:
    """Ask the questions from the first to the last one, each after the answer to the one before."""
    for n in range(first, last + 1):
        answer = await chat.ask(question(n))
        assert answer.startswith(f"re: Question {n}:"), answer


async def until_compacted(chat: Running, start: int = 1, count: int = 1) -> int:
    """Ask until there were so many compactions; return the number of the next question."""
    n = start
    while len(chat.events("context_compressed")) < count:
        await chatted(chat, n, n)
        n += 1
        assert n < start + 100, "nothing is ever compacted"
    return n


async def until_prepared(chat: Running, start: int = 1) -> int:
    """Ask until a summary was written ahead; return the number of the next question.

    What an answer has asked for is waited for: further questions would bring a compaction.
    """
    n = start
    while not chat.events("summary_prepared"):
        await chatted(chat, n, n)
        await chat.gateway.beside.preparations.wait_idle()
        n += 1
    return n


async def digest(chat: Running, upto_seq: int | None = None) -> str:
    """Return a hash of the transcript's rows, of all or of those up to a position."""
    rows = [
        tuple(row)
        for row in await chat.rows(schema.message)
        if upto_seq is None or row.seq <= upto_seq
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


async def live_tips(chat: Running) -> list[int]:
    """Return the segments that have not ended."""
    return [row.id for row in await chat.rows(schema.session) if row.ended_at is None]


async def compactions(chat: Running) -> list[Row[Any]]:
    """Return the rows about compactions, oldest first."""
    return await chat.rows(schema.compaction)


async def reasons(chat: Running) -> list[tuple[str, str | None]]:
    """Return why each segment began and ended."""
    return [(row.start_reason, row.end_reason) for row in await chat.rows(schema.session)]


def questions(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the texts of the user messages."""
    return [text_of(message) for message in messages if message["role"] == "user"]
