"""Delegated tasks: a tool call that a child agent carries out.

The child runs within its parent's turn and lease, in its own conversation
(gateway/storage/conversation/delegates.py). The parent always gets a result; after a crash the
resumed parent finds its child by the call id.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from agent.context.planner import Planner
from agent.errors import ModelError, ModelRefused, SpendLimitReached, TurnSuspended
from agent.messages import ChatMessage
from agent.ports import Delegated, ModelCall
from agent.tools.context import ToolContext
from agent.turn.loop import Limit, TurnResult, TurnState, run_turn, wrap_up
from agent.turn.request import Agent, TurnPorts
from gateway.agent_ports.journal import Journal, cut_off
from gateway.context.parts import TurnParts
from gateway.context.prompts import child_base
from gateway.errors import StorageError
from gateway.storage.conversation import delegates, sessions
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn

log = structlog.get_logger()

AT_ONCE = 3
"""Children of one turn that run concurrently; others wait."""
NOT_FOR_CHILDREN = frozenset((
    "clarify",
    "delegate_task",
    "memory",
    "send_file",
    "skill_manage",
    "todo",
))
"""A child asks no questions, has no children, takes no notes and sends no files."""
MAX_ITERATIONS = 30
MAX_TOKENS = 400_000
MAX_S = 600.0
"""Limits of one child in calls, tokens and seconds, since its parent waits. Budgets limit its cost.
"""
WORK_SHARE = 0.85
"""Share of a child's time for its work; the rest is for its report."""
MOST_ATTEMPTS = 2
"""A child fails after this many attempts that ended with the process before a new step. One less
than the default of `queue.max_attempts`: its parent survives. If the parent would be blamed, its
running children fail instead (docs/delegation.md)."""
OUT_OF_TIME: Limit = "budget_exhausted"
"""The outcome of a child that ran out of time."""

Work = Callable[[TurnState, Agent, TurnPorts], Awaitable[TurnResult]]
child_timeout = asyncio.timeout
"""Watches the time of a child; tests bring their own."""


def outcome_of(failure: ModelError | SpendLimitReached) -> str:
    """Return the outcome of a turn that ends with this failure."""
    if isinstance(failure, SpendLimitReached):
        return "spend_limit"
    return "refused" if isinstance(failure, ModelRefused) else "provider_failed"


@dataclass(frozen=True, slots=True)
class TurnDelegates:
    """`agent.ports.Delegates` for one turn; `context` is the tool context of that turn."""

    parts: TurnParts
    turn: Turn
    agent: Agent
    context: ToolContext
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def run(self, call_id: str, task: str) -> Delegated:
        """Run a task in a child, once a slot is free.

        Raises:
            TurnSuspended: The child waits for a person.
            LeaseLost, TurnCancelled: Raised by the journal.
        """
        async with self.places:
            database, agent = self.parts.shared.database, _child_of(self.agent)
            base = child_base(agent)
            child = await database.write(delegates.open_child, self.turn, call_id, task, base)
            if isinstance(child, Delegated):
                # The child ended in an earlier attempt, which died before it returned the result.
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
                closing(self.parts.shared.budgets.for_sender(child.sender)) as spending,
            ):
                journal = Journal(database, child, None, spending, _tell_nobody)
                return await _Child(self.parts, agent, self.context, journal).run()


def _child_of(agent: Agent) -> Agent:
    """Return the agent of a child; `_within` limits its time."""
    limits = {"max_iterations": MAX_ITERATIONS, "max_turn_tokens": MAX_TOKENS, "max_turn_s": None}
    settings = agent.settings.model_copy(update=limits)
    return replace(agent, tools=agent.tools.changed(without=NOT_FOR_CHILDREN), settings=settings)


@dataclass(slots=True)
class _Child:
    """One attempt at a child's turn, and its `TextSink`: the text is not shown."""

    parts: TurnParts
    agent: Agent
    parent: ToolContext
    journal: Journal
    text: str = ""
    started: float = field(default_factory=time.monotonic)

    def push(self, delta: str) -> None:
        """Keep the text for billing a call that is cut off."""
        self.text += delta

    def restart(self) -> None:
        """Discard the pushed text."""
        self.text = ""

    async def run(self) -> Delegated:
        """Run the child to its end and return its result."""
        log.info("delegate_started", attempt=self.journal.turn.attempt)
        write = self.parts.shared.database.write
        try:
            messages, end = await self._outcome()
            result = await write(delegates.end_child, self.journal.turn, messages, end)
        except (asyncio.CancelledError, TurnSuspended, StorageError):
            # The parent's next attempt finds this child by the same call id.
            lost = await self._cut_off()
            await write(delegates.pause_child, self.journal.turn, [lost] if lost else [])
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
        """Return the answer and the end to commit."""
        if self.journal.turn.attempt > MOST_ATTEMPTS:
            return [], TurnEnd("failed", error="the process ended whenever it was worked on")
        try:
            result = await self._result()
        except (StorageError, TurnSuspended):
            raise
        except (ModelError, SpendLimitReached) as exc:
            return [], TurnEnd(outcome_of(exc), error=str(exc))
        except Exception as exc:
            log.exception("delegate_failed")
            return [], TurnEnd("failed", await self._cut_off(), error=type(exc).__name__)
        if result is None:
            return [], TurnEnd(OUT_OF_TIME, await self._cut_off(), error="no time was left")
        return [result.message] if result.message else [], TurnEnd(result.outcome, result.call)

    async def _result(self) -> TurnResult | None:
        """Return the answer, or a report if the time is up; None if neither exists."""
        result = await self._within(WORK_SHARE * MAX_S, run_turn)
        if result is not None:
            return result
        # A provider bills the written part of a call that is cut off.
        lost, write = await self._cut_off(), self.parts.shared.database.write
        await self.journal.book([lost] if lost else [])
        self.journal.turn = await write(delegates.cut_short, self.journal.turn)
        return await self._within((1 - WORK_SHARE) * MAX_S, partial(wrap_up, limit=OUT_OF_TIME))

    async def _within(self, seconds: float, work: Work) -> TurnResult | None:
        """Continue the recorded turn; return None if time runs out."""
        attempt, scope = self.parts.mind.context.attempt, child_timeout(seconds)
        begun = attempt(self.agent, self.journal, self, self._tools, _tell_nobody)
        try:
            async with scope, begun as (state, ports):
                return await work(state, self.agent, ports)
        except TimeoutError:
            if not scope.expired():
                raise
        return None

    async def _tools(self, planner: Planner) -> ToolContext:
        """Return the child's tool context: its own transcript, its parent's directory."""
        turn, parent = self.journal.turn, self.parent
        own = await self.parts.toolkit().for_turn(turn, planner.engine, self.agent.tools)
        # Taints flow both ways between parent and child: in the task and in the report.
        read, hooks = parent.rights.read, parent.services.hooks
        read.origins |= own.rights.read.origins
        rights = replace(parent.rights, scope=own.scope, read=replace(read))
        services = replace(own.services, hooks=hooks, notebook=None, delegates=None)
        return replace(
            own, rights=rights, workspace=parent.workspace, files=None, services=services
        )

    async def _cut_off(self) -> ModelCall | None:
        return await cut_off(self.journal.in_flight, self.text, self.agent.models)


async def _tell_nobody(_what: object) -> None:
    """Ignore a child's notices: the chat shows nothing of it."""
