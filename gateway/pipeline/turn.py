"""One turn: load the view, keep it within the window, run the agent's loop, commit the answer."""

import asyncio
import time
from contextlib import closing
from dataclasses import dataclass, replace

import structlog

from agent import spans
from agent.errors import AgentError, ModelError, ModelRefused, SpendLimitReached, TurnSuspended
from agent.messages import ChatMessage, text_of
from agent.models.base import ChatModel
from agent.models.factory import choices
from agent.ports import ModelCall
from agent.tools.context import ToolContext
from agent.turn.loop import run_turn
from agent.turn.state import Agent, TurnPorts, TurnState, partial_text
from gateway.access.policy import Access
from gateway.agent_ports.budgets import Budgets
from gateway.agent_ports.journal import Journal, cut_off
from gateway.agent_ports.tools import MadeOnce, Toolkit
from gateway.commands import registry
from gateway.commands.registry import TurnContext
from gateway.context.memory import Finished, Recall
from gateway.context.summaries import Preparations
from gateway.context.window import ContextParts
from gateway.errors import LeaseLost, TurnCancelled
from gateway.pipeline import hygiene, notices
from gateway.pipeline.delegation import Delegation
from gateway.pipeline.next_turn import tell_buried
from gateway.pipeline.notices import TurnChat, TurnChats
from gateway.signals import Stops
from gateway.storage.conversation import questions, transcript, turn_journal
from gateway.storage.conversation.turn_journal import Totals, TurnEnd
from gateway.storage.conversation.turns import MOST_BLAMED, Turn
from gateway.storage.database import Database
from gateway.storage.reports import ledger, spending
from gateway.storage.reports.spending import Where

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TurnToCommit:
    """What is to be committed at the end of a turn.

    Attributes:
        kind: Of the text: an answer, or that there is none.
    """

    text: str
    end: TurnEnd
    messages: list[ChatMessage]
    kind: str = "answer"


@dataclass(frozen=True, slots=True)
class CommittedTurn:
    """A turn that was committed.

    Attributes:
        answer: Empty where there was none.
    """

    end: TurnEnd
    totals: Totals
    answer: str = ""


