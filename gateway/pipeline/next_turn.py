"""The next step of a conversation, decided in one transaction.

An unfinished turn is resumed. Otherwise waiting commands run up to the first message, which starts
the next turn together with the other messages of its burst.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog
from sqlalchemy import Connection

from adapters.base import Renderer
from adapters.messages import MessageRef
from agent import spans
from agent.ports import Origin
from gateway.agent_ports.tools import lines_of
from gateway.commands import registry
from gateway.commands.help import unknown_text
from gateway.commands.registry import TURN, QueuedContext
from gateway.context.parts import TurnParts
from gateway.context.prompts import told_with_question, with_notes
from gateway.pipeline import notices
from gateway.session_keys import reset_due
from gateway.settings.tree import QueueSettings, SessionSettings
from gateway.signals import Wakeups
from gateway.storage.conversation import conversations, sessions, transcript, turn_journal, turns
from gateway.storage.conversation.message_content import content_of, origins_of
from gateway.storage.conversation.sessions import PromptBase
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import AskedQuestion, Turn
from gateway.storage.people import notebook
from gateway.storage.queue import inbox, leases, outbox, overheard
from gateway.storage.queue.inbox import InboxEntry, merged_text
from gateway.storage.queue.leases import Held, Lease
from gateway.storage.queue.outbox import parts_of

log = structlog.get_logger()

Take = Callable[[Connection], Held | None]
"""Takes a conversation by its lease or a claim (see `leases`); returns None if it cannot."""


@dataclass(frozen=True, slots=True)
class TurnStarter:
    """Starts a conversation's next turn; does slow work before the transaction."""

    parts: TurnParts
    next_turn: "NextTurn"

    async def start(
        self, conversation_id: int, take: Take, *, counts: bool = True
    ) -> "NextStep | None":
        """Begin or resume the conversation's next turn; see `NextTurn.begin`."""
        # An earlier stop is stored in the rows and must not end the turn after it.
        shared, mind = self.parts.shared, self.parts.mind
        shared.stops.forget(conversation_id)
        # A new segment's prompt contains these files.
        await mind.prompts.files.refresh()
        # Ask recall providers outside of the transaction: each may take seconds.
        recall = shared.beside.recall
        notes, origins = await recall.notes(conversation_id) if recall else ((), ())
        recalled = told_with_question(mind.agent.settings, notes)
        step = await shared.database.write(
            self.next_turn.begin, conversation_id, take, recalled, origins, counts=counts
        )
        if step is None:
            return None
        place = step.lease.address
        if step.turn is not None and not step.goes_on:
            trace = spans.trace_of(conversation_id, step.turn.first_seq)
            whose = {"platform": place.platform, "account": place.account}
            spans.record("queued", trace, step.turn.asked[0].at, **whose)
        for command in step.carried_out:
            shared.wakeups.outbox(conversation_id)
            question = MessageRef(place, command.sender, command.message_ref)
            shared.wakeups.reaction(question, "answered")
        return step

    async def give_up(self, lease: Lease, error: str) -> Turn | None:
        """Make a dead letter of the message that `start` fails at, and notify its chat.

        Returns:
            The turn; None if nothing waits any more. A turn that its user has stopped is not a dead
            letter: the caller must end it.
        """
        # Read here, since the writer's thread has no span recorder.
        seed = spans.seed_here()
        shared = self.parts.shared
        turn = await shared.database.write(self.next_turn.give_up, lease, error, seed)
        if turn is not None and not turn.stopped:
            tell_buried(shared.wakeups, turn, self.next_turn.queue.max_attempts, error)
        return turn


