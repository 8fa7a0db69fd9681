"""Summaries that are written ahead of need, in the background.

The transcript is append-only, so a summary of its settled part stays valid; the compaction that
needs it commits it without waiting (CONTEXT.md §3). What goes wrong here ends no turn.
"""

import asyncio
import time
from dataclasses import replace

import structlog

from agent.errors import SummaryFailed
from agent.loop import Agent
from agent.planner import prepare
from agent.view import View
from gateway.context import ContextParts, meter_of, open_view
from gateway.errors import StorageError
from gateway.storage import compactions, transcript
from gateway.storage.engine import Database
from gateway.storage.lineage import Session

log = structlog.get_logger()

AT_ONCE = 2
"""Summaries that are written side by side; they are never urgent."""
REST_S = 60.0
"""How long a segment is left alone where there was nothing to summarise, or something broke."""
MAX_REWRITTEN_WINDOWS = 4
"""An extractor's summary of more than so many windows of the summary model is updated, not
written anew from the originals."""


class Preparations:
    """Writes one summary for each segment that asks, at most once at a time."""

    def __init__(self, database: Database, agent: Agent, parts: ContextParts) -> None:
        self._database = database
        self._agent = agent
        self._parts = parts
        self._waiting: asyncio.Queue[Session] = asyncio.Queue()
        self._known: set[int] = set()
        self._not_before: dict[int, float] = {}

    def ask(self, session: Session) -> None:
        """Have a summary written for a segment, if none is under way; returns at once."""
        cooling = self._not_before.get(session.id, 0.0) > time.monotonic()
        if self._parts.summariser is None or session.id in self._known or cooling:
            return
        self._known.add(session.id)
        self._waiting.put_nowait(session)

    async def run(self) -> None:
        """Write what is asked for, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for n in range(AT_ONCE):
                tasks.create_task(self._work(), name=f"prepare {n}")

    async def _work(self) -> None:
        while True:
            session = await self._waiting.get()
            try:
                await self._prepare(session)
            except SummaryFailed as exc:
                self._cool_down(session.id, exc.cooldown_s)
                log.warning("summary_not_prepared", session=session.id, reason=str(exc))
            except StorageError as exc:
                log.warning("summary_not_prepared", session=session.id, reason=str(exc))
            except Exception:
                self._cool_down(session.id, REST_S)
                log.exception("summary_preparation_failed", session=session.id)
            finally:
                self._known.discard(session.id)

    async def _prepare(self, session: Session) -> None:
        if self._parts.summariser is None:
            return
        if await self._database.read(compactions.candidate, session.id) is not None:
            return
        view = await self._view(session)
        meter = meter_of(self._agent, session)
        summary = await prepare(view, meter, self._parts.limits, self._parts.summariser)
        if summary is None:
            self._cool_down(session.id, REST_S)
            return
        await self._database.write(
            compactions.put_candidate, session.id, session.conversation, summary
        )
        log.info(
            "summary_prepared",
            session=session.id,
            conversation=session.conversation,
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            model=summary.model,
        )

    async def _view(self, session: Session) -> View:
        """Return what is to be summarised: the view, or the originals behind an extract of it."""
        plan = session.plan
        if plan.compacted and plan.summaries[0].source == "extract":
            whole = replace(plan, summaries=(), pinned=(), tail_from=0, edits=())
            tokens = await self._database.read(transcript.tokens_shown, session.conversation, whole)
            if tokens <= MAX_REWRITTEN_WINDOWS * self._window_tokens():
                plan = whole
        return await open_view(self._database, session, plan, session.system_prompt or "")

    def _window_tokens(self) -> int:
        return self._parts.summariser.window_tokens if self._parts.summariser else 0

    def _cool_down(self, session_id: int, cooldown_s: float) -> None:
        now = time.monotonic()
        left = {key: at for key, at in self._not_before.items() if at > now}
        self._not_before = {**left, session_id: now + cooldown_s}
