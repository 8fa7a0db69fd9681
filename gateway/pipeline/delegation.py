"""Delegated children: a tool call that is done by an agent of its own.

The child runs within its parent's turn, in a conversation of its own
(gateway/storage/conversation/delegates.py) and under its parent's lease. However it ends, the
parent gets a result; where the process ends first, the resumed parent finds the same child by the
same call.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from agent.errors import ModelError, ModelRefused, SpendLimitReached, TurnSuspended
from agent.messages import ChatMessage
from agent.ports import Delegated, ModelCall
from agent.tools.context import ToolContext
from agent.turn.loop import run_turn, wrap_up
from agent.turn.state import Agent, Limit, TurnPorts, TurnResult, TurnState
from agent.view.view import Summary
from gateway.agent_ports.budgets import Budgets, TurnSpending
from gateway.agent_ports.journal import Journal, cut_off
from gateway.agent_ports.tools import MadeOnce, Toolkit
from gateway.context.prompts import child_base
from gateway.context.window import ContextParts
from gateway.errors import StorageError
from gateway.storage.conversation import delegates, sessions
from gateway.storage.conversation.sessions import Session
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.reports import spending
from gateway.storage.reports.spending import Where

log = structlog.get_logger()

AT_ONCE = 3
"""Children of one turn that run at the same time; others wait."""
NOT_FOR_CHILDREN = frozenset({
    "clarify",
    "delegate_task",
    "memory",
    "send_file",
    "skill_manage",
    "todo",
})
"""A child asks nobody, has no children, keeps no notes and shows nothing."""
MAX_ITERATIONS = 30
MAX_TOKENS = 400_000
MAX_S = 600.0
"""Limits of one child, in calls, tokens and seconds; its parent waits for it. Budgets limit money.
"""
WORK_SHARE = 0.85
"""Of a child's time; what is left is for saying what was done."""
MOST_ATTEMPTS = 2
"""A child is given up when the process has ended so often while it worked, without a step between.
One less than the default of `queue.max_attempts`, so that its parent is not given up with it. Where
the parent would be blamed, its running children fail in its stead (docs/delegation.md)."""
OUT_OF_TIME: Limit = "budget_exhausted"
"""The outcome of a child whose time was used up."""

Work = Callable[[TurnState, Agent, TurnPorts], Awaitable[TurnResult]]


@dataclass(frozen=True, slots=True)
class Delegation:
    """What the children of all turns need.

    Attributes:
        timeout: Watches the time of a child; tests bring their own.
    """

    database: Database
    parts: ContextParts
    budgets: Budgets
    toolkit: Toolkit
    timeout: Callable[[float | None], asyncio.Timeout] = asyncio.timeout

    def of(self, turn: Turn, agent: Agent, context: ToolContext) -> "TurnDelegates":
        """Return who runs the children of a turn."""
        return TurnDelegates(self, turn, _child_agent(agent), context)


def _child_agent(agent: Agent) -> Agent:
    """Return the agent as it is in a child; its time is watched from outside."""
    changes = {
        "max_iterations": MAX_ITERATIONS,
        "max_turn_tokens": MAX_TOKENS,
        "max_turn_s": None,
    }
    settings = agent.settings.model_copy(update=changes)
    tools = agent.tools.changed(without=NOT_FOR_CHILDREN)
    return replace(agent, tools=tools, settings=settings)


@dataclass(frozen=True, slots=True)
class TurnDelegates:
    """`agent.ports.Delegates` of one turn.

    Attributes:
        agent: As it is in a child.
    """

    delegation: Delegation
    turn: Turn
    agent: Agent
    context: ToolContext
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def run(self, call_id: str, task: str) -> Delegated:
        """Have a child do a task, once there is a place for it.

        Raises:
            TurnSuspended: It waits for a person.
            LeaseLost, TurnCancelled: As for the journal.
        """
        async with self.places:
            database, base = self.delegation.database, child_base(self.agent)
            child = await database.write(delegates.open_child, self.turn, call_id, task, base)
            if isinstance(child, Delegated):
                # It ended in an attempt that did not live to hand it over.
                read = await database.read(sessions.active, child.conversation)
                self.context.rights.read.origins |= set(read.origins)
                return child
            with (
                structlog.contextvars.bound_contextvars(
                    conversation=child.lease.conversation,
                    session=child.session.id,
                    turn=child.id,
                    parent_turn=self.turn.id,
                ),
                closing(self.delegation.budgets.for_sender(child.sender)) as spending,
            ):
                return await self._child(child, spending).run()

    def _child(self, child: Turn, spending: TurnSpending) -> "_Child":
        database = self.delegation.database
        journal = Journal(database, child, _NoneAhead(), spending, _tell_nobody)
        return _Child(self.delegation, self.agent, self.context, journal, _Unseen())


