"""What a conversation does next (step 5 of the path), decided in one transaction.

An unfinished turn goes on. Else the commands that wait first are carried out, and what stands
behind them is frozen into the next turn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Connection

from agent.messages import Content
from gateway import commands, notices
from gateway.asked import burst, merged_text, with_notes
from gateway.sessions import reset_due
from gateway.settings import QueueSettings, SessionSettings
from gateway.storage import (
    endings,
    hiding,
    inbox,
    leases,
    lineage,
    outbox,
    senders,
    transcript,
    turns,
)
from gateway.storage.contents import content_of
from gateway.storage.endings import TurnEnd
from gateway.storage.inbox import Entry
from gateway.storage.leases import Held, Lease
from gateway.storage.lineage import PromptBase
from gateway.storage.outbox import Part, Renderer, parts_of
from gateway.storage.turns import Turn

LONGEST_NUMBER = 18
"""Digits; longer numbers do not fit into the database's integers."""


@dataclass(frozen=True, slots=True)
class Freezer:
    """Finds the next turn of a leased conversation.

    Attributes:
        file_chars: As much of the text of a file is read with its message.
        base: Returns what requests begin with, by the model that was chosen for the conversation.
        renderers: How the platform of each account shows text.
    """

    queue: QueueSettings
    sessions: SessionSettings
    file_chars: int
    base: Callable[[str | None], PromptBase]
    renderers: Mapping[tuple[str, str], Renderer]

    def freeze(
        self, conn: Connection, lease: Lease, recalled: str = ""
    ) -> tuple[Turn | None, list[Entry]]:
        """Return the next turn, and the commands before it, which have been replied to.

        A turn that waits for a person waits on, and so does what stands behind it.

        Args:
            conn: The writing connection.
            lease: The conversation's lease.
            recalled: What is told beside the question of a turn that begins (`memory_context`).
        """
        held = leases.look(conn, lease)
        if held.waits:
            leases.release(conn, lease)
            return None, []
        base = replace(self.base(held.model), context=recalled)
        running = turns.find_running(conn, held, base)
        if running is not None:
            return running, []
        waiting = inbox.queued(conn, lease.conversation)
        if any(entry.awaits_files for entry in waiting):
            waiting = []
        carried_out: list[Entry] = []
        while waiting and waiting[0].kind == "command":
            command = waiting.pop(0)
            asked_by_it = self._carry_out(conn, held, command, base)
            if asked_by_it is not None:
                return asked_by_it, carried_out
            carried_out.append(command)
        if not waiting:
            leases.release(conn, lease)
            return None, carried_out
        entries = burst(waiting, self.queue)
        self._reset_if_due(conn, lease, entries[0].at, entries[0].text)
        notes = inbox.take_noted(conn, lease.conversation, entries[-1].seq)
        asked = self._asked(conn, lease, notes, entries)
        others = senders.of_entries(lease, notes)
        return turns.begin(conn, held, entries, asked, base, others), carried_out

    def give_up(self, conn: Connection, lease: Lease, error: str) -> Turn | None:
        """Bury what could not be frozen, and tell its chat; None where nothing waits any more.

        A turn that its user has stopped stays as it is: it needs nothing but its end.
        """
        turn = turns.take_up(conn, lease)
        if turn is not None and not turn.stopped:
            # No platform can be asked within a transaction what became of an announced preview.
            lost = turn.preview_nonce is not None
            text = notices.replacing(notices.NEVER_BEGAN) if lost else notices.NEVER_BEGAN
            parts = self._parts(lease, f"turn:{turn.id}:buried", text, turn.reply_to)
            parts[0] = replace(parts[0], preview_ref=turn.preview_ref)
            endings.bury(conn, turn, parts, TurnEnd("gave_up", error=error))
        return turn

    def _asked(
        self, conn: Connection, lease: Lease, notes: Sequence[Entry], entries: Sequence[Entry]
    ) -> Content:
        """Return what the model reads of these messages."""
        text = with_notes(merged_text(entries, named=lease.shared), notes)
        return content_of(conn, lease.conversation, [*notes, *entries], text, self.file_chars)

    def _carry_out(
        self, conn: Connection, held: Held, command: Entry, base: PromptBase
    ) -> Turn | None:
        """Do a queued command; returns the turn that it asks for, if any.

        `/retry` asks the newest question again, with a number an edited message in its newest
        wording, `/new` what stands behind it; `/compress` and `/model` take a turn of their own.
        """
        asked: Content
        others: tuple[str, ...] = ()
        retries: int | None = None
        lease = held.lease
        name = commands.parse(command.text)
        if name in commands.HOUSEKEEPING:
            return turns.begin(conn, held, [command], None, base)
        if name == "new":
            words = commands.argument(command.text)
            # What was said before it belongs to the old conversation.
            inbox.take_noted(conn, lease.conversation, command.seq)
            self._start_anew(conn, lease, "new", words)
            asked = content_of(conn, lease.conversation, [command], words, self.file_chars)
            otherwise = commands.NEW_TEXT
        elif edited := _edited(conn, command):
            others = senders.of_entries(lease, [edited])
            asked = content_of(conn, lease.conversation, [edited], edited.text, self.file_chars)
            otherwise = commands.NOTHING_TO_RETRY
        else:
            others = hiding.newest_senders(conn, lease)
            retries = hiding.newest_given_up(conn, lease.conversation)
            asked = hiding.hide_newest(conn, lease.conversation) or ""
            otherwise = commands.NOTHING_TO_RETRY
        if asked:
            begun = turns.begin(conn, held, [command], asked, base, others)
            return begun if retries is None else turns.note_retry(conn, begun, retries)
        self._reply(conn, lease, command, otherwise)
        inbox.finish(conn, command, "done")
        return None

    def _reset_if_due(self, conn: Connection, lease: Lease, asked_at: float, title: str) -> None:
        """Begin a new lineage where `sessions.reset` says so; messages stay as they are."""
        if self.sessions.reset == "none":
            return
        first_seq = lineage.active(conn, lease.conversation).plan.first_seq
        newest_at = transcript.newest_at(conn, lease.conversation, first_seq)
        last = None if newest_at is None else datetime.fromtimestamp(newest_at, UTC)
        reason = reset_due(self.sessions, last, datetime.fromtimestamp(asked_at, UTC))
        if reason is not None:
            self._start_anew(conn, lease, reason, title)

    def _start_anew(self, conn: Connection, lease: Lease, reason: str, title: str) -> None:
        lineage.end(conn, lineage.active(conn, lease.conversation).id, reason)
        head = leases.fence(conn, lease).message_head
        lineage.start_root(conn, lease.conversation, reason, first_seq=head + 1)
        inbox.rename(conn, lease.conversation, title)

    def _reply(self, conn: Connection, lease: Lease, command: Entry, text: str) -> None:
        key = f"reply:{command.conversation}:{command.seq}"
        parts = self._parts(lease, key, text, command.message_ref)
        outbox.append(conn, command.conversation, parts, inbox_seq=command.seq)

    def _parts(self, lease: Lease, key: str, text: str, reply_to: str | None) -> list[Part]:
        render = self.renderers[lease.address.platform, lease.address.account]
        return parts_of(render, key, text, reply_to=reply_to)


def _edited(conn: Connection, command: Entry) -> Entry | None:
    """Return the edit of the message that a `/retry` names by its number in the inbox."""
    number = commands.argument(command.text).strip()
    if not (number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER):
        return None
    return inbox.wording(conn, command.conversation, int(number))
