"""Delivery (steps 8 and 9 of the path): outbox rows to their platform, in order, until shown.

A conversation has a task only while it has unsent rows. One chat that cannot be reached delays no
other; turns do not wait for sends.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace

import structlog

from adapters.base import Adapter
from adapters.errors import AdapterError, ChatMoved, SendDelayed, SendRejected, SendUnknown
from adapters.messages import Move, Outgoing, Receipt, Withdrawal
from gateway.errors import StorageError
from gateway.storage import attachments, inbox, outbox
from gateway.storage.engine import Database
from gateway.storage.outbox import Due
from gateway.traffic import Traffic

log = structlog.get_logger()

GIVE_UP_AFTER_S = 24 * 3600.0
LEAST_FAILURES = 20
"""A message that nobody could be shown for a day, and in so many tries, becomes a dead letter."""
SWEEP_S = 30.0
"""How long a lost hint can hold up a message."""
LONGEST_DELAY_S = 120.0
LONGEST_RETRY_AFTER_S = 3600.0
"""Nothing waits longer: a row due later than this shows that the clock was set back."""
STORAGE_RETRY_S = 1.0
LONGEST_PAUSE_S = 5.0
WITHDRAWAL_S = 10.0
MOST_TRIES_AT_BUTTONS = 3
"""Then the buttons of a question stay where they are: a press of one says that it is over."""
MOST_FAILURES = 5
"""Attempts at a row whose sending raises what no adapter should raise."""


class Delivery:
    """Sends what the outbox holds for the adapters of this process."""

    def __init__(
        self,
        database: Database,
        replica: int,
        adapters: Mapping[tuple[str, str], Adapter],
        traffic: Traffic,
    ) -> None:
        self._database = database
        self._replica = replica
        self._adapters = adapters
        self._traffic = traffic
        self._waiting: asyncio.Queue[int] = asyncio.Queue()
        self._again: dict[int, bool] = {}
        self._idle = asyncio.Event()
        self._swept = False

    def notify(self, conversation_id: int) -> None:
        """Hint that a conversation has something to be sent."""
        self._idle.clear()
        self._waiting.put_nowait(conversation_id)

    async def run(self) -> None:
        """Send until cancelled, beginning with what an earlier process left."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep(), name="unsent")
            while True:
                conversation_id = await self._waiting.get()
                if conversation_id in self._again:
                    self._again[conversation_id] = True
                    continue
                self._again[conversation_id] = False
                tasks.create_task(self._drain(conversation_id), name=f"send {conversation_id}")

    async def _sweep(self) -> None:
        """Find what an earlier process left, and then what a lost hint hides."""
        accounts = list(self._adapters)
        while True:
            try:
                unsent = await self._database.read(outbox.unsent_conversations, accounts)
                for conversation_id in unsent:
                    self.notify(conversation_id)
                self._swept = True
                self._note_idle()
            except StorageError as exc:
                log.warning("unsent_not_found", error=str(exc))
            await asyncio.sleep(SWEEP_S)

    async def wait_idle(self) -> None:
        """Return when nothing is left that could be sent now."""
        await self._idle.wait()

    def _note_idle(self) -> None:
        """What an earlier process left counts as work, so not before the first sweep."""
        if self._swept and not self._again and self._waiting.empty():
            self._idle.set()

    async def _drain(self, conversation_id: int) -> None:
        """Send a conversation's rows until there is none, also those that come meanwhile."""
        while True:
            self._again[conversation_id] = False
            try:
                await self._send_all(conversation_id)
            except StorageError as exc:
                log.warning("delivery_failed", conversation=conversation_id, error=str(exc))
                await asyncio.sleep(STORAGE_RETRY_S)
                continue
            if not self._again[conversation_id]:
                break
        del self._again[conversation_id]
        self._note_idle()

    async def _send_all(self, conversation_id: int) -> None:
        """Send a conversation's rows, in order, until a look or a receipt finds no other."""
        due = await self._database.write(outbox.next_due, conversation_id)
        while due is not None and due.account in self._adapters:
            receipt = await self._deliver(due)
            if receipt is not None:
                due = await self._record(due, receipt)
            else:
                due = await self._database.write(outbox.next_due, conversation_id)

    async def _deliver(self, due: Due) -> Receipt | None:
        """Send one row when its time has come; None where nothing was shown now."""
        if 0 < due.in_s <= LONGEST_RETRY_AFTER_S:
            await asyncio.sleep(min(due.in_s, LONGEST_DELAY_S))
            return None
        if due.withdraws is not None:
            return await self._withdraw(due, due.withdraws)
        message = due.message
        adapter = self._adapters[due.account]
        marks = not adapter.idempotent_sends
        if marks and not await self._database.write(outbox.mark_sending, message, self._replica):
            return None
        try:
            return await adapter.send(await self._with_file(due))
        except ChatMoved as exc:
            await self._move(due, exc.new_chat)
        except SendDelayed as exc:
            self._traffic.failed(due.account, message.conversation, exc.retry_after_s)
            await self._delay(due, exc.retry_after_s, str(exc))
        except SendRejected as exc:
            await self._bury(due, str(exc))
        except SendUnknown as exc:
            self._traffic.failed(due.account, message.conversation, None)
            await self._doubt(due, str(exc))
        except Exception as exc:
            log.exception("send_failed", conversation=message.conversation, seq=message.seq)
            await self._fail(due, repr(exc))
        return None

    async def _withdraw(self, due: Due, withdrawal: Withdrawal) -> Receipt | None:
        """Take the buttons off a question, best effort: no answer waits for that for long."""
        if not withdrawal.message_ref:
            await self._leave_buttons(due, "the question is not shown")
            return None
        try:
            async with asyncio.timeout(WITHDRAWAL_S):
                await self._adapters[due.account].withdraw(withdrawal)
        except SendDelayed as exc:
            pause_s = backoff_s(due.failures) if exc.retry_after_s is None else exc.retry_after_s
            if due.failures + 1 < MOST_TRIES_AT_BUTTONS and pause_s <= LONGEST_PAUSE_S:
                await self._database.write(outbox.mark_delayed, due.message, pause_s, str(exc))
            else:
                await self._leave_buttons(due, str(exc))
        except AdapterError as exc:
            await self._leave_buttons(due, str(exc))
        except TimeoutError:
            await self._leave_buttons(due, "the platform takes too long")
        except Exception as exc:
            log.exception("send_failed", conversation=due.message.conversation, seq=due.message.seq)
            await self._leave_buttons(due, repr(exc))
        else:
            return Receipt(withdrawal.message_ref)
        return None

    async def _leave_buttons(self, due: Due, reason: str) -> None:
        await self._database.write(outbox.drop, due.message, reason)
        conversation, seq = due.message.conversation, due.message.seq
        log.info("buttons_left", conversation=conversation, seq=seq, reason=reason)

    async def _with_file(self, due: Due) -> Outgoing:
        if due.attachment is None:
            return due.message
        file = await self._database.read(attachments.outgoing, due.attachment)
        return replace(due.message, file=file)

    async def _move(self, due: Due, new_chat: str) -> None:
        """Re-key the chat's conversations; the row is sent there next."""
        address = due.message.address
        move = Move(address.platform, address.account, address.chat, new_chat)
        if new_chat == address.chat or not await self._database.write(inbox.move, move):
            await self._bury(due, f"the chat has moved to {new_chat}, where I cannot follow")
            return
        log.warning("chat_moved", platform=move.platform, chat=move.chat, new_chat=new_chat)
        await self._database.write(outbox.mark_delayed, due.message, 0.0, f"moved to {new_chat}")

    async def _record(self, due: Due, receipt: Receipt) -> Due | None:
        """Store a receipt; return the next row."""
        self._traffic.sent(due.account, due.message.conversation)
        following = await self._store(due.message, receipt)
        if due.withdraws is None:
            log.info(
                "message_sent",
                conversation=due.message.conversation,
                seq=due.message.seq,
                platform=due.message.address.platform,
                resent=receipt.resent,
                age_ms=round(due.message.age_s * 1000),
            )
        return following

    async def _store(self, message: Outgoing, receipt: Receipt) -> Due | None:
        """Store a receipt, however long that takes: the message is shown and must not be again."""
        while True:
            try:
                return await self._database.write(outbox.mark_sent, message, receipt)
            except StorageError as exc:
                log.warning("receipt_not_stored", conversation=message.conversation, error=str(exc))
                await asyncio.sleep(STORAGE_RETRY_S)

    async def _delay(self, due: Due, retry_after_s: float | None, reason: str) -> None:
        if due.message.age_s > GIVE_UP_AFTER_S and due.failures >= LEAST_FAILURES:
            await self._bury(due, f"not delivered within a day: {reason}")
            return
        delay_s = backoff_s(due.failures) if retry_after_s is None else retry_after_s
        delay_s = min(delay_s, LONGEST_RETRY_AFTER_S)
        log.warning(
            "send_delayed",
            conversation=due.message.conversation,
            seq=due.message.seq,
            delay_s=round(delay_s, 1),
            reason=reason,
        )
        await self._database.write(outbox.mark_delayed, due.message, delay_s, reason)

    async def _doubt(self, due: Due, reason: str) -> None:
        if due.message.outcome_unknown:
            await self._bury(due, f"the resend is in doubt too: {reason}")
            return
        await self._mark_unknown(due, reason)

    async def _mark_unknown(self, due: Due, reason: str) -> None:
        log.warning(
            "send_outcome_unknown",
            conversation=due.message.conversation,
            seq=due.message.seq,
            reason=reason,
        )
        await self._database.write(
            outbox.mark_unknown, due.message, backoff_s(due.failures), reason
        )

    async def _fail(self, due: Due, reason: str) -> None:
        if due.failures + 1 >= MOST_FAILURES:
            await self._bury(due, reason)
        else:
            await self._mark_unknown(due, reason)

    async def _bury(self, due: Due, reason: str) -> None:
        await self._database.write(outbox.mark_dead, due.message, reason)
        log.error(
            "message_buried",
            conversation=due.message.conversation,
            seq=due.message.seq,
            platform=due.message.address.platform,
            reason=reason,
        )


def backoff_s(failures: int) -> float:
    """Return 1, 2, 4, … seconds, at most LONGEST_DELAY_S, spread by a fifth."""
    bound = min(2.0 ** min(failures, 10), LONGEST_DELAY_S)
    return bound * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing
