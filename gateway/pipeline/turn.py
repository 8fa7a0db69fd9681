"""One turn: load the view, check hygiene, run the agent's loop, commit the answer.

Hygiene is the safety net before a turn, at 85 % of the window. It compacts a view that escaped the
agent's own compressor, as after a switch to a smaller model. It runs within the turn, so it never
delays the intake.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

import structlog

from agent import spans
from agent.context.planner import Planner
from agent.errors import ModelError, SpendLimitReached, TurnSuspended
from agent.messages import ChatMessage, text_of
from agent.models.base import ChatModel
from agent.models.factory import group_by_choice
from agent.ports import ModelCall
from agent.tools.context import ToolContext
from agent.turn.loop import run_turn
from agent.turn.request import partial_text
from agent.view.view import View
from gateway.agent_ports.journal import Journal, cut_off
from gateway.commands import registry
from gateway.commands.registry import TurnContext
from gateway.context.parts import TurnParts
from gateway.errors import LeaseLost, TurnCancelled
from gateway.pipeline import notices
from gateway.pipeline.delegation import TurnDelegates, outcome_of
from gateway.pipeline.next_turn import tell_buried
from gateway.pipeline.preview import TurnChat
from gateway.storage.conversation import questions, transcript, turn_journal
from gateway.storage.conversation.turn_journal import Totals, TurnEnd
from gateway.storage.conversation.turns import MOST_BLAMED, Turn
from gateway.storage.reports import spending

log = structlog.get_logger()

HYGIENE_SHARE = 0.85
"""Share of the window that triggers hygiene; at 50 % it would run on every turn. Source: Hermes."""
MIN_MESSAGES = 4
"""Shorter histories are never compacted. Source: Hermes."""
HYGIENE_TIMEOUT_S = 30.0
"""Time limit of the summary model; then the extractor takes over."""
TELL_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class TurnToCommit:
    """The end of a turn, with the text of this `kind` for its chat."""

    text: str
    end: TurnEnd
    messages: list[ChatMessage] = field(default_factory=list)
    kind: str = "answer"


@dataclass(frozen=True, slots=True)
class TurnRunner:
    """Runs a turn that has begun, and commits its end."""

    parts: TurnParts

    async def run(self, turn: Turn) -> bool:
        """Answer a turn, or end it as cancelled or dead. An exception means: retry later.

        A turn that waits for a person is suspended. Return whether the lease was released with the
        answer because nothing else waits.
        """
        started = time.monotonic()
        conversation, place = turn.lease.conversation, turn.lease.address
        trace = spans.trace_of(conversation, turn.first_seq)
        whose = {"platform": place.platform, "account": place.account}
        with (
            structlog.contextvars.bound_contextvars(
                conversation=conversation, session=turn.session.id, turn=turn.id, trace=trace
            ),
            spans.span("turn", whose, trace=trace, turn=turn.id, attempt=turn.attempt),
        ):
            error = None
            if turn.blamed >= MOST_BLAMED:
                error = "the process died whenever it was tried"
            elif turn.attempt > self.parts.settings.queue.max_attempts:
                error = "it failed at every attempt"
            chat = TurnChat.of(self.parts, turn)
            if error is None or turn.stopped:
                return await self._answer(turn, chat, started)
            await self._bury(turn, chat, error)
            return False

    async def _bury(self, turn: Turn, chat: TurnChat, error: str) -> None:
        """Make a dead letter of a turn and notify its chat."""
        parts = await chat.parts("buried", notices.GAVE_UP)
        parts += await chat.new_notes(turn.messages)
        end = TurnEnd("gave_up", error=error)
        await self.parts.shared.database.write(turn_journal.bury, turn, parts, end)
        # Do not count the attempt of this run.
        tell_buried(self.parts.shared.wakeups, turn, max(turn.attempt - 1, turn.deaths), error)

    async def _answer(self, turn: Turn, chat: TurnChat, started: float) -> bool:
        shared = self.parts.shared
        with closing(shared.budgets.for_sender(turn.sender)) as spending:
            ahead = shared.beside.preparations
            journal = Journal(shared.database, turn, ahead, spending, chat.tell_of_context)
            try:
                done, totals = await self._end(journal, chat)
            except TurnSuspended as waiting:
                await self._suspend(turn, chat)
                log.info("turn_suspended", attempt=turn.attempt, reason=str(waiting))
                return False
        # Hints, the log line and plugins refer to stored rows, so they follow the commit.
        chat.ended("failed" if done.end.outcome in turn_journal.NO_ANSWER else "answered")
        _log_finished(turn, done.end, totals, started)
        if turn.command is None and (recall := shared.beside.recall) is not None:
            answer = done.text if done.kind == "answer" else ""
            recall.finished(turn, done.end.outcome, answer)
        return totals.released

    async def _suspend(self, turn: Turn, chat: TurnChat) -> None:
        """End an attempt that waits for a person, and keep its preview.

        The answer will appear below the question, so it must not replace this preview.
        """
        database, conversation = self.parts.shared.database, turn.lease.conversation
        own = await database.read(transcript.of_turn, conversation, turn.id)
        said = [text_of(each) for each in own if each["role"] == "assistant"]
        text = next((text for text in reversed(said) if text.strip()), "")
        shown = "\n\n".join(part for part in (text, chat.live.lines.text) if part)
        # A turn resumes once all questions are answered, so the newest one identifies the wait.
        asked = await database.read(questions.newest, conversation)
        await chat.live.message.settle()
        stands = chat.live.message.ref is not None and shown
        parts = await chat.parts(f"said:{asked}", shown) if stands else []
        await database.write(turn_journal.suspend, turn, parts)
        self.parts.shared.wakeups.outbox(conversation)

    async def _end(self, journal: Journal, chat: TurnChat) -> tuple[TurnToCommit, Totals]:
        try:
            done = await self._think(journal, chat)
            parts = await chat.parts(done.kind, done.text)
            said = [entry.message for entry in journal.recorded]
            parts += await chat.new_notes([*journal.turn.messages, *said])
            write = self.parts.shared.database.write
            answer = (journal.turn, done.messages, parts, done.end)
            totals = await write(turn_journal.commit, *answer, releases=True)
        except TurnCancelled:
            done = TurnToCommit("", TurnEnd("interrupted", await self._cut_off(journal, chat)))
            return done, await self._cancel(journal.turn, chat, done.end)
        except (asyncio.CancelledError, LeaseLost):
            # The interrupted call is billed even if another replica continues the turn.
            lost = await self._cut_off(journal, chat)
            await journal.book([lost] if lost else [])
            raise
        return done, totals

    async def _think(self, journal: Journal, chat: TurnChat) -> TurnToCommit:
        """Produce the answer with a preview; the user can stop it."""
        turn = journal.turn
        if turn.stopped:
            raise TurnCancelled(f"turn {turn.id} was stopped before it began again")
        # No deadline yet: `Stops` sets it when the user stops the turn.
        scope = asyncio.timeout(None)
        try:
            async with chat.live.shown(), scope:
                with self.parts.shared.stops.covering(turn, scope):
                    return await self._done(journal, chat)
        except TimeoutError as exc:
            # Any other timeout is a failure of the attempt, not a stop.
            if not scope.expired():
                raise
            raise TurnCancelled(f"turn {turn.id} was stopped by its user") from exc
        except (ModelError, SpendLimitReached) as exc:
            # Keep the visible part of a long answer.
            own = await self.parts.shared.database.read(
                transcript.of_turn, turn.lease.conversation, turn.id
            )
            text = notices.after_part(self._joined(own), notices.failure_text(exc))
            return TurnToCommit(text, TurnEnd(outcome_of(exc), error=str(exc)), kind="failed")

    async def _done(self, journal: Journal, chat: TurnChat) -> TurnToCommit:
        """Run the agent's loop, or a command that needs a turn."""
        entry = journal.turn.command
        if entry is None:
            return await self._run_loop(journal, chat)
        run = registry.by_word()[entry.command or ""].run
        return TurnToCommit(*await run(TurnContext(journal, entry.argument, self.parts)))

    async def _run_loop(self, journal: Journal, chat: TurnChat) -> TurnToCommit:
        """Check hygiene, then run the agent's loop."""
        turn, mine = journal.turn, self.parts.mind.agent
        agent = mine.preferring(turn.model)
        if turn.model is not None and turn.model not in group_by_choice(mine.models):
            log.warning("chosen_model_gone", model=turn.model, answers=agent.models[0].name)

        async def tools(planner: Planner) -> ToolContext:
            context = await self.parts.toolkit().for_turn(turn, planner.engine, agent.tools)
            delegates = TurnDelegates(self.parts, turn, agent, context)
            services = replace(context.services, delegates=delegates, progress=chat.live)
            return replace(context, services=services)

        attempt = self.parts.mind.context.attempt(
            agent, journal, chat.live, tools, chat.tell_of_trouble
        )
        async with attempt as (state, ports):
            with spans.span("hygiene"):
                await hygiene(ports.planner, state.view, chat.tell_of_hygiene)
            result = await run_turn(state, agent, ports)
        if turn.model is not None:
            await self._tell_of_fallback(chat, turn.model, state.model)
        said = [result.message] if result.message else []
        return TurnToCommit(notices.answer_text(result), TurnEnd(result.outcome, result.call), said)

    def _joined(self, own: list[ChatMessage], more: str = "") -> str:
        """Join the parts of an answer, then mask secrets: one may be split across parts."""
        return self.parts.mind.agent.approval.redactor.configured(partial_text(own) + more)

    async def _cut_off(self, journal: Journal, chat: TurnChat) -> ModelCall | None:
        return await cut_off(journal.in_flight, chat.live.text, self.parts.mind.agent.models)

    async def _cancel(self, turn: Turn, chat: TurnChat, end: TurnEnd) -> Totals:
        """End a stopped turn; a visible preview becomes its final text."""
        database = self.parts.shared.database
        own = await database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        said = self._joined(own, chat.live.text)
        partial = notices.stopped_text(chat.live.text) if chat.live.text else ""
        await chat.live.message.settle()
        last_word = notices.STOPPED if chat.live.message.stands else ""
        shown = notices.stopped_text(said) if said else last_word
        parts = await chat.parts("stopped", shown) if shown else []
        if not parts and turn.asked:
            # No delivery will end its trace.
            trace = spans.trace_of(turn.lease.conversation, turn.first_seq)
            spans.record_root(trace, turn.asked[0].at, outcome="cancelled")
        parts += await chat.new_notes(own)
        return await database.write(turn_journal.cancel, turn, partial, parts, end)

    async def _tell_of_fallback(
        self, chat: TurnChat, choice: str, answered: ChatModel | None
    ) -> None:
        """Report that a fallback answered instead of the model chosen with `/model`."""
        agent = self.parts.mind.agent
        known = group_by_choice(agent.models)
        others = [name for name, models in known.items() if name != choice and answered in models]
        if choice not in known or not others:
            return
        model, place = known[choice][0], chat.turn.lease.conversation
        failure = agent.recovery.rests.newest.get(model.label)
        since = await self.parts.shared.database.read(
            spending.chosen_or_answered, place, model.provider, model.name
        )
        await chat.tell_of_fallback(notices.fallback_text(choice, others[0], failure), since)


