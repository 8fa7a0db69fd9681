"""Dead letters: turns given up after their last attempt, and undeliverable messages.

Their ids are `t<turn id>` and `s<conversation>.<outbox seq>` (a send).
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row, Update, and_, case, select, tuple_, update

from agent.messages import text_of
from gateway.errors import NotFound
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.conversation import conversations, transcript, turns
from gateway.storage.queue import inbox
from gateway.storage.queue.sending import ASKED_SEQ
from gateway.storage.schema import conversation, iso_time, known_place, now_s, outbox, turn
from gateway.storage.schema import inbox as inbox_table


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A turn or message that was given up; `asked_seq` is the first inbox entry it answers."""

    id: str
    kind: Literal["turn", "send"]
    conversation: int
    platform: str
    chat: str
    reason: str
    text: str
    at: str
    asked_seq: int


def find_all(conn: Connection, limit: int = 50, before: str | None = None) -> list[DeadLetter]:
    """Return dead letters, newest first.

    `before` is the id of the letter before the page, which may have been dropped. Raises `NotFound`
    if it does not exist or was retried.
    """
    turns, sends = _dead_turns(), _dead_sends()
    if before is not None:
        at, number, seq = _place(conn, before)
        order, place = tuple_(turn.c.finished_at, turn.c.id), tuple_(at, number)
        # A turn sorts as (time, id, 0), after a send with equal time and number.
        turns = turns.where(order <= place if seq else order < place)
        sends = sends.where(
            tuple_(outbox.c.at, outbox.c.conversation, outbox.c.seq) < tuple_(at, number, seq)
        )
    found = [
        ((row.finished_at, row.id, 0), _turn_letter(conn, row))
        for row in conn.execute(turns.limit(limit))
    ]
    found += [
        ((row.at, row.conversation, row.seq), _send_letter(row))
        for row in conn.execute(sends.limit(limit))
    ]
    ordered = sorted(found, key=lambda each: each[0], reverse=True)
    return [letter for _, letter in ordered[:limit]]


def _place(conn: Connection, letter_id: str) -> tuple[float, int, int]:
    """Return a letter's sort key: its time and two numbers, the second 0 for a turn."""
    kind, number, seq = _parsed(letter_id)
    if kind == "t":
        query = select(turn.c.finished_at).where(turn.c.id == number, turn.c.state.in_(_GIVEN_UP))
    else:
        this = (outbox.c.conversation == number, outbox.c.seq == seq)
        query = select(outbox.c.at).where(*this, outbox.c.state.in_(_GIVEN_UP))
    return known_place(conn.scalar(query), f"dead letter {letter_id}"), number, seq


_GIVEN_UP = ("dead", "dropped")


def find(conn: Connection, letter_id: str) -> DeadLetter:
    """Return a dead letter; raise `NotFound` for an unknown id."""
    kind, number, seq = _parsed(letter_id)
    if kind == "t":
        rows = conn.execute(_dead_turns().where(turn.c.id == number)).all()
        letters = [_turn_letter(conn, row) for row in rows]
    else:
        this = (outbox.c.conversation == number, outbox.c.seq == seq)
        letters = [_send_letter(row) for row in conn.execute(_dead_sends().where(*this))]
    if letters:
        return letters[0]
    raise NotFound(f"there is no dead letter {letter_id}; `parley dead-letters list` shows them")


def _parsed(letter_id: str) -> tuple[str, int, int]:
    """Parse an id into kind, turn or conversation, and outbox seq; zeros if invalid."""
    # Numbers of 18 digits fit into the database's integers.
    match = re.fullmatch(r"(t|s)([0-9]{1,18})(?:\.([0-9]{1,18}))?", letter_id)
    return (match[1], int(match[2]), int(match[3] or 0)) if match else ("t", 0, 0)


