"""Reads what was said while nobody listened: after a restart or a lost connection.

Slack delivers an event again for some minutes only. So each channel, and each thread with a
conversation, has a cursor, and what came behind it is read from Slack's history. Until that is
stored the cursor is held: live messages must not move it past what is still missing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from adapters.base import Intake
from adapters.messages import InboundMessage
from adapters.slack.client import Client
from adapters.slack.errors import CallFailed, CallRefused, Limited
from adapters.slack.ingest import Ingest, newer_than, ts_of

log = structlog.get_logger()

MOST_PAGES = 10
MOST_THREADS = 200
THREADS_FOR_S = 7 * 24 * 3600.0
"""Threads that were silent for longer are not looked into."""
_BATCH = 100
_TRIES = 5
_LIMITED_S = 30.0
_LONGEST_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Gap:
    """A source and the position behind which it is to be read."""

    source: str
    channel: str
    thread: str | None
    position: int


class Backfill:
    """Closes the gaps of one account."""

    def __init__(
        self,
        ingest: Ingest,
        intake: Intake,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ingest = ingest
        self._intake = intake
        self._sleep = sleep
        self._gaps: deque[_Gap] = deque()

    async def hold(self) -> None:
        """Note how far everything was read; must come before the first live update is stored."""
        positions = await self._intake.positions(f"slack:{self._ingest.account}:")
        gaps = [_gap(self._ingest.account, *item) for item in positions.items()]
        self._gaps = deque(_most_urgent([each for each in gaps if each is not None]))
        # Before the socket is open: from then on live messages come in.
        self._ingest.held = {each.source for each in self._gaps}

    async def run(self, client: Client) -> None:
        """Store what was missed, one source after the other."""
        stored = 0
        while self._gaps:
            gap = self._gaps.popleft()
            try:
                stored += await self._close(client, gap)
            except CallRefused as exc:
                # Nothing can be read there: let live messages move the cursor again.
                log.info("slack_backfill_refused", channel=gap.channel, reason=exc.code)
            except CallFailed as exc:
                # The cursor stays held, so that the next connection begins there again.
                log.warning("slack_backfill_failed", channel=gap.channel, reason=exc.code)
                continue
            self._ingest.held.discard(gap.source)
        if stored:
            log.info("slack_backfilled", account=self._ingest.account, messages=stored)

    async def _close(self, client: Client, gap: _Gap) -> int:
        events = newer_than(await self._fetch(client, gap), gap.position)
        for event in events:
            event["channel"] = gap.channel
        for start in range(0, len(events), _BATCH):
            batch = events[start : start + _BATCH]
            said = await self._ingest.store_missed(batch, gap.source)
            if gap.thread is None:
                self._gaps.extend(_threads_of(gap, batch, said))
        return len(events)

    async def _fetch(self, client: Client, gap: _Gap) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._page(client, gap, cursor)
            found += page.get("messages") or []
            cursor = (page.get("response_metadata") or {}).get("next_cursor")
            if not page.get("has_more") or not cursor:
                return found
        log.warning("slack_backfill_cut", channel=gap.channel, messages=len(found))
        return found

    async def _page(self, client: Client, gap: _Gap, cursor: str | None) -> dict[str, Any]:
        """Return one page, waiting as long as Slack asks for."""
        for _ in range(_TRIES - 1):
            try:
                return await _read(client, gap, cursor)
            except Limited as exc:
                wait_s = _LIMITED_S if exc.retry_after_s is None else exc.retry_after_s
                await self._sleep(min(wait_s, _LONGEST_WAIT_S))
        return await _read(client, gap, cursor)


async def _read(client: Client, gap: _Gap, cursor: str | None) -> dict[str, Any]:
    oldest = ts_of(gap.position)
    return await client.history(gap.channel, gap.thread, oldest=oldest, cursor=cursor)


def _gap(account: str, source: str, position: int) -> _Gap | None:
    channel, _, thread = source.removeprefix(f"slack:{account}:").partition(":")
    return _Gap(source, channel, thread or None, position) if channel else None


def _most_urgent(gaps: Sequence[_Gap]) -> list[_Gap]:
    """Return channels first, then the threads where somebody spoke lately, newest first."""
    since = (time.time() - THREADS_FOR_S) * 1_000_000
    newest = sorted(gaps, key=lambda each: -each.position)
    threads = [each for each in newest if each.thread is not None and each.position > since]
    if len(threads) > MOST_THREADS:
        log.warning("slack_backfill_cut", channel="", messages=len(threads) - MOST_THREADS)
    return [*(each for each in newest if each.thread is None), *threads[:MOST_THREADS]]


def _threads_of(
    gap: _Gap, events: Sequence[dict[str, Any]], said: Sequence[InboundMessage]
) -> list[_Gap]:
    """Return threads that began in the gap, with a message to the bot, and went on."""
    direct = {each.message_ref: each for each in said if each.addressed == "direct"}
    roots = [each["ts"] for each in events if each.get("reply_count") and each["ts"] in direct]
    return [_Gap(f"{gap.source}:{root}", gap.channel, root, _micros(root)) for root in roots]


def _micros(ts: str) -> int:
    return int(ts.replace(".", ""))
