"""One turn (steps 5 to 7 of the path): freeze, load the view, run the loop, commit the answer."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import orjson
import structlog
from sqlalchemy import Connection

from adapters.base import Adapter
from adapters.messages import Mark, Question
from agent.costs import cost_usd
from agent.errors import AgentError, ModelError, ModelRefused, RateLimited, SpendLimitReached
from agent.loop import Agent, TurnPorts, TurnState, partial_text, run_turn
from agent.messages import ChatMessage, Content
from agent.planner import Planner
from agent.ports import ModelCall
from agent.prompt import build_system_prompt
from agent.tokens import estimate_tokens
from agent.tools.registry import ToolContext
from agent.view import View
from gateway import commands, hygiene, notices
from gateway.access import Access
from gateway.asked import burst, merged_text, with_notes
from gateway.attachments import Attachments
from gateway.context import ContextParts, open_view
from gateway.errors import LeaseLost, TurnCancelled
from gateway.journal import Journal, Reader
from gateway.live import LiveAnswer
from gateway.preparing import Preparations
from gateway.sessions import reset_due
from gateway.settings import AttachmentSettings, QueueSettings, SessionSettings
from gateway.spending import Budgets, TurnSpending
from gateway.stops import Stops
from gateway.storage import (
    attachments,
    compactions,
    inbox,
    leases,
    lineage,
    outbox,
    transcript,
    turns,
)
from gateway.storage.contents import content_of
from gateway.storage.engine import Database
from gateway.storage.inbox import Entry
from gateway.storage.leases import Lease
from gateway.storage.lineage import PromptBase
from gateway.storage.outbox import Part, file_part, parts_of
from gateway.storage.totals import Totals
from gateway.storage.turns import Turn, TurnEnd
from gateway.wakeups import Wakeups

log = structlog.get_logger()

TROUBLE_NOTICE_AFTER = 3
"""Waits for the model in a turn before its user is told that it takes longer."""
NO_ANSWER = frozenset({"provider_failed", "refused", "spend_limit", "interrupted"})
"""Outcomes whose messages are marked as failed."""
LONG_WAIT_S = 15
"""A wait that is told at once."""


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What decides about turns."""

    queue: QueueSettings
    sessions: SessionSettings
    budgets: Budgets
    access: Access
    attachments: AttachmentSettings


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


