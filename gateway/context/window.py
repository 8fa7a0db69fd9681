"""What a turn needs to keep its view within the window, made from the settings once; its view.

Views of turns are kept, so that the next one reads only what is new. The transcript is append-only
and a segment keeps its plan: what was read of a segment is valid as long as it is in force, whoever
has written since. What a turn has not committed is never kept.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from agent.context.meter import ReportedUsage, TokenMeter
from agent.context.planner import CompactionRules, Planner
from agent.context.summary_model import LEAST_WINDOW_TOKENS, Summariser
from agent.context_engine import ContextEngine, Limits
from agent.errors import ModelError
from agent.messages import ChatMessage
from agent.models.base import ChatModel, TextSink
from agent.models.catalog import context_length, find_facts
from agent.models.prefix import PrefixWatch
from agent.plugins.engines import engine_tools
from agent.ports import CompactionStore, Spending
from agent.tools.context import ToolContext
from agent.turn.state import Agent, TurnPorts, TurnState
from agent.view.view import Entry, View, ViewPlan, recall_text, shown_messages, with_newer
from gateway.agent_ports.journal import Journal
from gateway.agent_ports.tools import MadeOnce
from gateway.storage.conversation import transcript
from gateway.storage.conversation.sessions import Session
from gateway.storage.database import Database
from gateway.storage.reports import spending
from gateway.storage.reports.spending import Where

WindowSource = Literal["refusal", "table", "guess", "told"]
"""Who says how large a window is: a refused prompt; the table of models; nobody, it is guessed; the
settings or the provider."""
_SAYS: Mapping[WindowSource, str] = {
    "refusal": "shown by a refused prompt",
    "table": "by the table",
    "guess": "a guess",
    "told": "set or told by the provider",
}


FEW_MESSAGES = 200
"""Read and rendered on the event loop: a thread would cost more than it saves."""
KEPT_BYTES = 32_000_000
"""About the most that all of them take; some 50,000 short messages."""
MESSAGE_BYTES = 350
PART_BYTES = 550
"""What a message takes beside its text, and what each part and call in it takes. Source: measured,
200 to 300 and 350 to 550."""

Rows = Sequence[tuple[int, str]]


async def open_view(database: Database, session: Session, plan: ViewPlan) -> View:
    """Load what any plan shows of a segment's conversation, behind the segment's system prompt.

    Decoding and rendering thousands of messages takes longer than the event loop may be held.
    """
    system = session.system_prompt or ""
    rows = await database.read(transcript.load_rows, session.conversation, plan)
    if len(rows) <= FEW_MESSAGES and not plan.edits:
        return _view(system, plan, rows)
    return await asyncio.to_thread(_view, system, plan, rows)


def _view(system: str, plan: ViewPlan, rows: list[tuple[int, str]]) -> View:
    return View(system, plan, transcript.decoded(rows))


@dataclass(frozen=True, slots=True)
class KeptView:
    """What was read of a segment, and how it is shown; never changed.

    Attributes:
        messages: What is shown of the entries, the system message first.
    """

    session_id: int
    system: str
    plan: ViewPlan
    entries: list[Entry]
    messages: list[ChatMessage]
    size: int

    @property
    def newest_seq(self) -> int:
        """The newest message that was read; 0 for none."""
        return self.entries[-1].seq if self.entries else 0

    def is_of(self, session: Session) -> bool:
        """Whether it shows this segment."""
        return (self.session_id, self.system, self.plan) == (
            session.id,
            session.system_prompt or "",
            session.plan,
        )

    def opened(self) -> View:
        """Return it as a view of its own."""
        return View(self.system, self.plan, [*self.entries], [*self.messages])


class KeptViews:
    """The views of all conversations that were opened lately; beyond `most_bytes` the oldest go."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        """Keep none yet."""
        self._most_bytes = most_bytes
        self._kept: dict[int, KeptView] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """About how many bytes they take."""
        return self._bytes

    async def open(self, database: Database, session: Session) -> View:
        """Return the view of a segment in force; reads what is not known of it."""
        known = self._known(session)
        after = known.newest_seq if known else 0
        rows = await database.read(transcript.load_rows, session.conversation, session.plan, after)
        build = partial(_with_rows, session, known, rows)
        # Decoding and rendering thousands of messages holds the event loop for too long.
        few = len(rows) <= FEW_MESSAGES and (known is not None or not session.plan.edits)
        kept = build() if few else await asyncio.to_thread(build)
        self._keep(session.conversation, kept)
        return kept.opened()

    def _known(self, session: Session) -> KeptView | None:
        known = self._kept.get(session.conversation)
        return known if known is not None and known.is_of(session) else None

    def clear(self) -> None:
        """Let go of all: what was erased must not stay in memory, nor its delegated children."""
        self._kept.clear()
        self._bytes = 0

    def _keep(self, conversation: int, kept: KeptView) -> None:
        self._let_go(conversation)
        if kept.size <= self._most_bytes:
            self._kept[conversation] = kept
            self._bytes += kept.size
        while self._bytes > self._most_bytes:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, conversation: int) -> None:
        gone = self._kept.pop(conversation, None)
        self._bytes -= gone.size if gone else 0


def _with_rows(session: Session, known: KeptView | None, rows: Rows) -> KeptView:
    """Return what is known of a segment with the rows behind it."""
    system, plan, newer = session.system_prompt or "", session.plan, transcript.decoded(rows)
    entries = [*known.entries, *newer] if known else newer
    messages = with_newer(plan, known.messages, newer) if known else None
    messages = messages or shown_messages(system, plan, entries)
    return KeptView(
        session_id=session.id,
        system=system,
        plan=plan,
        entries=entries,
        messages=messages,
        size=(known.size if known else 0) + sum(_bytes_of(body) for _, body in rows),
    )


def _bytes_of(body: str) -> int:
    """Estimate the memory of a message; inside of a text quotes are escaped."""
    return sys.getsizeof(body) + MESSAGE_BYTES + PART_BYTES * body.count('"type":')


@dataclass(frozen=True, slots=True)
class ContextParts:
    """What keeps views within the window, for all turns; each turn gets its own engine and planner.

    Attributes:
        enabled: `compression.enabled`.
        limits: Of the settings' main model.
        make_engine: Returns a turn's engine.
        summariser: Who writes summaries; None for the extractor alone.
        views: Those of turns that were opened lately.
    """

    enabled: bool
    limits: Limits
    make_engine: Callable[[Limits], ContextEngine]
    summariser: Summariser | None
    views: KeptViews = field(default_factory=KeptViews)

    @property
    def writers(self) -> Sequence[ChatModel]:
        """The models that write summaries; the main one may be among them."""
        return self.summariser.models if self.summariser else ()

    def planner(
        self,
        agent: Agent,
        session: Session,
        store: CompactionStore,
        spending: Spending | None = None,
    ) -> Planner:
        """Return the planner of a turn that begins in this segment.

        Args:
            spending: The budgets that summaries count for; None for none.
        """
        # An engine lives for one turn; what must outlive it stands in the plan (decision 071).
        engine = self.make_engine(self.limits_for(agent))
        engine.attach(store.archive())
        # A lineage that `/new` or a reset has begun, in which no call was reported (decision 071).
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
        """Return the view of a journal's turn, and its planner for this agent."""
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
            make: Returns what the tools may use; called when the first of them is.
            on_trouble: Told of each wait for a model in trouble.
        """
        turn, conversation = journal.turn, journal.turn.lease.conversation
        view, planner = await self.opened(agent, journal)
        used = 0
        # No step yet, which is not worth a query; but a child may have lost its first call.
        is_fresh = turn.attempt == 1 and turn.messages[-1]["role"] == "user"
        may_have_used = turn.lease.parent is not None or not is_fresh
        if agent.settings.max_turn_tokens is not None and may_have_used:
            where = Where(conversation=conversation, turn=turn.id)
            used = (await journal.database.read(spending.total, where)).usage.total_tokens
        state = TurnState(view, list(turn.messages), turn.started_calls, used_tokens=used)

        async def tools() -> ToolContext:
            context = await make(planner)
            # A compaction may have taken the pages of this turn out of the view.
            shown = [*turn.messages, *(entry.message for entry in view.entries)]
            context.rights.read.trail.note_shown(shown)
            return context

        ports = TurnPorts(
            journal=journal,
            planner=planner,
            sink=sink,
            tools=MadeOnce(tools),
            spending=journal.spending,
            on_trouble=on_trouble,
            conversation=str(conversation),
        )
        with closing(planner):
            yield state, ports

    def limits_for(self, agent: Agent) -> Limits:
        """Return the limits for the agent's first model as they are now: a window may shrink."""
        now = agent.models[0].context_length
        limits = self.limits
        return limits if limits.context_length == now else replace(limits, context_length=now)


