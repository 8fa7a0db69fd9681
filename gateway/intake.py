"""Admission (steps 2 and 3 of the path): allowed? duplicate? command? then one durable row.

Everything one call brings is one transaction, the source's cursor with it. What bypasses the queue
is answered in that same transaction, so that an answer exists exactly if its question does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import structlog
from sqlalchemy import Connection, Row, update

from adapters.messages import Address, Admission, Cursor, InboundMessage, Move, Poison
from agent.messages import clean_text, storable
from gateway import commands
from gateway.access import Access, stranger_notice
from gateway.commands import StatusFacts
from gateway.sessions import GroupSessions, address_key, session_key, sole_sender
from gateway.settings import QueueSettings
from gateway.spending import today
from gateway.storage import (
    costs,
    history,
    inbox,
    insights,
    leases,
    ledger,
    outbox,
    turns,
    usage,
)
from gateway.storage.engine import Database
from gateway.storage.models import conversation
from gateway.storage.outbox import Renderer, parts_of
from gateway.usagetexts import INSIGHTS_DAYS, MoneyRules, Today, insights_text, usage_text
from gateway.wakeups import Wakeups

if TYPE_CHECKING:
    from gateway.storage.inbox import InboxKind

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """What decides about an update; all of it fixed at start but the figures of the model.

    Attributes:
        model: Returns what is said about the model, as it is now.
    """

    access: Access
    queue: QueueSettings
    groups: GroupSessions
    model: Callable[[], StatusFacts]
    money: MoneyRules = field(default_factory=MoneyRules)


class GatewayIntake:
    """The gateway's side of `adapters.base.Intake`."""

    def __init__(
        self,
        database: Database,
        rules: IntakeRules,
        renderers: Mapping[tuple[str, str], Renderer],
        wakeups: Wakeups,
    ) -> None:
        self._database = database
        self._rules = rules
        self._renderers = renderers
        self._wakeups = wakeups

    async def accept(
        self,
        messages: Sequence[InboundMessage],
        *,
        cursors: Sequence[Cursor] = (),
        poison: Sequence[Poison] = (),
        moves: Sequence[Move] = (),
    ) -> list[Admission]:
        """Commit updates in one transaction; see `adapters.base.Intake`."""
        cleaned = [_cleaned(message) for message in messages]
        beside = _Beside(cursors, poison, moves)
        admissions = await self._database.write(self._admit_all, cleaned, beside)
        for message, admission in zip(cleaned, admissions, strict=True):
            self._report(message, admission)
        for update_ in poison:
            log.warning("update_quarantined", source=update_.source, reason=update_.reason)
        return admissions

    async def position(self, source: str) -> int | None:
        """Return the committed position of a source's cursor."""
        return await self._database.read(inbox.position, source)

    async def positions(self, prefix: str) -> dict[str, int]:
        """Return the committed positions of all sources whose names begin so."""
        return await self._database.read(inbox.positions, prefix)

    async def is_conversation(self, address: Address) -> bool:
        """Whether there is a conversation in this direct chat or thread."""
        return await self._database.read(inbox.find, address_key(address)) is not None

    def _admit_all(
        self, conn: Connection, messages: Sequence[InboundMessage], beside: "_Beside"
    ) -> list[Admission]:
        inbox.set_aside(conn, beside.poison)
        for move in beside.moves:
            inbox.move(conn, move)
        for cursor in beside.cursors:
            inbox.advance(conn, cursor)
        return [self._admit(conn, message) for message in messages]

    def _admit(self, conn: Connection, message: InboundMessage) -> Admission:
        if inbox.is_known(conn, inbox.source_of(message), message.dedupe_key):
            return Admission("duplicate")
        if not self._rules.access.allows(message):
            return self._deny(conn, message)
        row = self._conversation(conn, message)
        return self._handler_of(conn, message, row)(conn, message, row)

    def _conversation(self, conn: Connection, message: InboundMessage) -> Row[Any]:
        groups = self._rules.groups
        key, user = session_key(message, groups), sole_sender(message, groups)
        # A command is no title.
        titled = replace(message, text="") if commands.parse(message.text) else message
        return inbox.find_or_create(conn, key, titled, user)

    def _handler_of(
        self, conn: Connection, message: InboundMessage, row: Row[Any]
    ) -> Callable[[Connection, InboundMessage, Row[Any]], Admission]:
        if message.kind == "edit":
            return self._revise
        if not message.text.strip():
            return self._refuse_unreadable
        if commands.parse(message.text) in commands.BYPASSING:
            return self._answer_command
        if inbox.count_pending(conn, row.id) >= self._rules.queue.max_pending:
            return self._refuse_full
        return self._enqueue

    def _enqueue(self, conn: Connection, message: InboundMessage, row: Row[Any]) -> Admission:
        kind: InboxKind = "command" if commands.parse(message.text) else "message"
        message = _noted(message)
        seq = inbox.append(conn, row.id, message, kind=kind, state="queued")
        if kind == "message" and not row.title:
            inbox.set_title(conn, row.id, message.text)
        if self._rules.queue.mode == "interrupt":
            turns.cancel_running(conn, row.id)
        leases.make_ready(conn, row.id)
        return Admission("queued", row.id, seq)

    def _answer_command(
        self, conn: Connection, message: InboundMessage, row: Row[Any]
    ) -> Admission:
        seq = inbox.append(conn, row.id, message, kind="command", state="done")
        name = commands.parse(message.text)
        if name == "stop":
            text = self._stop(conn, row.id, seq)
        elif name == "status":
            text = self._status(conn, row.id)
        elif name == "usage":
            text = self._usage(conn, message, row.id)
        elif name == "insights":
            text = self._insights(conn, row.id)
        else:
            text = commands.help_text()
        self._reply(conn, message, row.id, seq, text)
        return Admission("command", row.id, seq)

    def _status(self, conn: Connection, conversation_id: int) -> str:
        model = self._rules.model()
        standing = usage.standing(conn, conversation_id, model.fixed_tokens)
        return commands.status_text(history.status(conn, conversation_id), standing, model)

    def _usage(self, conn: Connection, message: InboundMessage, conversation_id: int) -> str:
        model, money = self._rules.model(), self._rules.money
        standing = usage.standing(conn, conversation_id, model.fixed_tokens)
        report = usage.report(conn, conversation_id, standing.session_id)
        since = today(ZoneInfo(money.timezone)).start.timestamp()
        spent = Today(
            costs.by_sender_since(conn, _budgeted_as(message), since),
            0.0 if money.daily_usd is None else ledger.spent_usd(conn, since),
        )
        return usage_text(standing, report, spent, model, money)

    def _insights(self, conn: Connection, conversation_id: int) -> str:
        since = datetime.now(UTC) - timedelta(days=INSIGHTS_DAYS)
        return insights_text(insights.insights(conn, conversation_id, since.timestamp()))

    def _stop(self, conn: Connection, conversation_id: int, seq: int) -> str:
        was_running = history.status(conn, conversation_id).turn_running
        dropped = inbox.cancel_queued(conn, conversation_id)
        conn.execute(
            update(conversation)
            .where(conversation.c.id == conversation_id)
            .values(cancel_upto_seq=seq)
        )
        return commands.stop_text(was_running=was_running, dropped=dropped)

    def _revise(self, conn: Connection, message: InboundMessage, row: Row[Any]) -> Admission:
        seq = inbox.append(conn, row.id, message, kind="edit", state="done")
        if message.text.strip():
            inbox.revise(conn, row.id, _noted(message))
        return Admission("updated", row.id, seq)

    def _refuse_unreadable(
        self, conn: Connection, message: InboundMessage, row: Row[Any]
    ) -> Admission:
        what = message.unreadable or "a message without text"
        return self._refuse(conn, message, row, f"I can only read text so far, and this is {what}.")

    def _refuse_full(self, conn: Connection, message: InboundMessage, row: Row[Any]) -> Admission:
        limit = self._rules.queue.max_pending
        text = (
            f"I did not take this message: {limit} are waiting already."
            " Please send it again when I have answered, or send /stop to drop what waits."
        )
        return self._refuse(conn, message, row, text)

    def _refuse(
        self, conn: Connection, message: InboundMessage, row: Row[Any], text: str
    ) -> Admission:
        seq = inbox.append(conn, row.id, message, kind="message", state="refused")
        self._reply(conn, message, row.id, seq, text)
        return Admission("refused", row.id, seq)

    def _deny(self, conn: Connection, message: InboundMessage) -> Admission:
        source = inbox.source_of(message)
        inbox.set_aside(conn, [Poison(source, message.dedupe_key, message.raw, "stranger")])
        if not self._rules.access.answers_strangers(message):
            return Admission("denied")
        row = self._conversation(conn, replace(message, text=""))
        today = datetime.now(UTC).date().isoformat()
        key = f"stranger:{source}:{message.sender}:{today}"
        parts = parts_of(self._renderer(message), key, stranger_notice(message))
        outbox.append(conn, row.id, parts, inbox_seq=row.inbox_head)
        return Admission("denied", row.id)

    def _reply(
        self, conn: Connection, message: InboundMessage, conversation_id: int, seq: int, text: str
    ) -> None:
        key = f"reply:{conversation_id}:{seq}"
        parts = parts_of(self._renderer(message), key, text, reply_to=message.message_ref)
        outbox.append(conn, conversation_id, parts, inbox_seq=seq)

    def _renderer(self, message: InboundMessage) -> Renderer:
        return self._renderers[message.address.platform, message.address.account]

    def _report(self, message: InboundMessage, admission: Admission) -> None:
        """Log an admission and hint at the work it brings."""
        log.info(
            "message_admitted",
            outcome=admission.outcome,
            platform=message.address.platform,
            account=message.address.account,
            conversation=admission.conversation,
            seq=admission.seq,
            chars=len(message.text),
        )
        if admission.conversation is None:
            return
        if admission.outcome == "queued":
            self._wakeups.work(admission.conversation)
            if self._rules.queue.mode == "interrupt":
                self._wakeups.stop(admission.conversation, (admission.seq or 1) - 1)
        else:
            self._wakeups.outbox(admission.conversation)
        if admission.outcome == "command" and commands.parse(message.text) == "stop":
            self._wakeups.stop(admission.conversation, admission.seq or 0)


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is committed together with messages."""

    cursors: Sequence[Cursor]
    poison: Sequence[Poison]
    moves: Sequence[Move]


def _budgeted_as(message: InboundMessage) -> str:
    """Return the sender as the ledger has it."""
    return f"{message.address.platform}:{message.sender}"


def _noted(message: InboundMessage) -> InboundMessage:
    """Return a message whose text tells what came with it and cannot be read."""
    if not message.unreadable:
        return message
    note = f"[It came with {message.unreadable}, which cannot be read here.]"
    return replace(message, text=f"{message.text}\n\n{note}")


def _cleaned(message: InboundMessage) -> InboundMessage:
    return replace(
        message,
        text=clean_text(message.text),
        sender_name=storable(message.sender_name),
        raw=storable(message.raw),
    )
