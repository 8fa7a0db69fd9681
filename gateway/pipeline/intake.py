"""The intake: commits all updates of one call in one durable transaction.

The cursors of their sources are committed with them. Messages that bypass the queue are answered in
the same transaction, so an answer exists exactly if its question does.
gateway/pipeline/admission.py decides about each message.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from adapters.base import Renderer, Update
from adapters.messages import Address, Admission, Cursor, InboundMessage, MessageRef, Move, Poison
from agent import spans
from agent.messages import clean_text, storable
from agent.network import in_words
from agent.tools.registry import HeldTool
from gateway.access import pairing
from gateway.access.pairing import Pairing
from gateway.access.policy import Owners
from gateway.access.rate_limits import AdmissionLimits
from gateway.commands import approvals, mcp
from gateway.commands.approvals import ReplyOutcome
from gateway.commands.registry import MoneyRules, StatusFacts
from gateway.errors import StorageError
from gateway.pipeline import notices
from gateway.pipeline.admission import Admissions, Admitted, IntakeRules
from gateway.replicas.replica import AccountLeases
from gateway.session_keys import address_key, session_key
from gateway.signals import Hint, Wakeups
from gateway.storage.conversation import conversations
from gateway.storage.database import Database
from gateway.storage.queue import inbox, leases
from gateway.storage.queue.leases import ReceivingFence
from gateway.supervision.silence import Traffic

log = structlog.get_logger()
T = TypeVar("T")

PAUSES_S = (0.2, 1.0, 0.0)
"""Seconds to wait after each failure of a batch; then its updates are admitted one by one."""
NAME_CHARS = 60
"""Longest stored name of a sender; the rest is cut."""
ALONE = (Move, Poison, InboundMessage, Cursor)
"""Order of updates admitted one by one: cursors confirm the updates before them."""


class GatewayIntake:
    """The gateway's implementation of `adapters.base.Intake`.

    Attributes:
        tools: Called when offered MCP tools, or the owners, may have changed.
    """

    def __init__(
        self,
        database: Database,
        rules: IntakeRules,
        renderers: Mapping[tuple[str, str], Renderer],
        wakeups: Wakeups,
        traffic: Traffic,
        accounts: AccountLeases,
    ) -> None:
        self._accounts = accounts
        self._database = database
        self._wakeups = wakeups
        self._traffic = traffic
        self.tools: Hint[[]] = Hint()
        self._rate_per_min = rules.access.settings.rate_per_min
        self._owners = Owners(rules.access, renderers)
        self._pairing = Pairing(self._owners, AdmissionLimits(self._rate_per_min))
        self.rules = rules

    def take(self, rules: IntakeRules) -> None:
        """Apply new rules to later updates."""
        if rules.access.settings.rate_per_min != self._rate_per_min:
            self._rate_per_min = rules.access.settings.rate_per_min
            self._pairing.limits.take(self._rate_per_min)
        self.rules = rules

    def facts(self, chosen: str | None) -> StatusFacts:
        """Return the current figures of a chosen model; None for the default."""
        return self.rules.model(chosen)

    def money(self) -> MoneyRules:
        """Return the current prices and limits."""
        return self.rules.money

    async def accept(
        self, updates: Sequence[Update], *, cursors: Sequence[Cursor] = ()
    ) -> list[Admission]:
        """Commit updates in one transaction; see `adapters.base.Intake`."""
        pieces, fences = [*updates, *cursors], self._fences(cursors)
        for pause_s in PAUSES_S:
            try:
                return await self._commit(pieces, fences)
            except StorageError:
                raise  # the database or another replica is to blame, not the update
            except Exception:
                log.exception("batch_not_admitted", messages=len(_those(InboundMessage, pieces)))
                await asyncio.sleep(pause_s)
        alone = sorted(pieces, key=lambda each: ALONE.index(type(each)))
        return [done for each in alone for done in await self._commit_alone(each, fences)]

    async def _commit_alone(
        self, piece: Update | Cursor, fences: Sequence[ReceivingFence]
    ) -> list[Admission]:
        """Commit one update of a batch, or quarantine it with the reason."""
        try:
            return await self._commit([piece], fences)
        except StorageError:
            raise
        except Exception as exc:
            log.exception("update_not_admitted")
            # Keep a database's own error text, without the statement.
            why = in_words(getattr(exc, "orig", None) or exc, quoted=True)
            await self._commit(_as_poison(piece, why), fences)
            is_said = isinstance(piece, InboundMessage)
            return [Admission("ignored", told=notices.SET_ASIDE)] if is_said else []

    async def _commit(
        self, pieces: Sequence[Update | Cursor], fences: Sequence[ReceivingFence]
    ) -> list[Admission]:
        began = time.time()
        cleaned = [_cleaned(message) for message in _those(InboundMessage, pieces)]
        admitted = await self._database.write(self._admit_all, cleaned, pieces, fences)
        # Send hints and log after the commit, since listeners read the rows.
        for message, done in zip(cleaned, admitted, strict=True):
            self._traffic.received((message.address.platform, message.address.account))
            _note(message, done.admission, began)
            self._wake(message, done.admission)
            self._follow(done)
        for move in _those(Move, pieces):
            log.warning(
                "chat_moved", platform=move.platform, chat=move.chat, new_chat=move.new_chat
            )
        for bad in _those(Poison, pieces):
            log.warning(
                "update_quarantined", source=bad.source, update=bad.dedupe_key, reason=bad.reason
            )
        return [done.admission for done in admitted]

    def wait_s(self, platform: str, sender: str) -> float:
        """Return the seconds until a member may send another message; 0 if now."""
        return self._pairing.limits.wait_s(platform, sender)

    async def position(self, source: str) -> int | None:
        """Return the committed position of a source's cursor."""
        return await self._database.read(inbox.position, source)

    async def positions(self, prefix: str) -> dict[str, int]:
        """Return the committed cursor positions of all sources with a name prefix."""
        return await self._database.read(inbox.positions, prefix)

    async def is_conversation(self, address: Address) -> bool:
        """Whether this direct chat or thread has a conversation."""
        return await self._database.read(conversations.find, address_key(address)) is not None

    async def tell_approved(self) -> None:
        """Notify people whom `parley pair` approved."""
        for conversation_id in await self._database.write(self._pairing.tell_approved):
            self._wakeups.outbox(conversation_id)

    async def show_tools(self, held: Sequence[HeldTool]) -> None:
        """Show owners the tool descriptions that they have not seen yet."""
        told = await self._database.write(mcp.announce, self._owners, held)
        for conversation_id in told:
            self._wakeups.outbox(conversation_id)

    async def answer_as_owner(self, owner: InboundMessage, number: int, said: str) -> ReplyOutcome:
        """Record an owner's answer from the console and resume the waiting turn.

        Args:
            owner: The message that names the owner (see `approvals.by_owner`).
            said: once, conversation or deny; for a question of the agent, the answer.
        """
        take = approvals.by_owner
        renderers = self._owners.renderers
        outcome, told = await self._database.write(take, renderers, owner, number, said)
        self._follow(Admitted(Admission("command"), told, settled=outcome.settled))
        return outcome

    def _follow(self, done: Admitted) -> None:
        """Log a committed decision and send its hints."""
        if done.happened is not None:
            pairing.report(done.happened)
            if done.happened.kind in {"tool", "bound", "promoted"}:
                self.tools()
        if done.stops:
            conversation_id = done.admission.conversation or 0
            self._wakeups.stop(conversation_id, done.admission.seq or 0)
            # A turn that waits for a person is not running: claim it once more to end it.
            self._wakeups.ready(conversation_id)
            # A dropped message may have waited for its files.
            self._wakeups.files()
        for settled in done.settled:
            approvals.report(settled)
            self._wakeups.ready(settled.question.conversation)
        for question, mark in done.marks:
            self._wakeups.reaction(question, mark)
        for conversation_id in done.wake:
            self._wakeups.outbox(conversation_id)

    def _fences(self, cursors: Sequence[Cursor]) -> list[ReceivingFence]:
        """Return the fences for these cursors; empty for a single process or without cursors."""
        if self._accounts.is_alone:
            return []
        # "platform:account", followed by a suffix if the account has several sources.
        sources = {tuple(cursor.source.split(":", 2)[:2]) for cursor in cursors}
        accounts = sorted(each for each in sources if len(each) == 2)
        return [fence for each in accounts if (fence := self._accounts.fence(*each)) is not None]

    def _admit_all(
        self,
        conn: Connection,
        messages: Sequence[InboundMessage],
        pieces: Sequence[Update | Cursor],
        fences: Sequence[ReceivingFence],
    ) -> list[Admitted]:
        for held in fences:
            leases.fence_receiving(conn, held)
        inbox.set_aside(conn, _those(Poison, pieces))
        # Before the messages, which may come from the chat's new id (see `Intake.accept`).
        for move in _those(Move, pieces):
            inbox.move(conn, move)
        for cursor in _those(Cursor, pieces):
            inbox.advance(conn, cursor)
        admissions = Admissions(self.rules, self._pairing)
        if len(messages) > 1:
            # In the order in which all transactions lock conversations.
            keys = {session_key(each, self.rules.groups) for each in messages}
            conversations.hold_of_keys(conn, keys)
        return [admissions.admit(conn, each) for each in messages]

    def _wake(self, message: InboundMessage, admission: Admission) -> None:
        """Send the hints for an admission."""
        if admission.conversation is None:
            return
        if admission.outcome == "queued":
            question = MessageRef(message.address, message.sender, message.message_ref)
            self._wakeups.reaction(question, "received")
            self._wakeups.work(admission.conversation)
            if message.attachments:
                self._wakeups.files()
            if self.rules.queue.mode == "interrupt":
                # Stop earlier messages and answer this one.
                self._wakeups.stop(admission.conversation, (admission.seq or 1) - 1)
        else:
            self._wakeups.outbox(admission.conversation)


