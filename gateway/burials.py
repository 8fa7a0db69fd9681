"""Burials (step 9): what is done when a message is given up, so that nobody has to find it out.

The row becomes a dead letter (`parley dead-letters`). In the same transaction its chat and the
owners get a row of their own, which goes out as soon as anything does: one for each trouble, not
one for each row. A notice that cannot be delivered is dropped; nobody is told of that: so a chat
that blocks the bot costs one more request, and one that only refuses this message is not left
without a word.
"""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from gateway import notices
from gateway.owners import Owners
from gateway.storage import outbox
from gateway.storage.models import conversation, now_s
from gateway.storage.outbox import DEAD_NOTICE, Due

Cause = Literal["expired", "failed", "refused"]
"""expired: not delivered within `delivery.retry_for_s`. failed: the adapter failed at each try.
refused: the platform will never take it (blocked, removed, deleted, malformed)."""
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Burial:
    """What a burial has done: dead letters made, and conversations that have something to send."""

    letters: int
    told: frozenset[int]


@dataclass(frozen=True, slots=True)
class Burials:
    """Makes dead letters and tells of them; part of the caller's transaction.

    Args:
        owners: Who is told, beside the chat.
        retry_for_s: Seconds after which what waits behind an expired row has expired as well.
    """

    owners: Owners
    retry_for_s: float

    def bury_message(self, conn: Connection, due: Due, reason: str, cause: Cause) -> Burial:
        """Give a row up, and with an expired one what has waited as long behind it.

        Nothing is told of a row that was dropped or erased while it was on its way.
        """
        if due.is_notice:
            outbox.drop(conn, due.message, reason)
            return Burial(0, frozenset())
        is_first = not outbox.has_dead(conn, due.message.conversation)
        if not outbox.mark_dead(conn, due.message, reason):
            return Burial(0, frozenset())
        more = self._bury_behind(conn, due, reason) if cause == "expired" else 0
        told = self._tell(conn, due, reason, cause, is_first=is_first)
        return Burial(1 + more, told)

    def bury_behind(self, conn: Connection, due: Due, reason: str) -> Burial:
        """Give up what has waited too long behind a notice, which itself stays."""
        letters = self._bury_behind(conn, due, reason)
        told = self._tell(conn, due, reason, "expired", is_first=False) if letters else frozenset()
        return Burial(letters, told)

    def _bury_behind(self, conn: Connection, due: Due, reason: str) -> int:
        return outbox.bury_older(conn, due.message, self.retry_for_s, due.failures, reason)

    def _tell(
        self, conn: Connection, due: Due, reason: str, cause: Cause, *, is_first: bool
    ) -> frozenset[int]:
        """Return the conversations in which something is said now."""
        query = select(conversation).where(conversation.c.id == due.message.conversation)
        place = conn.execute(query).one()
        told = self._tell_chat(conn, place, due, cause)
        if cause != "refused" or is_first:
            told |= self._tell_owners(conn, place, due, reason, cause)
        return frozenset(told)

    def _tell_chat(self, conn: Connection, place: Row[Any], due: Due, cause: Cause) -> set[int]:
        """Tell the chat that something is missing, unless it is about to be told that already."""
        if outbox.is_waiting(conn, place.id, f"{DEAD_NOTICE}{place.id}:"):
            return set()
        # The head makes it another key where a dead letter was retried and dies once more.
        key = f"{DEAD_NOTICE}{place.id}:{due.message.seq}:{place.outbox_head}"
        text = notices.EXPIRED if cause == "expired" else notices.UNSHOWN
        return {place.id} if self.owners.say(conn, place, key, text) else set()

    def _tell_owners(
        self, conn: Connection, place: Row[Any], due: Due, reason: str, cause: Cause
    ) -> set[int]:
        """Tell the owners elsewhere: once a day for each account and kind of trouble."""
        account = f"{place.platform}:{place.account}"
        key = f"{DEAD_NOTICE}{account}:{'refused' if cause == 'refused' else 'undelivered'}:"
        day = int((conn.scalar(select(now_s())) or 0.0) // DAY_S)
        letter = f"s{place.id}.{due.message.seq}"
        text = notices.dead_letter_text(account, letter, reason, cause)
        told = set()
        for chat in self.owners.chats(conn, self.owners.everybody(conn)):
            is_told = chat.id == place.id or outbox.is_waiting(conn, chat.id, key)
            if not is_told and self.owners.say(conn, chat, f"{key}{day}:{chat.id}", text):
                told.add(chat.id)
        return told
