"""The intake: one durable transaction for everything one call brings.

The sources' cursors are committed with it. Messages that bypass the queue are answered in the same
transaction, so that an answer exists exactly if its question does. The decision about each message:
gateway/pipeline/admission.py.
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
"""Seconds after each failure of a batch; then each of its pieces is admitted alone."""
NAME_CHARS = 60
"""Longest name of a sender; the rest is cut off."""
ALONE = (Move, Poison, InboundMessage, Cursor)
"""In this order: cursors confirm what came before them."""


class GatewayIntake:
    """The gateway's side of `adapters.base.Intake`.

    Attributes:
        tools: Called if the offered tools of MCP servers, or their owners, may have changed.
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
        """Use other rules for what comes in from now on."""
        if rules.access.settings.rate_per_min != self._rate_per_min:
            self._rate_per_min = rules.access.settings.rate_per_min
            self._pairing.limits.take(self._rate_per_min)
        self.rules = rules

    def facts(self, chosen: str | None) -> StatusFacts:
        """Return the figures of the chosen model, None for the default, as they are now."""
        return self.rules.model(chosen)

    def money(self) -> MoneyRules:
        """Return the rules of money as they are now."""
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
                raise  # the database or another replica is to blame, not what came
            except Exception:
                log.exception("batch_not_admitted", messages=len(_those(InboundMessage, pieces)))
                await asyncio.sleep(pause_s)
        alone = sorted(pieces, key=lambda each: ALONE.index(type(each)))
        return [done for each in alone for done in await self._commit_alone(each, fences)]

    async def _commit_alone(
        self, piece: Update | Cursor, fences: Sequence[ReceivingFence]
    ) -> list[Admission]:
        """Commit one piece of a batch, or put it into quarantine with the reason."""
        try:
            return await self._commit([piece], fences)
        except StorageError:
            raise
        except Exception as exc:
            log.exception("update_not_admitted")
            # Of a database's refusal only its own words, without the statement.
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
        # Hints and log lines come after the commit: listeners read the rows.
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
        """Return the seconds until a member may send another message, 0 for now."""
        return self._pairing.limits.wait_s(platform, sender)

    async def position(self, source: str) -> int | None:
        """Return the committed position of a source's cursor."""
        return await self._database.read(inbox.position, source)

    async def positions(self, prefix: str) -> dict[str, int]:
        """Return the committed positions of all sources with a name prefix."""
        return await self._database.read(inbox.positions, prefix)

    async def is_conversation(self, address: Address) -> bool:
        """Whether there is a conversation in this direct chat or thread."""
        return await self._database.read(conversations.find, address_key(address)) is not None

    async def tell_approved(self) -> None:
        """Inform people whom `parley pair` let in."""
        for conversation_id in await self._database.write(self._pairing.tell_approved):
            self._wakeups.outbox(conversation_id)

    async def show_tools(self, held: Sequence[HeldTool]) -> None:
        """Show owners the tools' texts that they have not seen yet."""
        told = await self._database.write(mcp.announce, self._owners, held)
        for conversation_id in told:
            self._wakeups.outbox(conversation_id)

    async def answer_as_owner(self, owner: InboundMessage, number: int, said: str) -> ReplyOutcome:
        """Take an answer that an owner gives in the console; the turn that waits goes on.

        Args:
            owner: Says who answers (`approvals.by_owner`).
            said: once, conversation or deny; to a question of the agent the answer.
        """
        take = approvals.by_owner
        renderers = self._owners.renderers
        outcome, told = await self._database.write(take, renderers, owner, number, said)
        self._follow(Admitted(Admission("command"), told, settled=outcome.settled))
        return outcome

    def _follow(self, done: Admitted) -> None:
        """Report and hint after a decision is committed."""
        if done.happened is not None:
            pairing.report(done.happened)
            if done.happened.kind in {"tool", "bound", "promoted"}:
                self.tools()
        if done.stops:
            conversation_id = done.admission.conversation or 0
            self._wakeups.stop(conversation_id, done.admission.seq or 0)
            # A turn that waits for a person does not run: it is claimed once more, to be ended.
            self._wakeups.ready(conversation_id)
            # A message that was dropped may have waited for its files.
            self._wakeups.files()
        for settled in done.settled:
            approvals.report(settled)
            self._wakeups.ready(settled.question.conversation)
        for question, mark in done.marks:
            self._wakeups.reaction(question, mark)
        for conversation_id in done.wake:
            self._wakeups.outbox(conversation_id)

    def _fences(self, cursors: Sequence[Cursor]) -> list[ReceivingFence]:
        """Return the fences for these cursors; none if one process is alone, or without cursors."""
        if self._accounts.is_alone:
            return []
        # "platform:account", and behind that what distinguishes several sources of it.
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
        # Before the messages (see `Intake.accept`): those may come from the chat's new id.
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
        """Hint at the work that an admission brings."""
        if admission.conversation is None:
            return
        if admission.outcome == "queued":
            question = MessageRef(message.address, message.sender, message.message_ref)
            self._wakeups.reaction(question, "received")
            self._wakeups.work(admission.conversation)
            if message.attachments:
                self._wakeups.files()
            if self.rules.queue.mode == "interrupt":
                # Earlier messages are stopped, and this one is answered.
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
    """Trace and log an admission; at debug level if the message brings nothing new."""
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
    """Return the message with texts that the database accepts and that the model may read."""
    text, raw = clean_text(message.text), storable(message.raw)
    name = _plain_name(message.sender_name)
    if (text, name, raw) == (message.text, message.sender_name, message.raw):
        return message
    return replace(message, text=text, sender_name=name, raw=raw)


def _plain_name(name: str) -> str:
    """Return a name on one line, without invisible characters."""
    # Marks that turn the direction of writing would show an owner another name.
    seen = "".join(char for char in name if char.isprintable() or char.isspace())
    plain = " ".join(seen.split())
    return plain if len(plain) <= NAME_CHARS else plain[: NAME_CHARS - 1] + "…"