def tell_buried(wakeups: Wakeups, turn: Turn, attempts: int, error: str | None) -> None:
    """Report a turn that became a dead letter."""
    here = turn.lease.conversation
    wakeups.outbox(here)
    wakeups.mark(turn, "failed")
    # A turn that never began has bound no ids to the log.
    trace = spans.trace_of(here, turn.first_seq)
    log.error(
        "turn_buried", attempts=attempts, error=error, conversation=here, turn=turn.id, trace=trace
    )


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step of a conversation.

    Attributes:
        lease: The lease, released if there is no turn.
        turn: The turn to run; None if nothing can be answered yet.
        carried_out: The commands before it, already replied to.
        goes_on: Whether the turn had begun before.
        stuck: Whether it is ready but has nothing to begin, now and at any later claim.
    """

    lease: Lease
    turn: Turn | None
    carried_out: Sequence[InboxEntry] = ()
    goes_on: bool = False
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class NextTurn:
    """Decides the next step of a leased conversation, in the caller's transaction.

    Attributes:
        base: Returns the start of requests for the model chosen in the conversation.
    """

    queue: QueueSettings
    sessions: SessionSettings
    base: Callable[[str | None], PromptBase]
    renderers: Mapping[tuple[str, str], Renderer]

    def begin(
        self,
        conn: Connection,
        conversation_id: int,
        take: Take,
        recalled: str = "",
        origins: Collection[Origin] = (),
        *,
        counts: bool = True,
    ) -> NextStep | None:
        """Return the next turn, and the commands before it, already replied to.

        A turn that waits for a person keeps waiting, and so do the messages after it.

        Args:
            take: Takes the conversation; if it returns None, nothing is done.
            recalled: Recalled notes to add to the question of a new turn (`memory_context`).
            origins: Taints of a turn that reads these notes.
            counts: Whether it counts as an attempt to resume a turn.
        """
        conversations.hold(conn, conversation_id)
        held = take(conn)
        if held is None:
            return None
        lease = held.lease
        if held.waits:
            leases.release(conn, lease)
            return NextStep(lease, None)
        base = replace(self.base(held.model), context=recalled, context_origins=origins)
        running = turns.find_running(conn, held, base, counts=counts)
        if running is not None:
            return NextStep(lease, running, goes_on=True)
        waiting, active = inbox.queued_in(conn, conversation_id)
        # An album is several messages, so all of them wait for each other's files (decision 002).
        if any(entry.awaits_files for entry in waiting):
            waiting = []
        carried_out: list[InboxEntry] = []
        while waiting and waiting[0].kind == "command":
            command = waiting.pop(0)
            asked_by_it = self._carry_out(conn, held, command, base)
            if asked_by_it is not None:
                return NextStep(lease, asked_by_it, carried_out)
            carried_out.append(command)
        if not waiting:
            stuck = leases.release(conn, lease)
            return NextStep(lease, None, carried_out, stuck=stuck)
        if not carried_out:
            # A command may have started another segment.
            held = replace(held, active=active)
        return NextStep(lease, self._begin(conn, held, waiting, base), carried_out)

    def _begin(
        self, conn: Connection, held: Held, waiting: Sequence[InboxEntry], base: PromptBase
    ) -> Turn:
        lease, entries = held.lease, burst(waiting, self.queue)
        if self._reset_if_due(conn, lease, entries[0].at, entries[0].text):
            held = replace(held, active=None)
        upto_seq = entries[-1].seq
        notes = overheard.take_noted(conn, lease.conversation, upto_seq) if held.noted else []
        text = with_notes(merged_text(entries, named=lease.shared), notes)
        messages = [*notes, *entries]
        asked = content_of(conn, lease.conversation, messages, text)
        origins = origins_of(conn, lease.conversation, messages)
        question = AskedQuestion(asked, turns.senders_of(lease, notes), origins=origins)
        return turns.begin(conn, held, entries, question, base)

    def give_up(self, conn: Connection, lease: Lease, error: str, seed: bytes) -> Turn | None:
        """Make the row changes of `TurnStarter.give_up`; part of the caller's transaction."""
        turn = turns.take_up(conn, lease)
        if turn is not None and not turn.stopped:
            # A transaction cannot ask the platform about an announced preview.
            lost = turn.preview_nonce is not None
            text = f"{notices.REPLACES}\n\n{notices.NEVER_BEGAN}" if lost else notices.NEVER_BEGAN
            text = notices.referring(text, turn, seed)
            key, render = f"turn:{turn.id}:buried", self._render(lease)
            parts = parts_of(render, key, text, reply_to=turn.reply_to)
            parts[0] = replace(parts[0], preview_ref=turn.preview_ref)
            parts += lines_of(render, notebook.written_in(conn, turn.id))
            turn_journal.bury(conn, turn, parts, TurnEnd("gave_up", error=error))
        return turn

    def _carry_out(
        self, conn: Connection, held: Held, entry: InboxEntry, base: PromptBase
    ) -> Turn | None:
        """Run a queued command; return the turn that it asks for, if any."""
        command = registry.by_word().get(entry.command or "")
        if command is not None and command.route is TURN:
            return turns.begin(conn, held, [entry], AskedQuestion(None), base)
        # A version without this command may have been started since.
        asked: AskedQuestion | str = unknown_text(entry.command or "")
        if command is not None and command.route.when == "queued":
            asked = command.run(QueuedContext(conn, held, entry))
        if isinstance(asked, AskedQuestion):
            return turns.begin(conn, held, [entry], asked, base)
        key = f"reply:{entry.conversation}:{entry.seq}"
        parts = parts_of(self._render(held.lease), key, asked, reply_to=entry.message_ref)
        outbox.append(conn, entry.conversation, parts, inbox_seq=entry.seq)
        inbox.finish(conn, entry, "done")
        return None

    def _reset_if_due(self, conn: Connection, lease: Lease, asked_at: float, title: str) -> bool:
        """Start a new lineage if `sessions.reset` asks for it; return whether it did."""
        if self.sessions.reset == "none":
            return False
        first_seq = sessions.active(conn, lease.conversation).plan.first_seq
        newest_at = transcript.newest_at(conn, lease.conversation, first_seq)
        last = None if newest_at is None else datetime.fromtimestamp(newest_at, UTC)
        reason = reset_due(self.sessions, last, datetime.fromtimestamp(asked_at, UTC))
        if reason is not None:
            turns.begin_anew(conn, lease, reason, title)
        return reason is not None

    def _render(self, lease: Lease) -> Renderer:
        return self.renderers[lease.address.platform, lease.address.account]


def next_turn_of(parts: TurnParts) -> NextTurn:
    """Build a `NextTurn` from the parts of a turn."""
    settings, mind = parts.settings, parts.mind
    return NextTurn(
        settings.queue,
        settings.sessions,
        mind.prompts.bases(mind.agent),
        {account: each.render for account, each in parts.shared.adapters.items()},
    )


def burst(waiting: Sequence[InboxEntry], queue: QueueSettings) -> list[InboxEntry]:
    """Return the entries that form one turn: the first, and what `queue.mode` merges with it.

    collect and interrupt take all entries up to the next command; followup takes entries written
    within `queue.debounce_ms` of the one before.
    """
    taken = [waiting[0]]
    for entry in waiting[1:]:
        pause_ms = (entry.at - taken[-1].at) * 1000
        if entry.kind != "message" or (queue.mode == "followup" and pause_ms >= queue.debounce_ms):
            break
        taken.append(entry)
    return taken
