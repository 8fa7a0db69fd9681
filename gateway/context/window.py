"""The view of a turn, and the parts that keep it within the window.

Views are cached, so the next turn reads only new messages. The transcript is append-only and a
segment keeps its plan, so a cached view stays valid while its segment is active. Uncommitted
messages are never cached.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial

from agent.context.meter import ReportedUsage, TokenMeter
from agent.context.planner import CompactionRules, Planner
from agent.context.summary_model import LEAST_WINDOW_TOKENS, Summariser
from agent.context_engine import ContextEngine, Limits
from agent.errors import ModelError
from agent.models.base import ChatModel, PrefixWatch, TextSink
from agent.models.catalog import context_length, find_facts
from agent.plugins.engines import engine_tools
from agent.ports import CompactionStore, Spending
from agent.tools.context import ToolContext
from agent.turn.loop import TurnState
from agent.turn.request import Agent, TurnPorts
from agent.view.view import View, ViewPlan, recall_text, shown_messages, with_newer
from gateway.agent_ports.journal import Journal
from gateway.storage.conversation import transcript
from gateway.storage.conversation.sessions import Session
from gateway.storage.database import Database
from gateway.storage.reports import spending
from gateway.storage.reports.spending import Where

FEW_MESSAGES = 200
"""Number of messages up to which they are read on the event loop: a thread would cost more."""
KEPT_BYTES = 32_000_000
"""Approximate memory limit of all cached views: some 50,000 short messages."""
MESSAGE_BYTES = 350
PART_BYTES = 550
"""Memory overhead of a message, and of each part and call in it. Source: measured, 200 to 300 and
350 to 550."""

Rows = Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class KeptView:
    """A segment's cached view and its size in bytes; immutable."""

    session_id: int
    view: View
    size: int

    def is_of(self, session: Session) -> bool:
        """Whether the view belongs to this segment."""
        of = session.id, session.system_prompt or "", session.plan
        return (self.session_id, self.view.system, self.view.plan) == of


class KeptViews:
    """The most recently opened views; the oldest are dropped above `most_bytes`."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self.size = 0
        self._most_bytes = most_bytes
        self._kept: dict[int, KeptView] = {}

    async def open(self, database: Database, session: Session) -> View:
        """Return the view of an active segment; read only messages that are not cached."""
        here = session.conversation
        known = self._kept.get(here)
        if known is not None and not known.is_of(session):
            known = None
        kept = await _read(database, session, session.plan, known)
        self._let_go(here)
        if kept.size <= self._most_bytes:
            self._kept[here] = kept
            self.size += kept.size
        while self.size > self._most_bytes:
            self._let_go(next(iter(self._kept)))
        view = kept.view
        return View(view.system, view.plan, [*view.entries], [*view.messages])

    def clear(self) -> None:
        """Drop all views: erased messages, also of children, must not stay in memory."""
        self._kept.clear()
        self.size = 0

    def _let_go(self, conversation: int) -> None:
        gone = self._kept.pop(conversation, None)
        self.size -= gone.size if gone else 0


async def open_view(database: Database, session: Session, plan: ViewPlan) -> View:
    """Load a view by any plan of a segment's conversation, after the segment's prompt."""
    return (await _read(database, session, plan, None)).view


async def _read(
    database: Database, session: Session, plan: ViewPlan, known: KeptView | None
) -> KeptView:
    """Read the messages after the known ones."""
    after = known.view.entries[-1].seq if known and known.view.entries else 0
    rows = await database.read(transcript.load_rows, session.conversation, plan, after)
    build = partial(_with_rows, session, plan, known, rows)
    # Decoding thousands of messages would block the event loop.
    few = len(rows) <= FEW_MESSAGES and (known is not None or not plan.edits)
    return build() if few else await asyncio.to_thread(build)


def _with_rows(session: Session, plan: ViewPlan, known: KeptView | None, rows: Rows) -> KeptView:
    system, newer = session.system_prompt or "", transcript.decoded(rows)
    # Quotes inside a text are escaped.
    parts = sum(body.count('"type":') for _, body in rows)
    size = sum(sys.getsizeof(body) + MESSAGE_BYTES for _, body in rows) + PART_BYTES * parts
    if known is None:
        return KeptView(session.id, View(system, plan, newer), size)
    entries = [*known.view.entries, *newer]
    messages = with_newer(plan, known.view.messages, newer)
    messages = messages or shown_messages(system, plan, entries)
    return KeptView(session.id, View(system, plan, entries, messages), known.size + size)


@dataclass(frozen=True, slots=True)
class ContextParts:
    """Keeps views within the window; each turn gets its own engine and planner.

    Attributes:
        enabled: `compression.enabled`.
        limits: Limits of the configured main model.
        summariser: Writes summaries; None for only the extractor.
    """

    enabled: bool
    limits: Limits
    make_engine: Callable[[Limits], ContextEngine]
    summariser: Summariser | None
    views: KeptViews = field(default_factory=KeptViews)

    @property
    def writers(self) -> Sequence[ChatModel]:
        """The models that write summaries, maybe including the main model."""
        return self.summariser.models if self.summariser else ()

    def planner(
        self,
        agent: Agent,
        session: Session,
        store: CompactionStore,
        spending: Spending | None = None,
    ) -> Planner:
        """Return a turn's planner; its summaries count against the budgets of `spending`."""
        # An engine lives for one turn; the plan stores lasting state (decision 023).
        engine = self.make_engine(self.limits_for(agent))
        engine.attach(store.archive())
        # A lineage started by `/new` or a reset, without a reported call yet (decision 023).
        if session.number == 1 and session.plan.first_seq > 1 and session.prompt_tokens is None:
            engine.on_session_reset()
        engine.on_session_start(str(session.id))
        return Planner(
            engine=engine,
            meter=meter_of(agent, session),
            store=store,
            session_id=str(session.id),
            rules=CompactionRules(
                enabled=self.enabled,
                summariser=self.summariser,
                spending=spending,
                recall=recall_text([schema.name for schema in agent.tools.schemas]),
            ),
            state=session.planner_state,
            watch=PrefixWatch(session.prefix, session.moved, agent.caching.cache_ttl),
        )

    async def opened(self, agent: Agent, journal: Journal) -> tuple[View, Planner]:
        """Return the view and the planner of a journal's turn."""
        session = journal.turn.session
        view = await self.views.open(journal.database, session)
        return view, self.planner(agent, session, journal, journal.spending)

    @asynccontextmanager
    async def attempt(
        self,
        agent: Agent,
        journal: Journal,
        sink: TextSink,
        make: Callable[[Planner], Awaitable[ToolContext]],
        on_trouble: Callable[[ModelError | None], Awaitable[None]],
    ) -> AsyncIterator[tuple[TurnState, TurnPorts]]:
        """Yield the state and the ports of an attempt at a journal's turn.

        Args:
            make: Returns the tool context; called at the first tool call.
            on_trouble: Called at each wait for an unavailable model.
        """
        turn, conversation = journal.turn, journal.turn.lease.conversation
        view, planner = await self.opened(agent, journal)
        used = 0
        # A first attempt has no steps, so skip the query; but a child may have lost its first call.
        is_fresh = turn.attempt == 1 and turn.messages[-1]["role"] == "user"
        may_have_used = turn.lease.parent is not None or not is_fresh
        if agent.settings.max_turn_tokens is not None and may_have_used:
            where = Where(conversation=conversation, turn=turn.id)
            used = (await journal.database.read(spending.total, where)).usage.total_tokens
        state = TurnState(view, list(turn.messages), turn.started_calls, used_tokens=used)

        made: list[ToolContext] = []

        async def tools() -> ToolContext:
            # Once, since all calls of an attempt have the same rights.
            if not made:
                context = await make(planner)
                # A compaction may have removed this turn's pages from the view.
                shown = [*turn.messages, *(entry.message for entry in view.entries)]
                context.rights.read.trail.note_shown(shown)
                made.append(context)
            return made[0]

        ports = TurnPorts(
            journal=journal,
            planner=planner,
            sink=sink,
            tools=tools,
            spending=journal.spending,
            on_trouble=on_trouble,
            conversation=str(conversation),
        )
        with closing(planner):
            yield state, ports

    def limits_for(self, agent: Agent) -> Limits:
        """Return the current limits of the agent's first model, whose window may shrink."""
        now = agent.models[0].context_length
        limits = self.limits
        return limits if limits.context_length == now else replace(limits, context_length=now)