@dataclass(frozen=True, slots=True)
class _Child:
    """One attempt at a child's turn."""

    delegation: Delegation
    agent: Agent
    parent: ToolContext
    journal: Journal
    sink: "_Unseen"
    started: float = field(default_factory=time.monotonic)

    async def run(self) -> Delegated:
        """Bring the child to its end, whatever happens to it; return what it hands over."""
        log.info("delegate_started", attempt=self.journal.turn.attempt)
        write = self.delegation.database.write
        try:
            messages, end = await self._outcome()
            result = await write(delegates.end_child, self.journal.turn, messages, end)
        except (asyncio.CancelledError, TurnSuspended, StorageError):
            # Whoever takes up the parent takes up this child by the same call.
            await self._pause()
            raise
        log.info(
            "delegate_finished",
            outcome=result.outcome,
            iterations=result.iterations,
            used_tokens=result.used_tokens,
            cost_usd=result.cost_usd,
            duration_ms=round((time.monotonic() - self.started) * 1000),
            error=end.error,
        )
        return result

    async def _outcome(self) -> tuple[list[ChatMessage], TurnEnd]:
        """Return what is to be committed: an answer, or why there is none."""
        if self.journal.turn.attempt > MOST_ATTEMPTS:
            return [], TurnEnd("failed", error="the process ended whenever it was worked on")
        try:
            result = await self._result()
        except (StorageError, TurnSuspended):
            raise
        except ModelError as exc:
            outcome = "refused" if isinstance(exc, ModelRefused) else "provider_failed"
            return [], TurnEnd(outcome, error=str(exc))
        except SpendLimitReached as exc:
            return [], TurnEnd("spend_limit", error=str(exc))
        except Exception as exc:
            log.exception("delegate_failed")
            return [], TurnEnd("failed", await self._cut_off(), error=type(exc).__name__)
        if result is None:
            return [], TurnEnd(OUT_OF_TIME, await self._cut_off(), error="no time was left")
        return [result.message] if result.message else [], TurnEnd(result.outcome, result.call)

    async def _result(self) -> TurnResult | None:
        """Return what the child answers, or what it says of its work when its time is up.

        Returns:
            None where it did not even say that in time.
        """
        result = await self._within(WORK_SHARE * MAX_S, run_turn)
        if result is not None:
            return result
        lost = await self._cut_off()
        # A provider bills what it has written of a call that is broken off.
        await self.journal.book([lost] if lost else [])
        write = self.delegation.database.write
        self.journal.turn = await write(delegates.cut_short, self.journal.turn)
        return await self._within((1 - WORK_SHARE) * MAX_S, partial(wrap_up, limit=OUT_OF_TIME))

    async def _within(self, seconds: float, work: Work) -> TurnResult | None:
        """Work on the turn as its records have it; None where that takes longer."""
        scope = self.delegation.timeout(seconds)
        try:
            async with scope:
                return await self._work(work)
        except TimeoutError:
            if not scope.expired():
                raise
        return None

    async def _work(self, work: Work) -> TurnResult:
        turn, delegation = self.journal.turn, self.delegation
        # Of all attempts: a child that is resumed has no second budget.
        where = Where(conversation=turn.lease.conversation, turn=turn.id)
        tokens = (await delegation.database.read(spending.total, where)).usage.total_tokens
        view, planner = await delegation.parts.opened(self.agent, self.journal)
        state = TurnState(view, list(turn.messages), turn.started_calls, used_tokens=tokens)

        async def tools() -> ToolContext:
            toolkit, own = delegation.toolkit, self.agent.tools
            context = self._context(await toolkit.for_turn(turn, planner.engine, own))
            trail = context.rights.read.trail
            trail.note_shown([*turn.messages, *(entry.message for entry in view.entries)])
            return context

        ports = TurnPorts(
            journal=self.journal,
            planner=planner,
            sink=self.sink,
            tools=MadeOnce(tools),
            spending=self.journal.spending,
            on_trouble=_tell_nobody,
            conversation=str(turn.lease.conversation),
        )
        with closing(planner):
            return await work(state, self.agent, ports)

    def _context(self, own: ToolContext) -> ToolContext:
        """Return what the child's tools may use: its own transcript, its parent's directory."""
        parent = self.parent
        # What a child has read its parent reads in its report, and the other way round in its task.
        read = parent.rights.read
        read.origins |= own.rights.read.origins
        return replace(
            own,
            rights=replace(parent.rights, scope=own.scope, read=replace(read)),
            workspace=parent.workspace,
            files=None,
            services=replace(
                own.services, hooks=parent.services.hooks, notebook=None, delegates=None
            ),
        )

    async def _pause(self) -> None:
        """Leave the child to whoever goes on with its parent."""
        lost = await self._cut_off()
        write = self.delegation.database.write
        await write(delegates.pause_child, self.journal.turn, [lost] if lost else [])

    async def _cut_off(self) -> ModelCall | None:
        return await cut_off(self.journal.in_flight, self.sink.text, self.agent.models)


@dataclass(slots=True)
class _Unseen:
    """`agent.models.base.TextSink`: what a child says while it works is shown to nobody."""

    text: str = ""

    def push(self, delta: str) -> None:
        """Keep what is billed if the call is cut off."""
        self.text += delta

    def restart(self) -> None:
        """Forget what was pushed."""
        self.text = ""


class _NoneAhead:
    """`gateway.agent_ports.journal.SummariesAhead`: a child ends before they would be of use."""

    def ask(self, _session: Session, _sender: str) -> None:
        """Have none written."""

    async def ready(self, _session_id: int) -> Summary | None:
        """Return None."""
        return None


async def _tell_nobody(_what: object) -> None:
    """Keep from the chat what concerns a child alone."""
