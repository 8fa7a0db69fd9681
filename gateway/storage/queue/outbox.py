"""The outbox: messages to send, one row per chunk, in order of seq.

States of a row: pending → (sending →) sent. `sending` is used on platforms where sending twice
shows twice; after a crash such a row becomes `unknown`, to be resolved by the adapter. `dead` rows
are for the operator (`parley dead-letters`); `dropped` ones were cancelled. This file creates,
inserts and finds rows; `sending` delivers them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
from sqlalchemy import ColumnElement, Connection, bindparam, delete, select, update

from adapters.base import Renderer
from adapters.messages import Choice
from gateway.storage.conversation import attachments, conversations
from gateway.storage.schema import is_unsent, now_s, outbox

MAX_MESSAGES = 20
"""Most messages per answer: 80,000 characters on Telegram, 40,000 on Discord. At a message per
second, more would block the chat for minutes. A longer answer becomes a file."""
WHOLE_ANSWER = "answer.md"
DEAD_NOTICE = "dead:"
"""Key prefix of rows that report dead letters."""
ALERT = "alert:"
"""Key prefix of rows that report alerts to owners."""
NOTICES = (DEAD_NOTICE, ALERT)
"""Key prefixes of rows that never become dead letters or raise alerts."""
_RECENT = 500
"""Most messages expected below a question while it is being answered."""


@dataclass(frozen=True, slots=True)
class OutboxPart:
    """A message to send; `source_key` identifies its cause and is unique.

    Attributes:
        attachment: Id of the stored file to send.
        content: Content of a file to store and send with it.
    """

    source_key: str
    payload: str
    markdown: str
    preview_ref: str | None = None
    reply_to: str | None = None
    choices: tuple[Choice, ...] = ()
    attachment: int | None = None
    content: bytes | None = None


def parts_of(
    render: Renderer,
    source_key: str,
    markdown: str,
    *,
    preview_ref: str | None = None,
    reply_to: str | None = None,
    choices: tuple[Choice, ...] = (),
) -> list[OutboxPart]:
    """Split a text into rows, one per chunk of its platform.

    The first chunk stores the whole text and replaces the live preview; the last has the buttons. A
    text of more than `MAX_MESSAGES` starts in the chat and follows completely as a file.
    """
    payloads = render(markdown)
    is_too_long = len(payloads) > MAX_MESSAGES
    if is_too_long:
        # The last two messages are the file and a line that mentions it.
        del payloads[MAX_MESSAGES - 2 :]
    first = OutboxPart(f"{source_key}:1", payloads[0], markdown, preview_ref, reply_to)
    rest = [
        OutboxPart(
            f"{source_key}:{n}", payload, f"(part {n} of {len(payloads)})", reply_to=reply_to
        )
        for n, payload in enumerate(payloads[1:], start=2)
    ]
    parts = [first, *rest]
    if is_too_long:
        parts += [
            replace(part, reply_to=reply_to) for part in _as_file(render, source_key, markdown)
        ]
    *before, last = parts
    return [*before, replace(last, choices=choices) if choices else last]


def _as_file(render: Renderer, source_key: str, markdown: str) -> list[OutboxPart]:
    told = f"*[the text is longer than {MAX_MESSAGES} messages: all of it is in {WHOLE_ANSWER}]*"
    content = markdown.encode("utf-8", "replace")
    file = OutboxPart(f"{source_key}:file", "", f"(file: {WHOLE_ANSWER})", content=content)
    return [file, OutboxPart(f"{source_key}:{MAX_MESSAGES}", render(told)[0], told)]


def file_part(
    source_key: str, attachment: int, name: str, reply_to: str | None = None
) -> OutboxPart:
    """Return the row that sends a stored file."""
    told = f"(file: {name})"
    return OutboxPart(source_key, "", told, reply_to=reply_to, attachment=attachment)


def append(
    conn: Connection,
    conversation_id: int,
    parts: Sequence[OutboxPart],
    *,
    inbox_seq: int,
    turn_id: int | None = None,
) -> bool:
    """Append rows with new source keys; return False if all are known."""
    is_new = False
    for part in parts:
        # Allocate a seq only for a new key, so that a repeated commit leaves no gap.
        seq = conversations.take_outbox_seq(conn, conversation_id, part.source_key)
        if seq is None:
            continue
        insert(conn, conversation_id, [part], first_seq=seq, inbox_seq=inbox_seq, turn_id=turn_id)
        is_new = True
    return is_new


def insert(
    conn: Connection,
    conversation_id: int,
    parts: Sequence[OutboxPart],
    *,
    first_seq: int,
    inbox_seq: int,
    turn_id: int | None = None,
) -> None:
    """Insert rows with new source keys under allocated seqs from `first_seq`."""
    rows = [
        {
            "conversation": conversation_id,
            "seq": seq,
            "source_key": part.source_key,
            "inbox_seq": inbox_seq,
            "turn_id": turn_id,
            "payload": part.payload,
            "markdown": None if part.markdown == part.payload else part.markdown,
            "preview_ref": part.preview_ref,
            "reply_to": part.reply_to,
            "choices": orjson.dumps([[each.label, each.text] for each in part.choices]).decode()
            if part.choices
            else None,
            "attachment": part.attachment
            if part.content is None
            else attachments.keep(conn, conversation_id, WHOLE_ANSWER, part.content),
        }
        for seq, part in enumerate(parts, start=first_seq)
    ]
    if rows:
        conn.execute(_INSERT, rows)


_INSERT = outbox.insert().values(state="pending", at=now_s())


def is_known(conn: Connection, source_key: str) -> bool:
    """Whether a row with this key exists."""
    return conn.execute(_KNOWN, {"source_key": source_key}).one_or_none() is not None


_KNOWN = select(outbox.c.inbox_seq).where(outbox.c.source_key == bindparam("source_key"))


def withdraw(conn: Connection, conversation_id: int, about: str, note: str, upto_seq: int) -> None:
    """Queue the removal of a question's buttons after all unsent rows, once per question.

    Args:
        about: The question's key: its buttons are in the row "{about}:buttons:1".
        upto_seq: Newest inbox entry answered by the waiting turn.
    """
    asked = conn.execute(_KNOWN, {"source_key": f"{about}:buttons:1"}).one_or_none()
    if asked is not None:
        part = OutboxPart(f"{about}:over:1", note, note)
        append(conn, conversation_id, [part], inbox_seq=max(asked.inbox_seq, upto_seq))


def with_buttons(conn: Connection, prefix: str) -> dict[int, str]:
    """Return the conversations with questions whose key has this prefix, with their keys."""
    keys = select(outbox.c.conversation, outbox.c.source_key).where(*begins_with(prefix))
    ends = ":buttons:1"
    found = conn.execute(keys.where(outbox.c.source_key.endswith(ends)))
    return {row.conversation: row.source_key.removesuffix(ends) for row in found}


def erase(conn: Connection, prefix: str) -> None:
    """Erase the rows with this key prefix in all conversations."""
    conn.execute(delete(outbox).where(*begins_with(prefix)))


def begins_with(prefix: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Match rows by key prefix as a range, since for LIKE SQLite reads all keys."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return outbox.c.source_key >= prefix, outbox.c.source_key < end


def is_over(source_key: str) -> bool:
    """Whether the row of this key only removes a question's buttons."""
    return source_key.startswith("inquiry:") and source_key.endswith(":over:1")


