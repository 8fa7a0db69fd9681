"""Summaries that are written ahead of need, in the background.

The transcript is append-only, so a summary of its settled part stays valid; the compaction that
needs it commits it without waiting. What goes wrong here ends no turn.
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
from agent.turn.state import Agent
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
"""Summaries that are written side by side; they are never urgent."""
REST_S = 60.0
"""Until a segment is asked for again whose summary is there, was not needed, or failed."""
MAX_REWRITTEN_WINDOWS = 4
"""An extractor's summary of more than so many windows of the summary model is updated, not
written anew from the originals."""


@dataclass(slots=True)
class Preparation:
    """One summary that is to be written.

    Attributes:
        session: The segment as it stood when it was asked for.
        sender: Whose budget it counts for, "platform:sender id".
        begun: Whether it is being written.
        ended: Set when it is there, or will not be.
    """

    session: Session
    sender: str
    begun: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Preparations:
    """Writes one summary for each segment that asks, at most once at a time."""

    def __init__(
        self, database: Database, agent: Agent, parts: ContextParts, budgets: Budgets
    ) -> None:
        """Prepare for nothing yet.

        Args:
            parts: Its limits, and who writes summaries.
            budgets: Nothing is prepared for a sender whose budget is used up.
        """
        self._database = database
        self._agent = agent
        self._parts = parts
        self._budgets = budgets
        self._waiting: asyncio.Queue[Preparation] = asyncio.Queue()
        self._known: dict[int, Preparation] = {}
        self._not_before: dict[int, float] = {}
        self._failures: dict[int, SummaryFailed] = {}

    def take(self, agent: Agent, parts: ContextParts) -> None:
        """Have what is written from now on go by another agent and its limits."""
        self._agent, self._parts = agent, parts

    def ask(self, session: Session, sender: str = "") -> None:
        """Have a summary written for a segment, if none is under way; returns at once.

        Args:
            sender: Whose budget it counts for, "platform:sender id".
        """
        cooling = self._not_before.get(session.id, 0.0) > time.monotonic()
        if self._parts.summariser is None or session.id in self._known or cooling:
            return
        preparation = Preparation(session, sender)
        self._known[session.id] = preparation
        self._waiting.put_nowait(preparation)

    async def ready(self, session_id: int) -> Summary | None:
        """Return the summary of a segment; one that is being written is waited for.

        One that has not been begun is given up: who asks here writes it at once. Waits no longer
        than all calls of a compaction may take.

        Raises:
            SummaryFailed: It was tried a short time ago, or goes on for longer than that.
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
        if found is None and (failure := self._failure(session_id)) is not None:
            raise failure
        return found

    def _failure(self, session_id: int) -> SummaryFailed | None:
        """Return why the summary must not be written now, if so."""
        if session_id in self._known:
            return SummaryFailed("the summary is still being written")
        if self._not_before.get(session_id, 0.0) <= time.monotonic():
            return None
        return self._failures.get(session_id)

    async def wait_idle(self) -> None:
        """Wait until all that was asked for is written, or given up."""
        while self._known:
            await next(iter(self._known.values())).ended.wait()

    async def run(self) -> None:
        """Write what is asked for, until cancelled."""
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
        """Return a segment as it is now; None if it has a summary, or is not in force."""
        if await self._database.read(compactions.candidate, asked.id) is not None:
            self._cool_down(asked.id, REST_S)
            return None
        # It may have waited for minutes: the segment may be over, or have a summary by now.
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
        """Return what is to be summarised: the view, or the originals behind an extract of it."""
        plan = session.plan
        if rewritten and plan.compacted and plan.summaries[0].source == "extract":
            whole = replace(plan, summaries=(), pinned=(), tail_from=0, edits=())
            if await self._can_be_read(session, whole):
                plan = whole
        return await open_view(self._database, session, plan)

    async def _can_be_read(self, session: Session, whole: ViewPlan) -> bool:
        """Whether all originals are there, and not too long.

        What a model had summarised before the extract may be erased by now.
        """
        here, extract = session.conversation, session.plan.summaries[0]
        span = (extract.first_seq, extract.last_seq)
        if not await self._database.read(transcript.is_complete, here, *span):
            return False
        tokens = await self._database.read(transcript.tokens_shown, here, whole)
        return tokens <= MAX_REWRITTEN_WINDOWS * self._window_tokens()

    async def _keep(
        self, session: Session, summary: Summary | None, spent: Sequence[ModelCall], sender: str
    ) -> bool:
        """Put a summary and what was paid for it on record; what was paid also without one.

        Returns:
            Whether the segment has taken it.
        """
        conversation = session.conversation
        if summary is None:
            await self._database.write(spending.book, conversation, None, sender, spent)
            return False
        return await self._database.write(
            compactions.put_candidate, session.id, conversation, summary, spent, sender
        )

    def _window_tokens(self) -> int:
        return self._parts.summariser.window_tokens if self._parts.summariser else 0

    def _cool_down(self, session_id: int, cooldown_s: float) -> None:
        now = time.monotonic()
        # Swept here, so that segments that are over do not stay in memory.
        left = {key: at for key, at in self._not_before.items() if at > now}
        self._not_before = {**left, session_id: now + cooldown_s}
        self._failures = {key: exc for key, exc in self._failures.items() if key in left}
