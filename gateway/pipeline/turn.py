"""One turn (steps 5 to 7 of the path): freeze, load the view, run the loop, commit the answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import structlog

from adapters.base import Adapter
from adapters.messages import MessageRef, Reaction
from adapters.rendering import rendered
from agent.errors import (
    AgentError,
    ModelError,
    ModelRefused,
    RateLimited,
    SpendLimitReached,
    TurnSuspended,
)
from agent.messages import ChatMessage, text_of
from agent.models.factory import choices
from agent.ports import ModelCall
from agent.turn.loop import run_turn
from agent.turn.state import Agent, TurnPorts, TurnState, partial_text
from gateway.agent_ports.budgets import Budgets, TurnSpending
from gateway.agent_ports.journal import Journal, cut_off
from gateway.agent_ports.tools import Toolkit
from gateway.commands import registry
from gateway.commands.model import ModelCommand
from gateway.context.memory import Finished, Recall
from gateway.context.prompts import OperatorFiles, told_with_question
from gateway.context.summaries import Preparations
from gateway.context.window import ContextParts
from gateway.errors import LeaseLost, TurnCancelled
from gateway.pipeline import hygiene, notices
from gateway.pipeline.delegation import Delegation
from gateway.pipeline.next_turn import Freezer
from gateway.pipeline.preview import LiveAnswer, PreviewMessage, PreviewRows, ToolLines
from gateway.signals import Stops, Wakeups
from gateway.storage.conversation import compactions, questions, transcript, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import MOST_BLAMED, Turn
from gateway.storage.engine import Database
from gateway.storage.queue import outbox
from gateway.storage.queue.leases import Lease
from gateway.storage.queue.outbox import OutboxPart, parts_of
from gateway.storage.reports import usage
from gateway.storage.reports.usage import Totals

log = structlog.get_logger()

TROUBLE_NOTICE_AFTER = 3
"""Waits for the model in a turn before its user is told that it takes longer."""
LONG_WAIT_S = 15
"""A wait that is told at once."""


@dataclass(frozen=True, slots=True)
class Done:
    """What is to be committed at the end of a turn.

    Attributes:
        text: What the chat is told.
        messages: What the transcript gets.
        kind: Of the text: an answer, or that there is none.
    """

    text: str
    end: TurnEnd
    messages: list[ChatMessage]
    kind: str = "answer"


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that was committed; `answer` is empty where there was none."""

    end: TurnEnd
    totals: Totals
    answer: str = ""