def hygiene_is_due(tokens: int, window_tokens: int, messages: int) -> bool:
    """Whether a view of this size must be compacted before its turn.

    Args:
        window_tokens: The window of the model that will answer.
        messages: Number of messages, without the system message.
    """
    return messages >= MIN_MESSAGES and tokens >= HYGIENE_SHARE * window_tokens


async def hygiene(planner: Planner, view: View, tell: Callable[[], Awaitable[None]]) -> None:
    """Compact the view if due; call `tell` if it takes longer than `TELL_AFTER_S`."""
    window_tokens = planner.engine.limits.context_length
    tokens = (await planner.measured(view)).tokens
    is_due = hygiene_is_due(tokens, window_tokens, len(view.entries))
    if not (planner.rules.enabled and is_due):
        return

    async def tell_later() -> None:
        await asyncio.sleep(TELL_AFTER_S)
        await tell()

    try:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(tell_later(), name="hygiene notice")
            done = await planner.compact(view, "hygiene", timeout_s=HYGIENE_TIMEOUT_S)
            telling.cancel()
    except BaseExceptionGroup as failures:
        # The caller distinguishes errors by class.
        raise failures.exceptions[0] from failures
    if done is None:
        log.warning("hygiene_without_effect", tokens=tokens, window_tokens=window_tokens)


def _log_finished(turn: Turn, end: TurnEnd, totals: Totals, started: float) -> None:
    last = end.call.usage if end.call else None
    if end.outcome == "provider_failed":
        # Operators watch the log for errors.
        log.error("no_model_answered", reason=end.error)
    spans.note(outcome=end.outcome, model_calls=totals.iterations, tool_calls=totals.tool_calls)
    log.info(
        "turn_finished",
        platform=turn.lease.address.platform,
        account=turn.lease.address.account,
        outcome=end.outcome,
        attempt=turn.attempt,
        iterations=totals.iterations,
        tool_calls=totals.tool_calls,
        model=end.call.reported_name or end.call.model if end.call else None,
        prompt_tokens=last.prompt_tokens if last else None,
        input_tokens=totals.input_tokens,
        cache_read_tokens=totals.cache_read_tokens,
        cache_write_tokens=totals.cache_write_tokens,
        output_tokens=totals.output_tokens,
        cost_usd=totals.usd,
        cost_estimated=totals.estimated,
        duration_ms=round((time.monotonic() - started) * 1000),
        error=end.error,
    )
