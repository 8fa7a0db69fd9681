"""Erases old data class by class, in steps too short to delay turns.

gateway/storage/retention.py defines the classes. `parley db prune` erases at once; `--dry-run` only
counts.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection

from gateway.settings.tree import RetentionSettings
from gateway.storage import retention
from gateway.storage.database import Database
from gateway.storage.queue import inbox
from gateway.storage.retention import Pruned

log = structlog.get_logger()

DAY_S = 86_400.0
PRUNE_EVERY_S = 3600.0
PAUSE_S = 0.005
"""Least pause between two steps; a longer step is followed by an equally long pause."""


def count_all(conn: Connection, settings: RetentionSettings, raw_days: int) -> dict[str, Pruned]:
    """Count what pruning would erase of each limited class."""
    counted = {"raw": retention.count_raw(conn, raw_days * DAY_S)}
    for name, days in _swept(settings):
        total = Pruned()
        for sweep in retention.SWEEPS[name]:
            total = total.plus(retention.count(conn, sweep, days * DAY_S))
        counted[name] = total
    if settings.transcript_days is not None:
        for each in _counted_transcripts(conn, settings.transcript_days * DAY_S):
            counted["transcript"] = counted["transcript"].plus(each)
    if settings.limits_files:
        due = retention.files_due(conn, _files_age_s(settings), settings.files_max_bytes)
        counted["files"] = Pruned(len(due), sum(size_bytes for _, size_bytes in due))
    return counted


def _files_age_s(settings: RetentionSettings) -> float | None:
    return None if settings.files_days is None else settings.files_days * DAY_S


def _swept(settings: RetentionSettings) -> Iterator[tuple[str, int]]:
    """Yield the classes limited by age alone, with their days."""
    for name in retention.SWEEPS:
        days = getattr(settings, f"{name}_days")
        if days is not None:
            yield name, days


def _counted_transcripts(conn: Connection, old_s: float) -> Iterator[Pruned]:
    after = 0
    while found := retention.conversations_with_old(conn, old_s, after):
        for after in found:
            yield retention.count_transcript(conn, after, old_s)


@dataclass(slots=True)
class Pruner:
    """Erases according to the retention settings and `storage.raw_days`."""

    database: Database
    settings: RetentionSettings
    raw_days: int

    def take(self, settings: RetentionSettings, raw_days: int) -> None:
        """Change the limits from the next class on."""
        self.settings, self.raw_days = settings, raw_days

    async def prune(self) -> dict[str, Pruned]:
        """Erase old data now; return the erased amount of each limited class."""
        settings = self.settings
        gone = {"raw": await self._summed(self._raw())}
        for name, days in _swept(settings):
            gone[name] = await self._summed(self._rows_of(name, days))
        if settings.transcript_days is not None:
            messages = await self._summed(self._transcripts(settings.transcript_days))
            gone["transcript"] = gone["transcript"].plus(messages)
        if settings.limits_files:
            gone["files"] = await self._summed(self._files())
        rows = {name: each.rows for name, each in gone.items() if each.rows}
        if rows:
            log.info("storage_pruned", rows=rows, bytes=sum(each.bytes for each in gone.values()))
        return gone

    async def _step(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run a short transaction, then pause for as long."""
        started = time.monotonic()
        result = await self.database.write(fn, *args)
        await asyncio.sleep(max(PAUSE_S, time.monotonic() - started))
        return result

    async def _summed(self, steps: AsyncIterator[Pruned]) -> Pruned:
        total = Pruned()
        async for each in steps:
            total = total.plus(each)
        return total

    async def _raw(self) -> AsyncIterator[Pruned]:
        old_s = self.raw_days * DAY_S
        due = await self.database.read(retention.count_raw, old_s)
        for _ in range(max(1, math.ceil(due.rows / retention.STEP_ROWS))):
            await self._step(inbox.prune_raw, old_s, retention.STEP_ROWS)
        yield due

    async def _rows_of(self, name: str, days: int) -> AsyncIterator[Pruned]:
        old_s = days * DAY_S
        for sweep in retention.SWEEPS[name]:
            while keys := await self.database.read(retention.find, sweep, old_s):
                before = Pruned()
                for at in range(0, len(keys), retention.STEP_ROWS):
                    some = keys[at : at + retention.STEP_ROWS]
                    before = before.plus(await self._step(retention.erase, sweep, old_s, some))
                yield before
                # If none were erased, the same rows would be found again.
                if len(keys) < retention.FOUND_ROWS or not before.rows:
                    break

    async def _transcripts(self, days: int) -> AsyncIterator[Pruned]:
        old_s = days * DAY_S
        async for conversation in self._each(retention.conversations_with_old, old_s):
            await self._step(retention.begin_anew, conversation, old_s)
            # Check on a reader first, since most active conversations have nothing to erase.
            if await self.database.read(retention.may_take_out, conversation, old_s):
                while (gone := await self._step(retention.take_out, conversation, old_s)).rows:
                    yield gone

    async def _each(self, find: Callable[..., list[int]], old_s: float) -> AsyncIterator[int]:
        after = 0
        while found := await self.database.read(find, old_s, after):
            for after in found:
                yield after

    async def _files(self) -> AsyncIterator[Pruned]:
        old_s, most = _files_age_s(self.settings), self.settings.files_max_bytes
        for file_id, size_bytes in await self.database.read(retention.files_due, old_s, most):
            if await self._step(retention.remove_file, file_id):
                yield Pruned(1, size_bytes)
        while keys := await self.database.read(retention.parts_left):
            for key in keys:
                await self._step(retention.erase_part, key)
