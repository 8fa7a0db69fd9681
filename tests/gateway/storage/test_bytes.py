"""What a message and a conversation take on the disk, with everything that is stored for them."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.messages import InboundMessage
from agent.messages import Usage, assistant_message
from agent.models.base import Completion, ModelRequest, TextSink
from gateway.agent_ports import search
from gateway.storage.queue import inbox
from tests.bench.echo import EchoModel
from tests.bench.running import Chats, inbound, running

pytestmark = pytest.mark.usefixtures("sqlite_alone")

CHATS = 300
TURNS = 15


class Fixed(EchoModel):
    """Answers with a text of a given length, as a provider with a cache reports it."""

    name = label = "claude-sonnet-5"

    def __init__(self, chars: int) -> None:
        self._chars = chars

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        text = text_of(len(request.messages), self._chars)
        sink.push(text)
        usage = Usage(1_003, 90, 20_000, 400)
        return Completion(assistant_message(text), "stop", usage, self.name)


def text_of(number: int, chars: int) -> str:
    """Return plain text of exactly so many characters, another one for each number."""
    words = (f"Order {number + n} left the warehouse and will be there soon. " for n in range(9))
    return "".join(words)[:chars]


def as_telegram_sends_it(chat: int, number: int, chars: int) -> InboundMessage:
    """Return a message with ids as long as Telegram's."""
    bare = inbound(f"{700_000_000 + chat}", f"update:{900_000_000 + number}", "")
    text = text_of(number, chars)
    return replace(bare, text=text, message_ref=f"{100_000 + number}", raw=f'{{"text": "{text}"}}')


def size_of(home: Path) -> int:
    """Return the bytes of all pages that tables and indexes have."""
    with closing(sqlite3.connect(home / "parley.db")) as conn:
        (size,) = conn.execute("SELECT sum(pgsize) FROM dbstat").fetchone()
    return int(size)


@pytest.fixture(autouse=True)
def _fed_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is fed only when `grown` says so.

    How many messages are fed together decides about the pages of the index, by 14 bytes of each
    message: that must not depend on how busy the machine is.
    """
    monkeypatch.setattr(search, "FEED_EVERY_S", 3_600.0)


async def grown(home: Path, chars: int, chats: Sequence[int], turns: int, *, first: int) -> int:
    """Have each chat ask so often, one beside the other; return by how much the database grew.

    Raw updates are pruned. The first `first` turns of each chat are not measured. After each turn
    the search index is fed.
    """
    people = Chats()
    async with running(home, people.on_send, Fixed(chars)) as gateway:

        async def ask(chat: int, number: int) -> None:
            await gateway.intake.accept([as_telegram_sends_it(chat, number, chars)])
            async with asyncio.timeout(60):
                await people.answers(f"{700_000_000 + chat}").get()

        async def settled() -> int:
            await gateway.delivery.wait_idle()
            await gateway.beside.indexer.feed_all()
            while await gateway.database.write(inbox.prune_raw, -1.0):
                pass
            return await asyncio.to_thread(size_of, home)

        await ask(1_000, -1)
        before = await settled()
        for turn in range(turns):
            if turn == first:
                before = await settled()
            await asyncio.gather(*(ask(chat, turn * 1_000 + chat) for chat in chats))
            await gateway.beside.indexer.feed_all()
        return await settled() - before


async def test_a_conversation_with_one_question_takes_3_kb(tmp_path: Path) -> None:
    """Question and answer of 150 characters, the conversation and its segment: 8.2 KB at 0.5."""
    size = await grown(tmp_path, 150, range(CHATS), 1, first=0)
    assert size / CHATS <= 3_000


async def test_a_message_of_370_bytes_takes_1340(tmp_path: Path) -> None:
    """Inbox or outbox, transcript, and its half of turn, step, ledger row and search index."""
    chats = range(CHATS // TURNS)
    size = await grown(tmp_path, 370, chats, TURNS + 1, first=1)
    assert size / (2 * CHATS) <= 1_340
