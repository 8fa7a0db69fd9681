"""Prepares summaries in the background, before they are needed.

The transcript is append-only, so a summary of its settled part stays valid; a compaction commits it
without waiting. A failure here never ends a turn.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from agent.context.planner import write_ahead
from agent.context.summary_model import SummaryCalls
from agent.errors import SummaryFailed
from agent.ports import ModelCall
from agent.turn.request import Agent
from agent.view.view import Summary, View, ViewPlan
from gateway.agent_ports.budgets import Budgets
from gateway.agent_ports.journal import KeptParts
from gateway.context.window import ContextParts, meter_of, open_view
from gateway.errors import StorageError
from gateway.storage.conversation import compactions, conversations, sessions, transcript
from gateway.storage.conversation.sessions import Session
from gateway.storage.database import Database
from gateway.storage.reports import spending

log = structlog.get_logger()

AT_ONCE = 2
"""Summaries written concurrently; they are never urgent."""
REST_S = 60.0
"""Pause for a segment whose summary is ready, unneeded, or failed."""
MAX_REWRITTEN_WINDOWS = 4
"""Size, in windows of the summary model, above which an extractor's summary is updated instead of
rewritten from the originals."""


@dataclass(slots=True)
class Preparation:
    """A request for a summary.

    Attributes:
        session: The requested segment.
        sender: Who pays, "platform:sender id".
        ended: Set when the summary is written or given up.
    """

    session: Session
    sender: str
    begun: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Preparations:
    """Writes requested summaries, at most one per segment at a time."""

    def __init__(
        self, database: Database, agent: Agent, parts: ContextParts, budgets: Budgets
    ) -> None:
        self._database = database
        self._agent = agent
        self._parts = parts
        self._budgets = budgets
        self._waiting: asyncio.Queue[Preparation] = asyncio.Queue()
        self._known: dict[int, Preparation] = {}
        self._not_before: dict[int, float] = {}
        self._failures: dict[int, SummaryFailed] = {}

    def take(self, agent: Agent, parts: ContextParts) -> None:
        """Switch to another agent and its limits."""
        self._agent, self._parts = agent, parts

    def ask(self, session: Session, sender: str = "") -> None:
        """Request a segment's summary unless one is in progress; return at once."""
        cooling = self._not_before.get(session.id, 0.0) > time.monotonic()
        if self._parts.summariser is None or session.id in self._known or cooling:
            return
        preparation = Preparation(session, sender)
        self._known[session.id] = preparation
        self._waiting.put_nowait(preparation)

    async def ready(self, session_id: int) -> Summary | None:
        """Return a segment's summary, waiting for one in progress.

        A summary not started yet is given up: the caller writes it at once. The wait is limited to
        the time of a compaction's calls.

        Raises:
            SummaryFailed: It failed recently or takes too long.
        """
        known = self._known.get(session_id)
        if known is not None and not known.begun:
            del self._known[session_id]
            known.ended.set()
        elif known is not None and self._parts.summariser is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._parts.summariser.timeout_s):
                    await known.ended.wait()
        found = await self._database.read(compactions.candidate, session_id)
        if found is None and session_id in self._known:
            raise SummaryFailed("the summary is still being written")
        rests = self._not_before.get(session_id, 0.0) > time.monotonic()
        if found is None and rests and session_id in self._failures:
            raise self._failures[session_id]
        return found

    async def wait_idle(self) -> None:
        """Wait until no summary is in progress."""
        while self._known:
            await next(iter(self._known.values())).ended.wait()

    async def run(self) -> None:
        """Write requested summaries until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for n in range(AT_ONCE):
                tasks.create_task(self._work(), name=f"prepare {n}")

    async def _work(self) -> None:
        while True:
            preparation = await self._waiting.get()
            session_id = preparation.session.id
            if self._known.get(session_id) is not preparation:
                continue  # given up
            preparation.begun = True
            try:
                await self._prepare(preparation)
            except SummaryFailed as exc:
                self._cool_down(session_id, exc.cooldown_s)
                self._failures[session_id] = exc
                log.warning("summary_not_prepared", session=session_id, reason=str(exc))
            except StorageError as exc:
                log.warning("summary_not_prepared", session=session_id, reason=str(exc))
            except Exception:
                self._cool_down(session_id, REST_S)
                log.exception("summary_preparation_failed", session=session_id)
            finally:
                del self._known[session_id]
                preparation.ended.set()

    async def _prepare(self, preparation: Preparation) -> None:
        summariser, sender = self._parts.summariser, preparation.sender
        session = await self._session_without(preparation.session)
        if summariser is None or session is None:
            return
        if await self._budgets.exhausted(sender):
            raise SummaryFailed("a budget is used up", REST_S)
        parts = KeptParts(self._database, session.conversation, sender)
        calls, summary = summariser.ahead(parts), None
        try:
            summary = await self._written(session, calls)
        finally:
            is_kept = await self._keep(session, summary, calls.spent, sender)
        self._cool_down(session.id, REST_S)
        if summary is None:
            return
        if calls.has_parts and is_kept:
            await parts.forget()
        log.info(
            "summary_prepared",
            session=session.id,
            conversation=session.conversation,
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            model=summary.model,
        )

    async def _session_without(self, asked: Session) -> Session | None:
        """Read a segment again; None if it has a summary or is no longer active."""
        if await self._database.read(compactions.candidate, asked.id) is not None:
            self._cool_down(asked.id, REST_S)
            return None
        newest = await self._database.read(sessions.active, asked.conversation)
        return newest if newest.id == asked.id else None

    async def _written(self, session: Session, calls: SummaryCalls) -> Summary | None:
        chosen = await self._database.read(conversations.chosen_model, session.conversation)
        agent = self._agent.preferring(chosen)
        limits = self._parts.limits_for(agent)
        engine = self._parts.make_engine(limits)
        view = await self._view(session, rewritten=not engine.prepares_parts)
        meter = meter_of(agent, session)
        seqs = [entry.seq for entry in view.entries] or [0]
        days = await self._database.read(transcript.days, session.conversation, seqs[0], seqs[-1])
        return await write_ahead(view, meter, limits, calls, engine.prepare, days)

    async def _view(self, session: Session, *, rewritten: bool) -> View:
        """Return the view to summarize, or the originals behind its extract."""
        plan = session.plan
        if rewritten and plan.compacted and plan.summaries[0].source == "extract":
            whole = replace(plan, summaries=(), pinned=(), tail_from=0, edits=())
            if await self._can_be_read(session, whole):
                plan = whole
        return await open_view(self._database, session, plan)

    async def _can_be_read(self, session: Session, whole: ViewPlan) -> bool:
        """Whether an extract's originals exist and are short enough."""
        here, extract = session.conversation, session.plan.summaries[0]
        span = (extract.first_seq, extract.last_seq)
        if not await self._database.read(transcript.is_complete, here, *span):
            return False
        tokens = await self._database.read(transcript.tokens_shown, here, whole)
        summariser = self._parts.summariser
        return tokens <= MAX_REWRITTEN_WINDOWS * (summariser.window_tokens if summariser else 0)

    async def _keep(
        self, session: Session, summary: Summary | None, spent: Sequence[ModelCall], sender: str
    ) -> bool:
        """Book the calls and store the summary, if any; return whether the segment accepted it."""
        conversation = session.conversation
        if summary is None:
            await self._database.write(spending.book, conversation, None, sender, spent)
            return False
        return await self._database.write(
            compactions.put_candidate, session.id, conversation, summary, spent, sender
        )

    def _cool_down(self, session_id: int, cooldown_s: float) -> None:
        now = time.monotonic()
        # Drop ended segments from memory.
        left = {key: at for key, at in self._not_before.items() if at > now}
        self._not_before = {**left, session_id: now + cooldown_s}
        self._failures = {key: exc for key, exc in self._failures.items() if key in left}