@dataclass(frozen=True, slots=True)
class TurnRunner:
    """Does the next piece of work of a leased conversation, from freeze to commit.

    Attributes:
        max_attempts: After so many failures in a row a turn is given up.
        operator_files: Kept up to date for the prompts that a freeze may write.
        lines: Makes what a turn shows of its tools; None: nothing is shown.
    """

    database: Database
    adapters: Mapping[tuple[str, str], Adapter]
    wakeups: Wakeups
    agent: Agent
    context: ContextParts
    budgets: Budgets
    max_attempts: int
    operator_files: OperatorFiles
    recall: Recall
    freezer: Freezer
    stops: Stops
    preparations: Preparations
    toolkit: Toolkit
    delegation: Delegation
    model_command: ModelCommand
    lines: Callable[[], ToolLines] | None = None

    async def next_turn(self, lease: Lease) -> Turn | None:
        """Freeze or resume the conversation's next turn; commands before it are carried out.

        Returns:
            The turn to run; None when nothing can be answered yet, and the lease was given back.
        """
        self.stops.forget(lease.conversation)
        await self.operator_files.refresh()
        notes = await self.recall.notes(lease)
        recalled = told_with_question(self.agent.settings, notes)
        turn, carried_out = await self.database.write(self.freezer.freeze, lease, recalled)
        for command in carried_out:
            self.wakeups.outbox(lease.conversation)
            question = MessageRef(lease.address, command.sender, command.message_ref)
            self.wakeups.reaction(question, "answered")
        return turn

    async def give_up(self, lease: Lease, error: str) -> bool:
        """Make a dead letter of what `next_turn` fails at, and tell its chat; False for nothing.

        What its user has stopped ends as that.
        """
        turn = await self.database.write(self.freezer.give_up, lease, error)
        if turn is None:
            return False
        if turn.stopped:
            await self.run(turn)
        else:
            self._tell_buried(turn, self.max_attempts, error)
        return True

    async def run(self, turn: Turn) -> None:
        """Answer a turn, or end it as cancelled or dead. Exceptions mean: try again later.

        A turn that waits for a person stays as it is, and `next_turn` gives its conversation back.
        """
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(
            conversation=turn.lease.conversation, session=turn.session.id, turn=turn.id
        ):
            error = self._why_hopeless(turn)
            if error is None or turn.stopped:
                await self._answer(turn, started)
            else:
                await self.bury(turn, TurnEnd("gave_up", error=error))

    def _why_hopeless(self, turn: Turn) -> str | None:
        """Return why a turn is given up; None: it is tried once more."""
        if turn.blamed >= MOST_BLAMED:
            return "the process died whenever it was tried"
        if turn.attempt > self.max_attempts:
            return "it failed at every attempt"
        return None

    async def bury(self, turn: Turn, end: TurnEnd) -> None:
        """Make a dead letter of a turn and tell its chat."""
        parts = await self._parts(turn, "buried", notices.GAVE_UP, self._preview(turn))
        await self.database.write(turn_journal.bury, turn, parts, end)
        self._tell_buried(turn, max(turn.attempt - 1, turn.deaths), end.error)

    def _tell_buried(self, turn: Turn, attempts: int, error: str | None) -> None:
        self.wakeups.outbox(turn.lease.conversation)
        self._react(turn, "failed")
        log.error("turn_buried", attempts=attempts, error=error)

    async def _answer(self, turn: Turn, started: float) -> None:
        live = LiveAnswer(
            self._adapter(turn.lease),
            turn.question,
            self._preview(turn),
            lambda: self.database.read(outbox.all_sent, turn.lease.conversation),
            lines=self.lines() if self.lines else None,
        )
        with closing(self.budgets.for_sender(turn.sender)) as spending:
            journal = self._journal(turn, spending)
            try:
                ended = await self._end(journal, live)
            except TurnSuspended as waiting:
                await self._suspend(turn, live)
                log.info("turn_suspended", attempt=turn.attempt, reason=str(waiting))
                return
        self.wakeups.outbox(turn.lease.conversation)
        self.wakeups.transcript(turn.lease.conversation)
        self._react(turn, "failed" if ended.end.outcome in notices.NO_ANSWER else "answered")
        self._log_finished(turn, ended, started)
        if turn.command is None:
            self.recall.finished(Finished(turn, ended.end.outcome, ended.answer))

    async def _suspend(self, turn: Turn, live: LiveAnswer) -> None:
        """End an attempt that waits for a person; what people saw of it stays where it is.

        The answer comes below the question, so it must not take the place of this preview.
        """
        own = await self.database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        said = [text_of(each) for each in own if each["role"] == "assistant"]
        text = next((text for text in reversed(said) if text.strip()), "")
        shown = "\n\n".join(part for part in (text, live.status) if part)
        # Nothing goes on before all of it is answered, so no two waits end in the same question.
        asked = await self.database.read(questions.newest, turn.lease.conversation)
        kind = f"said:{asked}"
        await live.message.settle()
        stands = live.message.ref is not None and shown
        parts = await self._parts(turn, kind, shown, live.message) if stands else []
        await self.database.write(turn_journal.suspend, turn, parts)
        self.wakeups.outbox(turn.lease.conversation)

    def _react(self, turn: Turn, mark: Reaction) -> None:
        """Have all messages marked that the turn was about."""
        for ref in turn.refs:
            self.wakeups.reaction(replace(turn.question, message_ref=ref), mark)

    async def _end(self, journal: Journal, live: LiveAnswer) -> Ended:
        """Bring a turn to its end and commit it."""
        try:
            done = await self._think(journal, live)
            parts = await self._parts(journal.turn, done.kind, done.text, live.message)
            totals = await self.database.write(
                turn_journal.commit, journal.turn, done.messages, parts, done.end
            )
        except TurnCancelled:
            end = TurnEnd("interrupted", await self._cut_off(journal, live))
            return Ended(end, await self._cancel(journal.turn, live, end))
        except (asyncio.CancelledError, LeaseLost):
            # What was begun is billed, whoever goes on with the turn.
            cut_off = await self._cut_off(journal, live)
            await journal.book([cut_off] if cut_off else [])
            raise
        self.preparations.answered(journal.turn.session.id)
        return Ended(done.end, totals, done.text if done.kind == "answer" else "")

    def _journal(self, turn: Turn, spending: TurnSpending) -> Journal:
        async def tell_user(what: str) -> None:
            await self._notify(turn, _told_once(turn, what), notices.CONTEXT[what])

        return Journal(self.database, turn, self.preparations, spending, tell_user)

    async def _think(self, journal: Journal, live: LiveAnswer) -> Done:
        """Do what the turn asks for, stoppable and with its preview."""
        turn = journal.turn
        if turn.stopped:
            raise TurnCancelled(f"turn {turn.id} was stopped before it began again")
        scope = asyncio.timeout(None)
        try:
            async with live.shown(), scope:
                with self.stops.covering(turn, scope):
                    return await self._work(journal, live)
        except TimeoutError as exc:
            if not scope.expired():
                raise
            raise TurnCancelled(f"turn {turn.id} was stopped by its user") from exc
        except ModelError as exc:
            outcome = "refused" if isinstance(exc, ModelRefused) else "provider_failed"
            return await self._broken_off(turn, outcome, exc, notices.failure_text(exc))
        except SpendLimitReached as exc:
            told = notices.spend_limit_text(exc)
            return await self._broken_off(turn, "spend_limit", exc, told)

    async def _broken_off(self, turn: Turn, outcome: str, failure: AgentError, told: str) -> Done:
        """Return the end of a turn without an answer; what people saw of a long one stays."""
        own = await self.database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        text = notices.after_part(partial_text(own), told)
        return Done(text, TurnEnd(outcome, error=str(failure)), [], kind="failed")

    async def _work(self, journal: Journal, live: LiveAnswer) -> Done:
        command = journal.turn.command
        if command is None:
            return await self._run_loop(journal, live)
        if command.command == "model":
            return Done(*await self.model_command.carry_out(journal), [])
        return await self._compress(journal)

    async def _run_loop(self, journal: Journal, live: LiveAnswer) -> Done:
        """Answer: hygiene, then the agent's loop."""
        turn = journal.turn
        agent = self.agent.preferring(turn.model)
        if turn.model is not None and turn.model not in choices(self.agent.models):
            log.warning("chosen_model_gone", model=turn.model, answers=agent.models[0].name)
        view, planner = await self.context.opened(agent, journal)
        used = await self._used_tokens(turn, agent)
        state = TurnState(view, list(turn.messages), turn.started_calls, used_tokens=used)
        context = await self.toolkit.for_turn(turn, planner.engine)
        delegates = self.delegation.of(turn, agent, context)
        services = replace(context.services, delegates=delegates, progress=live)
        context = replace(context, services=services)
        ports = TurnPorts(
            journal, planner, live, context, journal.spending, self._trouble_teller(turn)
        )
        with closing(planner):
            await hygiene.clean(planner, view, self._slow_teller(turn))
            result = await run_turn(state, agent, ports)
        end = TurnEnd(result.outcome, result.call)
        return Done(notices.answer_text(result), end, [result.message] if result.message else [])

    async def _used_tokens(self, turn: Turn, agent: Agent) -> int:
        """Return what earlier attempts at a turn read and wrote, where there is a limit."""
        is_fresh = turn.attempt == 1 and turn.messages[-1]["role"] == "user"
        if is_fresh or agent.settings.max_turn_tokens is None:
            return 0
        used = await self.database.read(usage.totals, turn.lease.conversation, turn.id)
        return used.usage.prompt_tokens + used.usage.output_tokens

    def _slow_teller(self, turn: Turn) -> Callable[[], Awaitable[None]]:
        return lambda: self._notify(turn, f"turn:{turn.id}:hygiene", notices.HYGIENE)

    async def _compress(self, journal: Journal) -> Done:
        """Carry out `/compress`."""
        turn = journal.turn
        view, planner = await self.context.opened(self.agent.preferring(turn.model), journal)
        topic = registry.topic(turn.command.text if turn.command else "")
        done = await self.database.read(compactions.made_by, turn)
        if done is None:
            with closing(planner):
                done = await planner.compact(view, "manual", focus=topic or None)
        end = TurnEnd("nothing_to_compress") if done is None else TurnEnd("compressed")
        return Done(registry.compress_text(done, topic), end, [])

    async def _notify(self, turn: Turn, key: str, text: str) -> None:
        """Tell the chat something while the turn goes on; once for each key."""
        parts = parts_of(self._adapter(turn.lease).render, key, text, reply_to=turn.reply_to)
        await self.database.write(turn_journal.notify, turn, parts)
        self.wakeups.outbox(turn.lease.conversation)

    def _trouble_teller(self, turn: Turn) -> Callable[[ModelError], Awaitable[None]]:
        """Return what tells the user, once, that the model is in trouble."""
        waits = 0

        async def tell(failure: ModelError) -> None:
            nonlocal waits
            waits += 1
            asked_s = failure.retry_after_s if isinstance(failure, RateLimited) else None
            if waits == TROUBLE_NOTICE_AFTER or (asked_s or 0) >= LONG_WAIT_S:
                await self._notify(turn, f"turn:{turn.id}:trouble", notices.TROUBLE)

        return tell

    async def _cut_off(self, journal: Journal, live: LiveAnswer) -> ModelCall | None:
        """Return the call that was cut off before its answer was kept, with what it had written."""
        return await cut_off(journal.in_flight, live.text, self.agent.models)

    async def _cancel(self, turn: Turn, live: LiveAnswer, end: TurnEnd) -> Totals:
        """End a stopped turn; a preview that people see becomes its last word."""
        own = await self.database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        said = partial_text(own) + live.text
        partial = notices.stopped_text(live.text) if live.text else ""
        await live.message.settle()
        last_word = notices.STOPPED if live.message.stands else ""
        shown = notices.stopped_text(said) if said else last_word
        parts = await self._parts(turn, "stopped", shown, live.message) if shown else []
        return await self.database.write(turn_journal.cancel, turn, partial, parts, end)

    def _preview(self, turn: Turn) -> PreviewMessage:
        rows = PreviewRows(
            lambda nonce: self.database.write(turn_journal.announce_preview, turn, nonce),
            lambda ref: self.database.write(turn_journal.set_preview, turn, ref),
            lambda: self.database.read(outbox.newest_refs, turn.lease.conversation),
        )
        return PreviewMessage(
            self._adapter(turn.lease),
            turn.question,
            rows,
            ref=turn.preview_ref,
            nonce=turn.preview_nonce,
        )

    async def _parts(
        self, turn: Turn, kind: str, text: str, preview: PreviewMessage
    ) -> list[OutboxPart]:
        """Return what a turn says in place of its preview; it names one that is lost."""
        await preview.settle()
        render = self._adapter(turn.lease).render
        return await rendered(
            lambda markdown: parts_of(
                render,
                f"turn:{turn.id}:{kind}",
                markdown,
                preview_ref=preview.ref,
                reply_to=turn.reply_to,
                choices=(notices.TRY_AGAIN,) if kind in {"failed", "buried"} else (),
            ),
            notices.replacing(text) if preview.is_lost else text,
        )

    def _adapter(self, lease: Lease) -> Adapter:
        return self.adapters[lease.address.platform, lease.address.account]

    def _log_finished(self, turn: Turn, ended: Ended, started: float) -> None:
        """Write the one canonical line of a turn."""
        end, totals = ended.end, ended.totals
        last = end.call.usage if end.call else None
        if end.outcome == "provider_failed":
            # The operator's line: whoever watches for errors sees it.
            log.error("no_model_answered", reason=end.error)
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
            input_tokens=totals.usage.input_tokens,
            cache_read_tokens=totals.usage.cache_read_tokens,
            cache_write_tokens=totals.usage.cache_write_5m_tokens
            + totals.usage.cache_write_1h_tokens,
            output_tokens=totals.usage.output_tokens,
            cost_usd=totals.usd,
            cost_estimated=totals.estimated,
            duration_ms=round((time.monotonic() - started) * 1000),
            error=end.error,
        )


def _told_once(turn: Turn, what: str) -> str:
    """Return the key of a notice about the context: a full floor is told once, until `/new`."""
    if what == "floor":
        return f"conversation:{turn.lease.conversation}:{turn.session.plan.first_seq}:floor"
    return f"turn:{turn.id}:{what}"