def drop_unsent(conn: Connection, conversation_id: int, turn_id: int) -> None:
    """Drop a turn's unsent rows."""
    its = (outbox.c.conversation == conversation_id, outbox.c.turn_id == turn_id)
    unseen = update(outbox).where(*its, is_unsent, outbox.c.state == "pending")
    conn.execute(unseen.values(state="dropped"))


def all_sent(conn: Connection, conversation_id: int) -> bool:
    """Whether the conversation has no unsent row."""
    return not _is_any(conn, outbox.c.conversation == conversation_id, is_unsent)


def is_waiting(conn: Connection, conversation_id: int, key_start: str) -> bool:
    """Whether a conversation has an unsent row with this key prefix."""
    here = (outbox.c.conversation == conversation_id, is_unsent)
    return _is_any(conn, *here, outbox.c.source_key.startswith(key_start, autoescape=True))


def is_shown(conn: Connection, prefix: str) -> bool:
    """Whether any row with this key prefix was shown."""
    return _is_any(conn, *begins_with(prefix), outbox.c.state == "sent")


def has_dead(conn: Connection, conversation_id: int) -> bool:
    """Whether a conversation has a listed dead letter."""
    return _is_any(conn, outbox.c.conversation == conversation_id, outbox.c.state == "dead")


def _is_any(conn: Connection, *its: ColumnElement[bool]) -> bool:
    return conn.scalar(select(outbox.c.seq).where(*its).limit(1)) is not None


def newest_refs(conn: Connection, conversation_id: int) -> frozenset[str]:
    """Return the platform's ids of a conversation's newest shown messages."""
    shown = (outbox.c.conversation == conversation_id, outbox.c.platform_ref.is_not(None))
    refs = select(outbox.c.platform_ref).where(*shown).order_by(outbox.c.seq.desc())
    return frozenset(conn.scalars(refs.limit(_RECENT)))


def choices_of(choices: str | None) -> tuple[Choice, ...]:
    """Parse the buttons of a row."""
    return tuple(Choice(*pair) for pair in orjson.loads(choices)) if choices else ()