@dataclass(frozen=True, slots=True)
class TurnRunner:
    """Runs a turn that has begun, and commits its end.

    Attributes:
        max_attempts: After so many failures in a row a turn is given up.
    """

    database: Database
    chats: TurnChats
    work: "TurnWork"
    stops: Stops
    budgets: Budgets
    preparations: Preparations
    recall: Recall
    max_attempts: int

    async def run(self, turn: Turn) -> bool:
        """Answer a turn, or end it as cancelled or dead. Exceptions mean: try again later.

        A turn that waits for a person stays as it is, and `next_turn` gives its conversation back.

        Returns:
            Whether the conversation was given back with the answer, since nothing waits in it.
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
            error = self._why_hopeless(turn)
            if error is None or turn.stopped:
                return await self._answer(turn, started)
            await self.bury(turn, TurnEnd("gave_up", error=error))
            return False

    def _why_hopeless(self, turn: Turn) -> str | None:
        """Return why a turn is given up; None: it is tried once more."""
        if turn.blamed >= MOST_BLAMED:
            return "the process died whenever it was tried"
        if turn.attempt > self.max_attempts:
            return "it failed at every attempt"
        return None

    async def bury(self, turn: Turn, end: TurnEnd) -> None:
        """Make a dead letter of a turn and tell its chat."""
        chat = self.chats.of(turn)
        parts = await chat.parts("buried", notices.GAVE_UP)
        parts += await chat.new_notes(turn.messages)
        await self.database.write(turn_journal.bury, turn, parts, end)
        # The attempt that was counted for this run is not made.
        tell_buried(self.chats.wakeups, turn, max(turn.attempt - 1, turn.deaths), end.error)

    async def _answer(self, turn: Turn, started: float) -> bool:
        chat = self.chats.of(turn)
        with closing(self.budgets.for_sender(turn.sender)) as spending:
            journal = Journal(
                self.database, turn, self.preparations, spending, chat.tell_of_context
            )
            try:
                ended = await self._end(journal, chat)
            except TurnSuspended as waiting:
                await self._suspend(turn, chat)
                log.info("turn_suspended", attempt=turn.attempt, reason=str(waiting))
                return False
        # After the commit: hints, the log line and the plugins speak of what is stored.
        failed = ended.end.outcome in turn_journal.NO_ANSWER
        chat.ended("failed" if failed else "answered")
        _log_finished(turn, ended, started)
        if turn.command is None:
            self.recall.finished(Finished(turn, ended.end.outcome, ended.answer))
        return ended.totals.released

    async def _suspend(self, turn: Turn, chat: TurnChat) -> None:
        """End an attempt that waits for a person; what people saw of it stays where it is.

        The answer comes below the question, so it must not take the place of this preview.
        """
        own = await self.database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        said = [text_of(each) for each in own if each["role"] == "assistant"]
        text = next((text for text in reversed(said) if text.strip()), "")
        shown = "\n\n".join(part for part in (text, chat.live.status) if part)
        # Nothing goes on before all of it is answered, so no two waits end in the same question.
        asked = await self.database.read(questions.newest, turn.lease.conversation)
        await chat.message.settle()
        stands = chat.message.ref is not None and shown
        parts = await chat.parts(f"said:{asked}", shown) if stands else []
        await self.database.write(turn_journal.suspend, turn, parts)
        self.chats.wakeups.outbox(turn.lease.conversation)

    async def _end(self, journal: Journal, chat: TurnChat) -> CommittedTurn:
        """Bring a turn to its end and commit it."""
        try:
            done = await self._think(journal, chat)
            end, parts = done.end, await chat.parts(done.kind, done.text)
            said = [entry.message for entry in journal.recorded]
            parts += await chat.new_notes([*journal.turn.messages, *said])
            totals = await self.database.write(
                turn_journal.commit_and_release, journal.turn, done.messages, parts, end
            )
        except TurnCancelled:
            end = TurnEnd("interrupted", await self._cut_off(journal, chat))
            totals = await self._cancel(journal.turn, chat, end)
            return CommittedTurn(end, totals)
        except (asyncio.CancelledError, LeaseLost):
            # What was begun is billed, whoever goes on with the turn.
            cut_off = await self._cut_off(journal, chat)
            await journal.book([cut_off] if cut_off else [])
            raise
        answer = done.text if done.kind == "answer" else ""
        return CommittedTurn(end, totals, answer)

    async def _think(self, journal: Journal, chat: TurnChat) -> TurnToCommit:
        """Do what the turn asks for, stoppable and with its preview."""
        turn = journal.turn
        if turn.stopped:
            raise TurnCancelled(f"turn {turn.id} was stopped before it began again")
        # No deadline yet: `Stops` sets one when the user stops the turn.
        scope = asyncio.timeout(None)
        try:
            async with chat.live.shown(), scope:
                with self.stops.covering(turn, scope):
                    return await self.work.do(journal, chat)
        except TimeoutError as exc:
            # One that came from below is a failure of the attempt and no stop.
            if not scope.expired():
                raise
            raise TurnCancelled(f"turn {turn.id} was stopped by its user") from exc
        except ModelError as exc:
            outcome = "refused" if isinstance(exc, ModelRefused) else "provider_failed"
            return await self._broken_off(turn, outcome, exc, notices.failure_text(exc))
        except SpendLimitReached as exc:
            told = notices.spend_limit_text(exc)
            return await self._broken_off(turn, "spend_limit", exc, told)

    async def _broken_off(
        self, turn: Turn, outcome: str, failure: AgentError, told: str
    ) -> TurnToCommit:
        """Return the end of a turn without an answer; what people saw of a long one stays."""
        own = await self.database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        text = notices.after_part(self._joined(own), told)
        return TurnToCommit(text, TurnEnd(outcome, error=str(failure)), [], kind="failed")

    def _joined(self, own: list[ChatMessage], more: str = "") -> str:
        """Return the parts of an answer as one text: two halves may be a secret together."""
        return self.work.agent.calls.redactor.configured(partial_text(own) + more)

    async def _cut_off(self, journal: Journal, chat: TurnChat) -> ModelCall | None:
        """Return the call that was cut off before its answer was kept, with what it had written."""
        return await cut_off(journal.in_flight, chat.live.text, self.work.agent.models)

    async def _cancel(self, turn: Turn, chat: TurnChat, end: TurnEnd) -> Totals:
        """End a stopped turn; a preview that people see becomes its last word."""
        own = await self.database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        said = self._joined(own, chat.live.text)
        partial = notices.stopped_text(chat.live.text) if chat.live.text else ""
        await chat.message.settle()
        last_word = notices.STOPPED if chat.message.stands else ""
        shown = notices.stopped_text(said) if said else last_word
        parts = await chat.parts("stopped", shown) if shown else []
        if not parts and turn.asked:
            # Nothing is delivered that would end its trace.
            trace = spans.trace_of(turn.lease.conversation, turn.first_seq)
            spans.record_root(trace, turn.asked[0].at, outcome="cancelled")
        parts += await chat.new_notes(own)
        return await self.database.write(turn_journal.cancel, turn, partial, parts, end)


@dataclass(frozen=True, slots=True)
class TurnWork:
    """Does what turns ask for; it commits steps, and leaves the end of a turn to `TurnRunner`."""

    database: Database
    agent: Agent
    context: ContextParts
    toolkit: Toolkit
    delegation: Delegation
    access: Access

    async def do(self, journal: Journal, chat: TurnChat) -> TurnToCommit:
        """Answer, or carry out the command that takes a turn of its own."""
        command = journal.turn.command
        if command is None:
            return await self._run_loop(journal, chat)
        run = registry.by_word()[command.command or ""].run
        given = (journal, command.argument, self.database, self.agent, self.context, self.access)
        text, end = await run(TurnContext(*given))
        return TurnToCommit(text, end, [])

    async def _run_loop(self, journal: Journal, chat: TurnChat) -> TurnToCommit:
        """Answer: hygiene, then the agent's loop."""
        turn = journal.turn
        agent = self.agent.preferring(turn.model)
        if turn.model is not None and turn.model not in choices(self.agent.models):
            log.warning("chosen_model_gone", model=turn.model, answers=agent.models[0].name)
        view, planner = await self.context.opened(agent, journal)
        used = await self._used_tokens(turn, agent)
        state = TurnState(view, list(turn.messages), turn.started_calls, used_tokens=used)

        async def tools() -> ToolContext:
            context = await self.toolkit.for_turn(turn, planner.engine, agent.tools)
            delegates = self.delegation.of(turn, agent, context)
            services = replace(context.services, delegates=delegates, progress=chat.live)
            trail = context.rights.read.trail
            # A compaction may have taken the pages of this turn out of the view.
            trail.note_shown([*turn.messages, *(entry.message for entry in view.entries)])
            return replace(context, services=services)

        ports = TurnPorts(
            journal=journal,
            planner=planner,
            sink=chat.live,
            tools=MadeOnce(tools),
            spending=journal.spending,
            on_trouble=chat.tell_of_trouble,
            conversation=str(turn.lease.conversation),
        )
        with closing(planner):
            with spans.span("hygiene"):
                await hygiene.clean(planner, view, chat.tell_of_hygiene)
            result = await run_turn(state, agent, ports)
        if turn.model is not None:
            await self._tell_of_fallback(chat, turn.model, state.model)
        end = TurnEnd(result.outcome, result.call)
        return TurnToCommit(
            notices.answer_text(result), end, [result.message] if result.message else []
        )

    async def _tell_of_fallback(
        self, chat: TurnChat, choice: str, answered: ChatModel | None
    ) -> None:
        """Say that another model answered than the one that `/model` has chosen."""
        known = choices(self.agent.models)
        others = [name for name, models in known.items() if name != choice and answered in models]
        if choice not in known or not others:
            return
        model, place = known[choice][0], chat.turn.lease.conversation
        failure = self.agent.recovery.rests.newest.get(model.label)
        since = await self.database.read(
            ledger.chosen_or_answered, place, model.provider, model.name
        )
        await chat.tell_of_fallback(notices.fallback_text(choice, others[0], failure), since)

    async def _used_tokens(self, turn: Turn, agent: Agent) -> int:
        """Return what earlier attempts at a turn read and wrote; 0 where there is no limit."""
        # The first attempt, and no step yet: nothing that would be worth a query.
        is_fresh = turn.attempt == 1 and turn.messages[-1]["role"] == "user"
        if is_fresh or agent.settings.max_turn_tokens is None:
            return 0
        where = Where(conversation=turn.lease.conversation, turn=turn.id)
        return (await self.database.read(spending.total, where)).usage.total_tokens


def _log_finished(turn: Turn, ended: CommittedTurn, started: float) -> None:
    """Write the one canonical line of a turn."""
    end, totals = ended.end, ended.totals
    last = end.call.usage if end.call else None
    if end.outcome == "provider_failed":
        # The operator's line: whoever watches for errors sees it.
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
