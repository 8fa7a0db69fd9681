"""Parley in `bench_store.py` of ../shared/peerbench: its SQLite file, one writer, fsync on commit.

Named by `STORE_OURS_MODULE=store_ours`. Every append is one `transcript.append` in a transaction of
its own, committed (synchronous=FULL) when it returns. A compaction is a turn that begins, and the
split of its session with a summary of 40 KB; the first one of a process, which builds its
statements, is done when the file is opened. Search comes later. The database belongs to one
process: the row "two processes" is refused with DatabaseLocked.
"""

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from agent.messages import ChatMessage
from agent.ports import Compaction, PlannerState
from agent.view.view import Summary, ViewPlan
from gateway.storage.conversation import compactions, transcript
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from tests.bench.running import inbound
from tests.bench.seeding import begun, open_place
from tests.support.storage import load_view

SUMMARY = "Order 4711 left the warehouse on 2026-05-07. " * 900


class Store:
    name = "ours"
    has_search = False
    appends_incrementally = True

    async def open(self, path: str) -> None:
        """Open or create the file."""
        self._path = Path(path) / "parley.db"
        self._stack = AsyncExitStack()
        self._database: Database = await self._stack.enter_async_context(open_database(self._path))
        self._places: dict[str, MessagePlace] = {}
        await self.create("warm up")
        await self.compact("warm up", [])

    def info(self) -> dict[str, Any]:
        """Return how the file is kept."""
        return {"journal_mode": "wal", "synchronous": "full", "writers": 1}

    async def create(self, sid: str, parent: str | None = None) -> None:
        """Create a conversation with its first session."""
        first = inbound(sid, sid, "")
        self._places[sid] = await self._database.write(open_place, first)

    async def append(self, sid: str, msg: ChatMessage) -> None:
        """Append one message; committed when this returns."""
        await self._database.write(transcript.append, self._places[sid], [msg])

    async def bulk(self, sid: str, msgs: list[ChatMessage]) -> None:
        """Append messages in one transaction."""
        await self._database.write(transcript.append, self._places[sid], msgs)

    async def load(self, sid: str) -> list[ChatMessage]:
        """Return the view of the whole conversation, as a turn loads it."""
        place = self._places[sid]
        return await self._database.read(load_view, place.conversation, ViewPlan())

    def search(self, q: str) -> list[Any]:
        """Not there yet; `has_search` is False."""
        raise NotImplementedError(q)

    async def compact(self, sid: str, msgs: list[ChatMessage]) -> None:
        """Have a turn begin and show only the newest messages, so many as are named."""
        current = await self._database.write(begun, inbound(sid, f"{sid} goes on", "Go on."))
        newest_seq = current.entries[0].seq
        plan = ViewPlan(
            head_upto=3,
            summaries=(Summary(SUMMARY, 4, newest_seq - len(msgs)),),
            tail_from=newest_seq - len(msgs) + 1,
        )
        done = Compaction(plan, "threshold", "compressor", "summary", 1_000, len(msgs), 9, 3, 1, 0)
        await self._database.write(compactions.compact, current, done, PlannerState())

    def size_bytes(self) -> int:
        """Return the size of the file and its log."""
        return sum(file.stat().st_size for file in self._path.parent.glob("parley.db*"))

    async def close(self) -> None:
        """Close the file."""
        await self._stack.aclose()