def meter_of(agent: Agent, session: Session) -> TokenMeter:
    """Return the meter of a segment, with what is known about it.

    What was learned about the estimates of another model does not hold for this one; what another
    model reported is still better than an estimate.
    """
    model = agent.models[0].name
    ratio = session.token_ratio if session.report_model in {None, model} else 1.0
    return TokenMeter(model, agent.tools.schemas, ratio=ratio, report=report_of(session))


def report_of(session: Session) -> ReportedUsage | None:
    """Return what the model last reported for the segment's view."""
    if session.prompt_tokens is None or session.prompt_upto_seq is None:
        return None
    return ReportedUsage(
        prompt_tokens=session.prompt_tokens,
        output_tokens=session.prompt_output_tokens or 0,
        upto_seq=session.prompt_upto_seq,
        model=session.report_model,
    )


def with_engine_tools(agent: Agent, parts: ContextParts) -> Agent:
    """Return the agent with the tools that its context engine offers behind its own."""
    offered = parts.make_engine(parts.limits).get_tool_schemas()
    tools = engine_tools(offered, {schema.name for schema in agent.tools.schemas})
    return replace(agent, tools=agent.tools.changed(tools)) if tools else agent


@dataclass(frozen=True, slots=True)
class WriterStanding:
    """One model that writes summaries, as it is now.

    Attributes:
        source: Where the size of its window is known from.
        rests_s: Seconds until it is asked again; 0 for now.
    """

    name: str
    window_tokens: int
    source: WindowSource
    is_wide_enough: bool
    rests_s: float

    @property
    def text(self) -> str:
        """The standing in words."""
        state = f"rests for {self.rests_s:.0f} s" if self.rests_s else ""
        state = state if self.is_wide_enough else "its window is too small"
        notes = f"{self.window_tokens:,} tokens, {_SAYS[self.source]}"
        return f"{self.name} ({'; '.join(filter(None, (notes, state)))})"


def standing(summariser: Summariser | None) -> Sequence[WriterStanding]:
    """Return the models that write summaries, in the order in which they are asked."""
    if summariser is None:
        return ()
    return [
        WriterStanding(
            model.label,
            summariser.window_of(model),
            _source(model, summariser),
            summariser.window_of(model) >= LEAST_WINDOW_TOKENS,
            summariser.rests.left_s(model),
        )
        for model in summariser.rests.in_order(summariser.models)
    ]


def _source(model: ChatModel, summariser: Summariser) -> WindowSource:
    if summariser.shown_window(model) <= model.context_length:
        return "refusal"
    facts = find_facts(model.name)
    if model.context_length != context_length(model.name):
        return "told"
    return "table" if facts is not None and facts.context_length is not None else "guess"


def summaries_text(writers: Sequence[WriterStanding]) -> str:
    """Return who writes summaries, for people; the extractor stands in for all of them."""
    if not writers:
        return "the extractor alone"
    return f"{', then '.join(each.text for each in writers)}, then the extractor"