def retry(conn: Connection, letter_id: str, by: str = "command line") -> DeadLetter:
    """Retry a dead letter: requeue a turn's messages, or send again.

    A turn's earlier attempt leaves the view (reason `retry`), so that the model sees the question
    once. `by` is recorded. Raises `NotFound` for an unknown id.
    """
    letter = find(conn, letter_id)
    _put_on_record(conn, "dead_letter_retried", letter, by)
    if letter.kind == "send":
        # A send gets its full time again; a message that may have been shown stays in doubt.
        state = case((outbox.c.doubt, "unknown"), else_="pending")
        conn.execute(_row(letter).values(state=state, failures=0, next_at=0.0, at=now_s()))
        return letter
    turn_id = int(letter_id[1:])
    _queue_again(conn, letter.conversation, turn_id)
    turns.hide(conn, letter.conversation, turn_id)
    _drop_turn(conn, turn_id)
    conversations.make_ready(conn, letter.conversation)
    return letter


def drop(conn: Connection, letter_id: str, by: str = "command line") -> DeadLetter:
    """Remove a dead letter from the list, keeping its rows; record `by`. Raises like `retry`."""
    letter = find(conn, letter_id)
    _put_on_record(conn, "dead_letter_dropped", letter, by)
    if letter.kind == "send":
        conn.execute(_row(letter).values(state="dropped"))
    else:
        _drop_turn(conn, int(letter_id[1:]))
    return letter


def _put_on_record(conn: Connection, kind: AuditKind, letter: DeadLetter, by: str) -> None:
    audit_log.append(
        conn, AuditEntry(kind, by, subject=letter.id, conversation=letter.conversation)
    )


def settle(conn: Connection, turn_id: int | None) -> None:
    """Remove a dead turn, and those it had retried, from the list after a successful retry."""
    while turn_id is not None:
        this = (turn.c.id == turn_id, turn.c.state == "dead")
        settled = update(turn).where(*this).values(state="dropped").returning(turn.c.retries)
        turn_id = conn.scalar(settled)


def _dead_turns() -> Any:
    return (
        select(turn, conversation.c.platform, conversation.c.chat)
        .join(conversation, conversation.c.id == turn.c.conversation)
        .where(turn.c.state == "dead")
        .order_by(turn.c.finished_at.desc(), turn.c.id.desc())
    )


def _dead_sends() -> Any:
    return (
        select(outbox, conversation.c.platform, conversation.c.chat, ASKED_SEQ)
        .join(conversation, conversation.c.id == outbox.c.conversation)
        .where(outbox.c.state == "dead")
        .order_by(outbox.c.at.desc(), outbox.c.conversation.desc(), outbox.c.seq.desc())
    )


def _turn_letter(conn: Connection, row: Row[Any]) -> DeadLetter:
    entries = inbox.of_turn(conn, row.conversation, row.id)
    return DeadLetter(
        id=f"t{row.id}",
        kind="turn",
        conversation=row.conversation,
        platform=row.platform,
        chat=row.chat,
        reason=row.error or row.outcome or "",
        text="\n".join(entry.text for entry in entries),
        at=iso_time(row.finished_at),
        asked_seq=row.first_seq,
    )


def _send_letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        id=f"s{row.conversation}.{row.seq}",
        kind="send",
        conversation=row.conversation,
        platform=row.platform,
        chat=row.chat,
        reason=row.error or "",
        text=row.markdown or row.payload,
        at=iso_time(row.at),
        asked_seq=row.asked_seq,
    )


def _row(letter: DeadLetter) -> Update:
    seq = int(letter.id.partition(".")[2])
    return update(outbox).where(outbox.c.conversation == letter.conversation, outbox.c.seq == seq)


def _queue_again(conn: Connection, conversation_id: int, turn_id: int) -> None:
    """Requeue a turn's entries; a `/retry` becomes the question it repeated."""
    of_turn = and_(inbox_table.c.conversation == conversation_id, inbox_table.c.turn_id == turn_id)
    question = transcript.question_of_turn(conn, conversation_id, turn_id)
    if question is not None:
        conn.execute(
            update(inbox_table)
            .where(of_turn, inbox_table.c.kind == "command")
            .values(kind="message", text=text_of(question))
        )
    # They keep their turn, which has the senders of their texts.
    conn.execute(update(inbox_table).where(of_turn).values(state="queued"))


def _drop_turn(conn: Connection, turn_id: int) -> None:
    conn.execute(update(turn).where(turn.c.id == turn_id).values(state="dropped"))
