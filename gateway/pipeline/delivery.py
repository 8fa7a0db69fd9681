"""Delivery: sends outbox rows to their platforms, in order, until the platform confirms them.

Each conversation with unsent rows has its own task, so an unreachable chat delays no other. A row
that cannot be delivered is retried for `RETRY_FOR_S`, then becomes a dead letter (`Burials`); the
same transaction writes one notice for its chat and one for the owners. An undeliverable notice is
dropped, so a chat that blocks the bot costs one more request. Each replica sends its own rows
(gateway/storage/queue/sending.py).
"""

import asyncio
import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import structlog
from sqlalchemy import Connection

from adapters.base import FENCE, Adapter
from adapters.errors import AdapterError, ChatMoved, SendDelayed, SendRejected, SendUnknown
from adapters.messages import Move, Outgoing, Receipt, Withdrawal
from agent import spans
from gateway.access.policy import Owners
from gateway.errors import StorageError
from gateway.pipeline import notices
from gateway.replicas.replica import Replica
from gateway.storage.conversation import attachments, conversations
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.database import Database
from gateway.storage.people.web_users import STORED_LINK, ChatLinks
from gateway.storage.queue import inbox, outbox, sending
from gateway.storage.queue.outbox import DEAD_NOTICE
from gateway.storage.queue.sending import Due
from gateway.storage.schema import now
from gateway.supervision.silence import Traffic

log = structlog.get_logger()

RETRY_FOR_S = 86_400.0
"""Seconds after which an undeliverable answer becomes a dead letter."""
LEAST_WAITED = 0.5
"""Least share of `RETRY_FOR_S` to spend on retries, even if the wall clock jumps ahead."""
NOTICE_PATIENCE = 7
"""Notices about dead letters are retried this many times longer than other messages."""
SWEEP_S = 30.0
"""Longest delay of a message whose hint was lost, in seconds."""
SHARED_SWEEP_S = 2.0
"""The same with several replicas, which can leave messages behind."""
SWEEP_REST = 20
"""Each pause lasts at least this many times as long as the sweep before it."""
LONGEST_DELAY_S = 120.0
LONGEST_RETRY_AFTER_S = 3600.0
"""Longest wait of any row; a row due later shows that the clock was set back."""
STORAGE_RETRY_S = 1.0
LONGEST_PAUSE_S = 5.0
"""Longest pause before buttons are tried again; beyond it they stay."""
WITHDRAWAL_S = 10.0
MOST_TRIES_AT_BUTTONS = 3
"""Attempts to remove a question's buttons; left in place, a press reports that it is closed."""
MOST_FAILURES = 5
"""Attempts at a row whose sending raises an unexpected exception."""