def meter_of(agent: Agent, session: Session) -> TokenMeter:
    """Return the meter of a segment.

    Another model's estimate ratio does not apply to this one, but its report is still better than
    an estimate.
    """
    model = agent.models[0].name
    ratio = session.token_ratio if session.report_model in {None, model} else 1.0
    return TokenMeter(model, agent.tools.schemas, ratio=ratio, report=last_report(session))


def last_report(session: Session) -> ReportedUsage | None:
    """Return the last reported usage of a segment's view."""
    if session.prompt_tokens is None or session.prompt_upto_seq is None:
        return None
    return ReportedUsage(
        prompt_tokens=session.prompt_tokens,
        output_tokens=session.prompt_output_tokens or 0,
        upto_seq=session.prompt_upto_seq,
        model=session.report_model,
    )


def with_engine_tools(agent: Agent, parts: ContextParts) -> Agent:
    """Add the context engine's tools to an agent."""
    offered = parts.make_engine(parts.limits).get_tool_schemas()
    tools = engine_tools(offered, {schema.name for schema in agent.tools.schemas})
    return replace(agent, tools=agent.tools.changed(tools)) if tools else agent


def summaries_text(summariser: Summariser | None) -> str:
    """Describe the summary models in the order in which they are tried."""
    if summariser is None:
        return "the extractor alone"
    writers = [
        _writer_text(each, summariser) for each in summariser.rests.in_order(summariser.models)
    ]
    return f"{', then '.join(writers)}, then the extractor"


def _writer_text(model: ChatModel, summariser: Summariser) -> str:
    window, rests_s = summariser.window_of(model), summariser.rests.left_s(model)
    if summariser.shown_window(model) <= model.context_length:
        source = "shown by a refused prompt"
    elif model.context_length != context_length(model.name):
        source = "set or told by the provider"
    else:
        facts = find_facts(model.name)
        is_listed = facts is not None and facts.context_length is not None
        source = "by the table" if is_listed else "a guess"
    notes = f"{window:,} tokens, {source}"
    if window < LEAST_WINDOW_TOKENS:
        notes += "; its window is too small"
    elif rests_s:
        notes += f"; rests for {rests_s:.0f} s"
    return f"{model.label} ({notes})"