class TurnRunner:
    """Does the next piece of work of a leased conversation, from freeze to commit."""

    def __init__(
        self,
        database: Database,
        agent: Agent,
        context: ContextParts,
        adapters: Mapping[tuple[str, str], Adapter],
        rules: TurnRules,
        wakeups: Wakeups,
    ) -> None:
        self._database = database
        self.files = Attachments(database, adapters, rules.attachments, wakeups)
        self._agent = agent
        self._context = context
        self._adapters = adapters
        self._rules = rules
        self._wakeups = wakeups
        self.stops = Stops()
        self.preparations = Preparations(database, agent, context, rules.budgets.exhausted)
        self._base = prompt_base(agent)

    async def next_turn(self, lease: Lease) -> Turn | None:
        """Freeze or resume the conversation's next turn; commands before it are carried out.

        Returns:
            The turn to run; None when nothing can be answered yet, and the lease was given back.
        """
        self.stops.forget(lease.conversation)
        turn, carried_out = await self._database.write(self._freeze, lease)
        for command in carried_out:
            self._wakeups.outbox(lease.conversation)
            question = Question(lease.address, command.sender, command.message_ref)
            self._wakeups.reaction(question, "answered")
        return turn

    def is_suspect(self, turn: Turn) -> bool:
        """Whether this is the last attempt at a turn that crashed before: it runs alone."""
        return 1 < self._rules.queue.max_attempts == turn.attempt

    async def run(self, turn: Turn) -> None:
        """Answer a turn, or end it as cancelled or dead. Exceptions mean: try again later."""
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(
            conversation=turn.lease.conversation, session=turn.session.id, turn=turn.id
        ):
            if turn.attempt > self._rules.queue.max_attempts:
                end = TurnEnd("gave_up", error="the process crashed at every attempt")
                await self.bury(turn, end)
            else:
                await self._answer(turn, started)

    async def bury(self, turn: Turn, end: TurnEnd) -> None:
        """Make a dead letter of a turn and tell its chat."""
        parts = self._parts(turn, "buried", notices.GAVE_UP, turn.preview_ref)
        await self._database.write(turns.bury, turn, parts, end)
        self._wakeups.outbox(turn.lease.conversation)
        self._react(turn, "failed")
        log.error("turn_buried", attempts=turn.attempt - 1, error=end.error)

    async def _answer(self, turn: Turn, started: float) -> None:
        live = LiveAnswer(
            self._adapter(turn.lease),
            turn.question,
            turn.preview_ref,
            lambda ref: self._database.write(turns.set_preview, turn, ref),
            lambda: self._database.read(outbox.all_sent, turn.lease.conversation),
        )
        with closing(self._rules.budgets.of(turn.sender)) as spending:
            end, totals = await self._end(self._journal(turn, spending), live)
        self._wakeups.outbox(turn.lease.conversation)
        self._react(turn, "failed" if end.outcome in NO_ANSWER else "answered")
        self._log_finished(turn, end, totals, started)

    def _react(self, turn: Turn, mark: Mark) -> None:
        """Have all messages marked that the turn was about."""
        for ref in turn.refs:
            self._wakeups.reaction(replace(turn.question, message_ref=ref), mark)

    async def _end(self, journal: Journal, live: LiveAnswer) -> tuple[TurnEnd, Totals]:
        """Bring a turn to its end and commit it; returns what was stored, and what it took."""
        try:
            done = await self._think(journal, live)
            parts = self._parts(journal.turn, done.kind, done.text, live.ref)
            parts += await self._made_files(journal.turn)
            totals = await self._database.write(
                turns.commit, journal.turn, done.messages, parts, done.end
            )
        except TurnCancelled:
            end = TurnEnd("interrupted", await self._cut_off(journal, live))
            return end, await self._cancel(journal.turn, live, end)
        except (asyncio.CancelledError, LeaseLost):
            # What was begun is billed, whoever goes on with the turn.
            cut_off = await self._cut_off(journal, live)
            await journal.book([cut_off] if cut_off else [])
            raise
        self.preparations.answered(journal.turn.session.id)
        return done.end, totals

    def _journal(self, turn: Turn, spending: TurnSpending) -> Journal:
        async def tell_user(what: str) -> None:
            await self._notify(turn, _told_once(turn, what), notices.CONTEXT[what])

        return Journal(self._database, turn, self.preparations, spending, tell_user)

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
        own = await self._database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        text = notices.after_part(partial_text(own), told)
        return Done(text, TurnEnd(outcome, error=str(failure)), [], kind="failed")

    async def _work(self, journal: Journal, live: LiveAnswer) -> Done:
        if journal.turn.command is not None:
            return await self._compress(journal)
        return await self._run_loop(journal, live)

    async def _run_loop(self, journal: Journal, live: LiveAnswer) -> Done:
        """Answer: hygiene, then the agent's loop."""
        turn = journal.turn
        view, planner = await self._open_view(journal)
        state = TurnState(view, list(turn.messages), turn.started_calls)
        context = ToolContext(
            conversation=str(turn.lease.conversation),
            reader=Reader(self._database, turn.lease.conversation),
            clock=lambda: datetime.now(UTC),
            engine=planner.engine,
            files=self.files.files(turn),
            may_act=await self._database.read(self._rules.access.may_act, turn.senders),
        )
        ports = TurnPorts(
            journal, planner, live, context, journal.spending, self._trouble_teller(turn)
        )
        with closing(planner):
            await hygiene.clean(planner, view, self._slow_teller(turn))
            result = await run_turn(state, self._agent, ports)
        end = TurnEnd(result.outcome, result.call)
        return Done(notices.answer_text(result), end, [result.message] if result.message else [])

    def _slow_teller(self, turn: Turn) -> Callable[[], Awaitable[None]]:
        return lambda: self._notify(turn, f"turn:{turn.id}:hygiene", notices.HYGIENE)

    async def _compress(self, journal: Journal) -> Done:
        """Carry out `/compress`."""
        turn = journal.turn
        view, planner = await self._open_view(journal)
        topic = commands.topic(turn.command or "")
        done = await self._database.read(compactions.made_by, turn)
        if done is None:
            with closing(planner):
                done = await planner.compact(view, "manual", focus=topic or None)
        return Done(commands.compress_text(done, topic), TurnEnd("compressed"), [])

    async def _open_view(self, journal: Journal) -> tuple[View, Planner]:
        turn = journal.turn
        system = turn.session.system_prompt or self._base.system
        view = await open_view(self._database, turn.session, turn.session.plan, system)
        planner = self._context.planner(self._agent, turn.session, journal, journal.spending)
        return view, planner

    async def _notify(self, turn: Turn, key: str, text: str) -> None:
        """Tell the chat something while the turn goes on; once for each key."""
        parts = parts_of(self._adapter(turn.lease).render, key, text, reply_to=turn.reply_to)
        await self._database.write(turns.notify, turn, parts)
        self._wakeups.outbox(turn.lease.conversation)

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
        call = journal.in_flight
        if call is None or call.usage is None or not call.estimated:
            return call
        written = await asyncio.to_thread(estimate_tokens, live.text, call.model)
        usage = replace(call.usage, output_tokens=written)
        prices = next(
            (each.facts.prices for each in self._agent.models if each.name == call.model), None
        )
        return replace(call, usage=usage, cost_usd=cost_usd(usage, prices))

    async def _cancel(self, turn: Turn, live: LiveAnswer, end: TurnEnd) -> Totals:
        """End a stopped turn; a preview that people see becomes its last word."""
        own = await self._database.read(transcript.of_turn, turn.lease.conversation, turn.id)
        said = partial_text(own) + live.text
        partial = notices.stopped_text(live.text) if live.text else ""
        shown = notices.stopped_text(said) if said else notices.STOPPED if live.ref else ""
        parts = self._parts(turn, "stopped", shown, live.ref) if shown else []
        return await self._database.write(turns.cancel, turn, partial, parts, end)

    def _parts(self, turn: Turn, kind: str, text: str, preview_ref: str | None) -> list[Part]:
        return parts_of(
            self._adapter(turn.lease).render,
            f"turn:{turn.id}:{kind}",
            text,
            preview_ref=preview_ref,
            reply_to=turn.reply_to,
            choices=(notices.TRY_AGAIN,) if kind in {"failed", "buried"} else (),
        )

    async def _made_files(self, turn: Turn) -> list[Part]:
        """Return the rows of the files that the turn's tools have made."""
        made = await self._database.read(attachments.of_turn, turn.id)
        return [file_part(f"turn:{turn.id}:file:{file.id}", file.id, file.name) for file in made]

    def _adapter(self, lease: Lease) -> Adapter:
        return self._adapters[lease.address.platform, lease.address.account]

    def _freeze(self, conn: Connection, lease: Lease) -> tuple[Turn | None, list[Entry]]:
        """Return the next turn, and the commands before it, which have been replied to."""
        running = turns.find_running(conn, lease, self._base)
        if running is not None:
            return running, []
        waiting = inbox.queued(conn, lease.conversation)
        if waiting and attachments.is_waited_for(conn, lease.conversation):
            waiting = []
        carried_out: list[Entry] = []
        while waiting and waiting[0].kind == "command":
            command = waiting.pop(0)
            asked_by_it = self._carry_out(conn, lease, command)
            if asked_by_it is not None:
                return asked_by_it, carried_out
            carried_out.append(command)
        if not waiting:
            leases.release(conn, lease)
            return None, carried_out
        entries = burst(waiting, self._rules.queue)
        self._reset_if_due(conn, lease, entries[0].at, entries[0].text)
        notes = inbox.take_noted(conn, lease.conversation, entries[-1].seq)
        asked = self._asked(conn, lease, notes, entries)
        others = turns.senders_of(lease, notes)
        return turns.begin(conn, lease, entries, asked, self._base, others), carried_out

    def _asked(
        self, conn: Connection, lease: Lease, notes: Sequence[Entry], entries: Sequence[Entry]
    ) -> Content:
        """Return what the model reads of these messages."""
        text = with_notes(merged_text(entries, named=lease.shared), notes)
        chars = self._rules.attachments.text_chars
        return content_of(conn, lease.conversation, [*notes, *entries], text, chars)

    def _carry_out(self, conn: Connection, lease: Lease, command: Entry) -> Turn | None:
        """Do a queued command; returns the turn that it asks for, if any.

        `/retry` asks the newest question again, `/new` what stands behind it; `/compress` takes
        a turn of its own.
        """
        asked: Content
        others: tuple[str, ...] = ()
        name = commands.parse(command.text)
        if name == "compress":
            return turns.begin(conn, lease, [command], None, self._base)
        if name == "new":
            words = commands.argument(command.text)
            # What was said before it belongs to the old conversation.
            inbox.take_noted(conn, lease.conversation, command.seq)
            self._start_anew(conn, lease, "new", words)
            chars = self._rules.attachments.text_chars
            asked = content_of(conn, lease.conversation, [command], words, chars)
            otherwise = commands.NEW_TEXT
        else:
            others = turns.newest_senders(conn, lease)
            asked = turns.hide_newest(conn, lease.conversation) or ""
            otherwise = commands.NOTHING_TO_RETRY
        if asked:
            return turns.begin(conn, lease, [command], asked, self._base, others)
        self._reply(conn, lease, command, otherwise)
        inbox.finish(conn, command, "done")
        return None

    def _reset_if_due(self, conn: Connection, lease: Lease, asked_at: float, title: str) -> None:
        """Begin a new lineage where `sessions.reset` says so; messages stay as they are."""
        first_seq = lineage.active(conn, lease.conversation).plan.first_seq
        newest_at = transcript.newest_at(conn, lease.conversation, first_seq)
        last = None if newest_at is None else datetime.fromtimestamp(newest_at, UTC)
        reason = reset_due(self._rules.sessions, last, datetime.fromtimestamp(asked_at, UTC))
        if reason is not None:
            self._start_anew(conn, lease, reason, title)

    def _start_anew(self, conn: Connection, lease: Lease, reason: str, title: str) -> None:
        lineage.end(conn, lineage.active(conn, lease.conversation).id, reason)
        head = leases.fence(conn, lease).message_head
        lineage.start_root(conn, lease.conversation, reason, first_seq=head + 1)
        inbox.rename(conn, lease.conversation, title)

    def _reply(self, conn: Connection, lease: Lease, command: Entry, text: str) -> None:
        key = f"reply:{command.conversation}:{command.seq}"
        render = self._adapter(lease).render
        parts = parts_of(render, key, text, reply_to=command.message_ref)
        outbox.append(conn, command.conversation, parts, inbox_seq=command.seq)

    def _log_finished(self, turn: Turn, end: TurnEnd, totals: Totals, started: float) -> None:
        """Write the one canonical line of a turn."""
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


def prompt_base(agent: Agent) -> PromptBase:
    """Return what every request of a new lineage begins with, and what that was made from."""
    instructions = agent.settings.instructions
    names = tuple(tool.name for tool in agent.tools.schemas)
    return PromptBase(
        system=build_system_prompt(instructions, names),
        tools=orjson.dumps(agent.tools.schemas, option=orjson.OPT_SORT_KEYS).decode(),
        inputs={
            "instructions": hashlib.sha256((instructions or "").encode()).hexdigest()[:16],
            "model": agent.models[0].name,
        },
    )


def _told_once(turn: Turn, what: str) -> str:
    """Return the key of a notice about the context: a full floor is told once, until `/new`."""
    if what == "floor":
        return f"conversation:{turn.lease.conversation}:{turn.session.plan.first_seq}:floor"
    return f"turn:{turn.id}:{what}"