Cause = Literal["expired", "failed", "refused"]
"""expired: not delivered within `RETRY_FOR_S`. failed: the adapter failed at each try.
refused: the platform will never take it (blocked, removed, deleted, malformed)."""
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Burials:
    """Makes dead letters and notifies chats and owners, in the caller's transaction.

    Methods return the number of letters and the conversations with a notice to send.
    """

    owners: Owners

    def bury_message(
        self, conn: Connection, due: Due, reason: str, cause: Cause
    ) -> tuple[int, frozenset[int]]:
        """Bury a row; with an expired one, also later rows that waited as long.

        A row that was dropped, erased or taken by another replica meanwhile causes no notice.
        """
        if due.is_notice:
            sending.drop(conn, due, reason)
            return 0, frozenset()
        is_first = not outbox.has_dead(conn, due.message.conversation)
        # `/stop` or `parley forget` may have removed it while it was in transit.
        if not sending.mark_dead(conn, due, reason):
            return 0, frozenset()
        is_expired = cause == "expired"
        more = sending.bury_older(conn, due, RETRY_FOR_S, reason) if is_expired else 0
        told = self._tell(conn, due, reason, cause, is_first=is_first)
        return 1 + more, told

    def bury_behind(self, conn: Connection, due: Due, reason: str) -> tuple[int, frozenset[int]]:
        """Bury rows that waited too long behind a notice; keep the notice."""
        letters = sending.bury_older(conn, due, RETRY_FOR_S, reason)
        told = self._tell(conn, due, reason, "expired", is_first=False) if letters else frozenset()
        return letters, told

    def _tell(
        self, conn: Connection, due: Due, reason: str, cause: Cause, *, is_first: bool
    ) -> frozenset[int]:
        """Notify the chat and the owners; return the conversations with a new notice."""
        place = conversations.get(conn, due.message.conversation)
        told = set()
        # Notify the chat of the gap, unless such a notice is still waiting.
        if not outbox.is_waiting(conn, place.id, f"{DEAD_NOTICE}{place.id}:"):
            # The head changes the key for a dead letter that is retried and fails again.
            key = f"{DEAD_NOTICE}{place.id}:{due.message.seq}:{place.outbox_head}"
            text = notices.EXPIRED if cause == "expired" else notices.UNSHOWN
            told = {place.id} if self.owners.say(conn, place, key, text) else set()
        # A user who blocked the bot refuses every message; notify owners once.
        if cause != "refused" or is_first:
            told |= self._tell_owners(conn, place, due, reason, cause)
        return frozenset(told)

    def _tell_owners(
        self, conn: Connection, place: Conversation, due: Due, reason: str, cause: Cause
    ) -> set[int]:
        """Notify owners in their chats, once a day for each account and kind of trouble."""
        account = f"{place.platform}:{place.account}"
        key = f"{DEAD_NOTICE}{account}:{'refused' if cause == 'refused' else 'undelivered'}:"
        day = int(now(conn) // DAY_S)
        letter = f"s{place.id}.{due.message.seq}"
        text = notices.dead_letter_text(account, letter, reason, cause)
        told = set()
        for chat in self.owners.chats(conn, self.owners.everybody(conn)):
            # `_tell` already notified this chat, or an earlier notice is still waiting.
            is_told = chat.id == place.id or outbox.is_waiting(conn, chat.id, key)
            if not is_told and self.owners.say(conn, chat, f"{key}{day}:{chat.id}", text):
                told.add(chat.id)
        return told


@dataclass(slots=True)
class _Line:
    """A conversation with unsent rows.

    Attributes:
        again: Whether new rows came since the last read.
        due_at: Due time of its first row by the event loop's clock, if this process delayed it.
        flawed: The seq of the row whose sending raised an unexpected exception.
        flaws: How often it raised.
        by: The replica that sends for it; None on SQLite.
    """

    again: bool = False
    due_at: float = math.inf
    flawed: int = 0
    flaws: int = 0
    by: int | None = None


class Delivery:
    """Sends outbox rows through this process's adapters; `links` inserts the secrets of links."""

    def __init__(
        self,
        database: Database,
        replica: Replica,
        adapters: Mapping[tuple[str, str], Adapter],
        traffic: Traffic,
        burials: Burials,
        links: ChatLinks,
    ) -> None:
        self._database = database
        self._replica = replica
        self._adapters = adapters
        self._traffic = traffic
        self._burials = burials
        self._links = links
        self._waiting: asyncio.Queue[int] = asyncio.Queue()
        self._lines: dict[int, _Line] = {}
        self._idle = asyncio.Event()
        self._swept = False
        self._looks = asyncio.Event()
        replica.on_news(self._looks.set)

    def notify(self, conversation_id: int) -> None:
        """Hint that a conversation has a row to send."""
        self._idle.clear()
        self._waiting.put_nowait(conversation_id)

    async def run(self) -> None:
        """Send until cancelled, starting with rows of an earlier process."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep(), name="unsent")
            while True:
                conversation_id = await self._waiting.get()
                # One task per conversation: its rows are sent in order, never concurrently.
                if conversation_id in self._lines:
                    self._lines[conversation_id].again = True
                    continue
                self._lines[conversation_id] = _Line()
                tasks.create_task(self._drain(conversation_id), name=f"send {conversation_id}")

    async def _sweep(self) -> None:
        """Find rows left by an earlier process, another replica or a lost hint."""
        while True:
            began = time.monotonic()
            try:
                find, accounts = sending.unsent_conversations, list(self._adapters)
                by = self._replica.shared_id
                for conversation_id in await self._database.read(find, accounts, by):
                    self.notify(conversation_id)
                self._swept = True
                self._note_idle()
            except StorageError as exc:
                log.warning("unsent_not_found", error=str(exc))
            pause_s = SWEEP_S
            if self._replica.is_shared:
                pause_s = max(SHARED_SWEEP_S, SWEEP_REST * (time.monotonic() - began))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._looks.wait()
            self._looks.clear()

    async def wait_idle(self) -> None:
        """Wait until no row can be sent now."""
        await self._idle.wait()

    def _note_idle(self) -> None:
        if self._swept and not self._lines and self._waiting.empty():
            self._idle.set()

    async def _drain(self, conversation_id: int) -> None:
        """Send a conversation's rows, including those added meanwhile."""
        line = self._lines[conversation_id]
        if self._replica.is_shared:
            FENCE.set(lambda: self._replica.holds(line.by))
        while True:
            line.again = False
            try:
                await self._send_all(conversation_id)
            except StorageError as exc:
                log.warning("delivery_failed", conversation=conversation_id, error=str(exc))
                await asyncio.sleep(STORAGE_RETRY_S)
                continue
            # No await from here on: a later hint starts a new line.
            if not line.again:
                break
        del self._lines[conversation_id]
        self._note_idle()

    async def _send_all(self, conversation_id: int) -> None:
        due = await self._next_due(conversation_id)
        # Rows of an account without an adapter wait until it is configured again.
        while due is not None and due.account in self._adapters:
            row = {"conversation": conversation_id, "seq": due.message.seq}
            with structlog.contextvars.bound_contextvars(**row, trace=_trace_of(due)):
                receipt = await self._deliver(due)
                more = receipt is None or await self._record(due, receipt)
                following = await self._next_due(conversation_id) if more else None
                if receipt is not None and (
                    following is None or following.asked_seq != due.asked_seq
                ):
                    _end_trace(due, "sent")
                due = following

    async def _next_due(self, conversation_id: int) -> Due | None:
        by = self._lines[conversation_id].by = self._replica.shared_id
        return await self._database.write(sending.next_due, conversation_id, by)

    async def _deliver(self, due: Due) -> Receipt | None:
        """Send a row when it is due; return None if it was not shown."""
        if 0 < due.in_s <= LONGEST_RETRY_AFTER_S:
            # Wait no longer than this process decided, even if the wall clock is set meanwhile.
            due_at = self._lines[due.message.conversation].due_at
            wait_s = min(due.in_s, due_at - asyncio.get_running_loop().time())
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, LONGEST_DELAY_S))
                return None
        if due.withdraws is not None:
            return await self._withdraw(due, due.withdraws)
        platform, account = due.account
        trace, attempt = _trace_of(due), due.failures + 1
        with spans.span(
            "delivery", trace=trace, platform=platform, account=account, attempt=attempt
        ) as here:
            receipt = await self._send(due)
            here.note(outcome="not_sent" if receipt is None else "sent", kind=due.kind)
        return receipt

    async def _send(self, due: Due) -> Receipt | None:
        """Send a row; return None unless it is known to be shown."""
        message = due.message
        complete = await self._completed(due)
        adapter = self._adapters[due.account]
        # If sending twice shows twice, mark the row first: after a crash the platform is asked
        # before anything is sent again (decision 003).
        me, write = due.sender or self._replica.id, self._database.write
        if not (adapter.idempotent_sends or await write(sending.mark_sending, message, me)):
            return None
        if (holds := FENCE.get()) is not None and not holds():
            await self._try_later(due, "this process stood still beyond its lease")
            return None
        try:
            return await adapter.send(complete)
        except ChatMoved as exc:
            await self._move(due, exc.new_chat)
        except SendDelayed as exc:
            self._traffic.failed(due.account, message.conversation, str(exc), exc.retry_after_s)
            await self._try_later(due, str(exc), exc.retry_after_s)
        except SendRejected as exc:
            await self._bury(due, str(exc), "refused")
        except SendUnknown as exc:
            self._traffic.failed(due.account, message.conversation, str(exc))
            await self._try_later(due, str(exc), is_unknown=True)
        except Exception as exc:
            log.exception("send_failed")
            await self._fail(due, repr(exc))
        return None

    async def _completed(self, due: Due) -> Outgoing:
        """Add the row's file and the secrets of its links."""
        message, file = due.message, None
        if due.attachment is not None:
            file = await self._database.read(attachments.outgoing, due.attachment)
        if file is None and STORED_LINK not in message.payload:
            return message
        shown = self._links.shown(message.payload, message.conversation)
        return replace(message, payload=shown, file=file)

    async def _withdraw(self, due: Due, withdrawal: Withdrawal) -> Receipt | None:
        """Remove the buttons of a question, best effort."""
        if not withdrawal.message_ref:
            await self._leave_buttons(due, "the question is not shown")
            return None
        try:
            async with asyncio.timeout(WITHDRAWAL_S):
                await self._adapters[due.account].withdraw(withdrawal)
        except SendDelayed as exc:
            pause_s = backoff_s(due.failures) if exc.retry_after_s is None else exc.retry_after_s
            if due.failures + 1 < MOST_TRIES_AT_BUTTONS and pause_s <= LONGEST_PAUSE_S:
                await self._put_off(due, pause_s, str(exc))
            else:
                await self._leave_buttons(due, str(exc))
        except AdapterError as exc:
            await self._leave_buttons(due, str(exc))
        except TimeoutError:
            await self._leave_buttons(due, "the platform takes too long")
        except Exception as exc:
            log.exception("send_failed")
            await self._leave_buttons(due, repr(exc))
        else:
            return Receipt(withdrawal.message_ref)
        return None

    async def _leave_buttons(self, due: Due, reason: str) -> None:
        await self._database.write(sending.drop, due, reason)
        log.info("buttons_left", reason=reason)

    async def _move(self, due: Due, new_chat: str) -> None:
        """Move the chat's conversations to its new id, where the row is sent next."""
        address = due.message.address
        move = Move(address.platform, address.account, address.chat, new_chat)
        # A platform that keeps naming the same chat would cause an endless loop.
        if new_chat == address.chat or not await self._database.write(inbox.move, move):
            reason = f"the chat has moved to {new_chat}, where I cannot follow"
            await self._bury(due, reason, "refused")
            return
        log.warning("chat_moved", platform=move.platform, chat=move.chat, new_chat=new_chat)
        await self._database.write(sending.postpone, due, 0.0, f"moved to {new_chat}")

    async def _record(self, due: Due, receipt: Receipt) -> bool:
        """Store a receipt; return whether more rows of the conversation wait."""
        self._traffic.sent(due.account, due.message.conversation)
        # Retry as long as it takes: the message is shown and must not be sent again.
        more = None
        while more is None:
            try:
                more = await self._database.write(sending.mark_sent, due.message, receipt)
            except StorageError as exc:
                log.warning("receipt_not_stored", error=str(exc))
                await asyncio.sleep(STORAGE_RETRY_S)
        if due.withdraws is None:
            log.info(
                "message_sent",
                platform=due.message.address.platform,
                resent=receipt.resent,
                age_ms=round(due.message.age_s * 1000),
            )
        return more

    async def _put_off(
        self, due: Due, delay_s: float, reason: str, tries: int = 1, *, is_unknown: bool = False
    ) -> None:
        # Also by the loop's clock, since the database's clock may be set meanwhile.
        due_at = asyncio.get_running_loop().time() + delay_s
        self._lines[due.message.conversation].due_at = due_at
        write = self._database.write
        await write(sending.postpone, due, delay_s, reason, tries, is_unknown=is_unknown)

    async def _try_later(
        self, due: Due, reason: str, retry_after_s: float | None = None, *, is_unknown: bool = False
    ) -> None:
        """Schedule a retry, unless the row was tried for long enough.

        Args:
            retry_after_s: Delay requested by the platform; None for a growing pause.
            is_unknown: Whether the message may have been shown; the adapter finds out or marks it.
        """
        if await self._has_expired(due, reason):
            return
        delay_s = backoff_s(due.failures) if retry_after_s is None else retry_after_s
        delay_s = min(delay_s, LONGEST_RETRY_AFTER_S)
        if is_unknown:
            log.warning("send_outcome_unknown", reason=reason)
        else:
            log.warning("send_delayed", delay_s=round(delay_s, 1), reason=reason)
        # Otherwise a platform that always asks for an hour would be tried for weeks.
        tries = max(int(delay_s / LONGEST_DELAY_S), 1)
        await self._put_off(due, delay_s, reason, tries, is_unknown=is_unknown)

    async def _has_expired(self, due: Due, reason: str) -> bool:
        """Bury a row that was tried for long enough, with later rows that waited as long.

        A clock set forward would expire all rows at once, so a minimum number of tries applies.
        """
        if due.failures < LEAST_FAILURES:
            return False
        reason = f"not delivered within a day: {reason}"
        patience = NOTICE_PATIENCE if due.is_notice else 1
        if due.message.age_s > patience * RETRY_FOR_S:
            await self._bury(due, reason, "expired")
            return True
        if due.is_notice:
            _, told = await self._database.write(self._burials.bury_behind, due, reason)
            self._notify_others(due, told)
        return False

    async def _fail(self, due: Due, reason: str) -> None:
        """Count an adapter's unexpected exception; bury the row after `MOST_FAILURES`.

        The message may have been shown.
        """
        line, seq = self._lines[due.message.conversation], due.message.seq
        line.flaws = line.flaws + 1 if line.flawed == seq else 1
        line.flawed = seq
        if line.flaws >= MOST_FAILURES:
            await self._bury(due, reason, "failed")
        else:
            await self._try_later(due, reason, is_unknown=True)

    async def _bury(self, due: Due, reason: str, cause: Cause) -> None:
        write = self._database.write
        letters, told = await write(self._burials.bury_message, due, reason, cause)
        platform = due.message.address.platform
        log.error("message_buried", platform=platform, reason=reason, letters=letters)
        _end_trace(due, "buried")
        self._notify_others(due, told)

    def _notify_others(self, due: Due, told: frozenset[int]) -> None:
        """Send the notices of a burial in other conversations."""
        for conversation_id in told - {due.message.conversation}:
            self.notify(conversation_id)


def _trace_of(due: Due) -> str:
    return spans.trace_of(due.message.conversation, due.asked_seq)


def _end_trace(due: Due, outcome: str) -> None:
    """End a message's trace if this row is its final answer."""
    if due.is_last_word and due.asked_at is not None:
        place = dict(zip(("platform", "account"), due.account, strict=True))
        spans.record_root(_trace_of(due), due.asked_at, outcome=outcome, kind=due.kind, **place)


def backoff_s(failures: int) -> float:
    """Return 1, 2, 4, … seconds up to LONGEST_DELAY_S, with 20 % jitter."""
    # Limit the exponent: 2.0 ** 1024 overflows a float.
    bound = min(2.0 ** min(failures, 10), LONGEST_DELAY_S)
    return bound * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing


def least_failures(retry_for_s: float) -> int:
    """Return how many tries take LEAST_WAITED of the time in back-offs; at least 1."""
    failures, waited_s = 1, 1.0
    while waited_s < LEAST_WAITED * retry_for_s:
        waited_s += min(2.0 ** min(failures, 10), LONGEST_DELAY_S)
        failures += 1
    return failures


LEAST_FAILURES = least_failures(RETRY_FOR_S)
