"""A summary model with a window of 8K: what is larger goes in parts, and nothing is paid twice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agent.models.openai.mode import mode_of
from agent.tokens import estimate_tokens
from gateway.storage import schema
from tests.support.gateway import Running, running
from tests.support.long_chats import LongChatModel, fact, faithful
from tests.support.model_server import Fault, Recorded, Refusal, Reply
from tests.support.openai_server import OpenAIServer
from tests.support.recording_adapter import Watch

REAL_TOKENS = 8_192
WINDOW_TOKENS = 60_000
ANSWER = faithful(fact(1))
FEW = {"protect_last_n": 2}


class LlamaCpp(OpenAIServer):
    """A server that was started with `-c 8192`: it refuses as llama.cpp does, or without a number.

    Attributes:
        tells: Whether a refusal names the window.
        watch: Noted with each request.
    """

    def __init__(self, *, tells: bool = True) -> None:
        super().__init__(default=Reply(text=ANSWER))
        self.tells = tells
        self.watch = Watch()

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.watch.note()
        super().check(headers, body)
        size = size_of(body) + body.get("max_tokens", 0)
        if size > REAL_TOKENS:
            raise Refusal(400, "exceed_context_size_error", f"{size} tokens are too many")

    @override
    def error_body(self, fault: Fault) -> dict[str, Any]:
        if fault.error != "exceed_context_size_error":
            return super().error_body(fault)
        message = "the request exceeds the available context size"
        told = {"n_prompt_tokens": 12_707, "n_ctx": REAL_TOKENS} if self.tells else {}
        return {"error": {"code": 400, "message": message, "type": fault.error, **told}}

    @property
    def taken(self) -> list[str]:
        """The prompts that were small enough, in order."""
        texts = [text_of(each) for each in self.requests]
        return [text for text in texts if estimate_tokens(text) < REAL_TOKENS]


def text_of(request: Recorded) -> str:
    (message,) = request.body["messages"]
    text: str = message["content"]
    return text


def size_of(body: dict[str, Any]) -> int:
    return sum(estimate_tokens(message["content"]) for message in body["messages"])


@asynccontextmanager
async def chatting(
    home: Path, server: OpenAIServer, main: LongChatModel, **block: Any
) -> AsyncIterator[Running]:
    """Run a gateway whose summaries the server writes."""
    own = {"provider": "openai", "model": "local", "base_url": server.url}
    auxiliary = {"compression": own | block}
    async with running(home, main, compression=FEW, auxiliary=auxiliary) as chat:
        yield chat


async def grown(chat: Running, first: int, last: int) -> None:
    """Say what makes the view grow by some 3,800 tokens each time."""
    for n in range(first, last + 1):
        words = " ".join(f"word{n}x{k}" for k in range(700))
        await chat.ask(f"Message {n} about {fact(n)}: {words}")


@pytest.mark.thorough
@pytest.mark.parametrize("tells", [True, False], ids=["told", "found"])
async def test_what_is_larger_than_the_window_is_summarised_in_parts(
    tmp_path: Path, tells: bool
) -> None:
    """Refusals teach how large it is, the next gateway too: all at once, or by two fifths each."""
    main = LongChatModel(context_length=WINDOW_TOKENS)
    async with LlamaCpp(tells=tells) as server:
        async with chatting(tmp_path, server, main) as chat:
            await grown(chat, 1, 7)
            line = await chat.logged("summary_prepared")
            assert line["model"] == "local"
            assert 1 <= len(server.refused) <= 5
            assert len(server.taken) > 3
            window = mode_of("openai/local").limit("window", None)
            assert 4_000 <= window <= 16_000
            assert not tells or window == REAL_TOKENS
            assert await chat.rows(schema.summary_part) == []
            refused = len(server.refused)
        async with chatting(tmp_path, server, main) as chat:
            await grown(chat, 8, 14)
            await chat.logged("summary_prepared")
            first, *_ = await chat.rows(schema.compaction)
            assert first.summary_model == "local"
        sizes = [int(refusal.split()[0]) for refusal in server.refused]
        assert not tells or len(sizes) == refused
        assert all(later < 0.65 * earlier for earlier, later in pairwise(sizes))
    assert (main.prompts, main.wrong) == ([], [])


async def test_what_a_setting_says_of_the_window_is_obeyed(tmp_path: Path) -> None:
    """Nothing is refused."""
    main = LongChatModel(context_length=WINDOW_TOKENS)
    async with (
        LlamaCpp() as server,
        chatting(tmp_path, server, main, context_length=REAL_TOKENS) as chat,
    ):
        await grown(chat, 1, 7)
        await chat.logged("summary_prepared")
        assert server.refused == []
        assert len(server.requests) > 3


async def test_a_larger_window_than_then_is_believed_in_again(tmp_path: Path) -> None:
    """The operator has started the server anew, and says so."""
    main = LongChatModel(context_length=WINDOW_TOKENS)
    async with LlamaCpp() as server:
        async with chatting(tmp_path, server, main, context_length=32_000) as chat:
            await grown(chat, 1, 7)
            await chat.logged("summary_prepared")
        async with chatting(tmp_path, server, main, context_length=64_000) as chat:
            summariser = chat.gateway.beside.preparations._parts.summariser
            assert summariser is not None
            assert summariser.models[0].context_length == 64_000


@pytest.mark.thorough
async def test_no_part_is_paid_for_twice(tmp_path: Path) -> None:
    """The process dies in the middle of the parts; the next one goes on behind what is kept."""
    main = LongChatModel(context_length=WINDOW_TOKENS)
    async with LlamaCpp() as server:
        server.script(*[Reply(text=ANSWER)] * 3, Reply(text="## Goal", trouble="stall"))
        async with chatting(tmp_path, server, main, context_length=REAL_TOKENS) as chat:
            await grown(chat, 1, 7)
            await server.watch.until(lambda: len(server.requests) == 4)
            parts = await chat.until_rows(schema.summary_part, lambda rows: len(rows) == 3)
            booked = [row for row in await chat.rows(schema.ledger) if row.purpose == "summary"]
            assert len(parts) == len(booked)
            paid = server.taken[: len(parts)]
        async with chatting(tmp_path, server, main, context_length=REAL_TOKENS) as chat:
            await chat.ask("Go on.")
            await chat.logged("summary_prepared")
            assert await chat.rows(schema.summary_part) == []
        again = server.taken[4:]
    assert again
    assert not set(paid) & set(again)


async def test_a_window_that_is_too_small_leaves_it_to_the_main_model(tmp_path: Path) -> None:
    """And where that refuses, too, to the extractor; nobody in the chat notices."""
    main = LongChatModel(context_length=WINDOW_TOKENS, summary=faithful)
    async with OpenAIServer(default=Reply(text=ANSWER)) as server:
        server.max_prompt_tokens = 1_500
        async with chatting(tmp_path, server, main) as chat:
            await grown(chat, 1, 7)
            await chat.logged("summary_prepared")
            status = await chat.ask("/status")
    assert main.prompts
    assert "its window is too small" in status
    assert "shown by a refused prompt" in status