def _those(kind: type[T], pieces: Sequence[Update | Cursor]) -> list[T]:
    return [each for each in pieces if isinstance(each, kind)]


def _as_poison(piece: Update | Cursor, reason: str) -> list[Poison]:
    match piece:
        case InboundMessage():
            return [Poison(inbox.source_of(piece), piece.dedupe_key, piece.raw, reason)]
        case Cursor():
            return [Poison(piece.source, f"cursor:{piece.position}", "", reason)]
        case Move():
            return [Poison(f"{piece.platform}:{piece.account}", f"move:{piece.chat}", "", reason)]
    return []


def _note(message: InboundMessage, admission: Admission, began: float) -> None:
    """Trace and log an admission; at debug level if the message is not new."""
    outcome, conversation, seq = admission.outcome, admission.conversation, admission.seq
    trace = "" if conversation is None or seq is None else spans.trace_of(conversation, seq)
    place = {"platform": message.address.platform, "account": message.address.account}
    spans.record("admission", trace, began, outcome=outcome, **place)
    log.log(
        logging.DEBUG if outcome in {"ignored", "duplicate"} else logging.INFO,
        "message_admitted",
        outcome=outcome,
        platform=message.address.platform,
        account=message.address.account,
        conversation=conversation,
        seq=seq,
        chars=len(message.text),
        trace=trace or None,
    )


def _cleaned(message: InboundMessage) -> InboundMessage:
    """Clean the texts of a message for the database and the model."""
    text, raw = clean_text(message.text), storable(message.raw)
    name = _plain_name(message.sender_name)
    if (text, name, raw) == (message.text, message.sender_name, message.raw):
        return message
    return replace(message, text=text, sender_name=name, raw=raw)


def _plain_name(name: str) -> str:
    """Return a name on one line, without invisible characters."""
    # Bidirectional control characters could disguise the name shown to an owner.
    seen = "".join(char for char in name if char.isprintable() or char.isspace())
    plain = " ".join(seen.split())
    return plain if len(plain) <= NAME_CHARS else plain[: NAME_CHARS - 1] + "…"
