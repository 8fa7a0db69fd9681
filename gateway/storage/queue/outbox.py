"""The outbox: what will be shown, one row per chunk, in order of seq.

Life of a row: pending → (sending →) sent. `sending` is used on platforms where sending twice shows
twice; a row found with it after a crash becomes `unknown`: the platform's adapter resolves it.
`dead` rows are the operator's (`parley dead-letters`); `dropped` ones were cancelled. Here rows are
made, entered and looked up; `sending` takes them to the platforms.
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
"""Most messages of one answer: 80,000 characters on Telegram, 40,000 on Discord. More of them would
keep the chat busy for minutes, at a message a second. A longer answer is a file."""
WHOLE_ANSWER = "answer.md"
DEAD_NOTICE = "dead:"
"""Begins the key of a row that reports dead letters."""
ALERT = "alert:"
"""Begins the key of a row that reports a trouble to owners."""
NOTICES = (DEAD_NOTICE, ALERT)
"""Rows that report a trouble never become dead letters themselves, and raise no alert."""
_RECENT = 500
"""Most messages that appear below a question while it is being answered."""


@dataclass(frozen=True, slots=True)
class OutboxPart:
    """One message to be shown; `source_key` names its cause and is unique.

    Attributes:
        attachment: Id of the stored file that it shows.
        content: Of a file that it shows and that is stored with it.
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
    """Return a text as rows: one for each chunk that its platform needs.

    The first chunk keeps the whole text and replaces the live preview; the last one has the
    buttons. A text of more than `MAX_MESSAGES` begins in the chat, and is in a file as a whole.
    """
    payloads = render(markdown)
    is_too_long = len(payloads) > MAX_MESSAGES
    if is_too_long:
        # The last two messages are the file and the line that names it.
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
    """Return the row that shows a stored file."""
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
    """Insert rows after the conversation's newest, except known source keys; False if all are."""
    is_new = False
    for part in parts:
        # The number is taken only for a new key: a repeated commit leaves no gap in the order.
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
    """Insert rows with new source keys, under the seqs from `first_seq` on, which are taken."""
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
    """Whether a row with this cause was entered before."""
    return conn.execute(_KNOWN, {"source_key": source_key}).one_or_none() is not None


_KNOWN = select(outbox.c.inbox_seq).where(outbox.c.source_key == bindparam("source_key"))


def withdraw(conn: Connection, conversation_id: int, about: str, note: str, upto_seq: int) -> None:
    """Queue the removal of a question's buttons after all unsent rows; once for each question.

    Args:
        about: Its name: the row with its buttons has the key "{about}:buttons:1".
        upto_seq: Newest entry of the inbox that the waiting turn answers.
    """
    asked = conn.execute(_KNOWN, {"source_key": f"{about}:buttons:1"}).one_or_none()
    if asked is not None:
        part = OutboxPart(f"{about}:over:1", note, note)
        append(conn, conversation_id, [part], inbox_seq=max(asked.inbox_seq, upto_seq))


def with_buttons(conn: Connection, prefix: str) -> dict[int, str]:
    """Return the conversations with a question whose name begins so; each with that name."""
    keys = select(outbox.c.conversation, outbox.c.source_key).where(*begins_with(prefix))
    ends = ":buttons:1"
    found = conn.execute(keys.where(outbox.c.source_key.endswith(ends)))
    return {row.conversation: row.source_key.removesuffix(ends) for row in found}


def erase(conn: Connection, prefix: str) -> None:
    """Erase the rows whose keys begin so, wherever they were shown."""
    conn.execute(delete(outbox).where(*begins_with(prefix)))


def begins_with(prefix: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Match rows by the beginning of their key: a range, since for LIKE SQLite reads all keys."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return outbox.c.source_key >= prefix, outbox.c.source_key < end


def is_over(source_key: str) -> bool:
    """Whether the row of this key shows nothing: it takes the buttons off a question."""
    return source_key.startswith("inquiry:") and source_key.endswith(":over:1")


def drop_unsent(conn: Connection, conversation_id: int, turn_id: int) -> None:
    """Drop a turn's rows that were not shown."""
    its = (outbox.c.conversation == conversation_id, outbox.c.turn_id == turn_id)
    unseen = update(outbox).where(*its, is_unsent, outbox.c.state == "pending")
    conn.execute(unseen.values(state="dropped"))


def all_sent(conn: Connection, conversation_id: int) -> bool:
    """Whether the conversation has no unsent row."""
    return not _is_any(conn, outbox.c.conversation == conversation_id, is_unsent)


def is_waiting(conn: Connection, conversation_id: int, key_start: str) -> bool:
    """Whether a conversation has an unsent row with this prefix in its key."""
    here = (outbox.c.conversation == conversation_id, is_unsent)
    return _is_any(conn, *here, outbox.c.source_key.startswith(key_start, autoescape=True))


def is_shown(conn: Connection, prefix: str) -> bool:
    """Whether any of the rows whose keys begin so was shown."""
    return _is_any(conn, *begins_with(prefix), outbox.c.state == "sent")


def has_dead(conn: Connection, conversation_id: int) -> bool:
    """Whether a conversation has a dead letter that is still on the list."""
    return _is_any(conn, outbox.c.conversation == conversation_id, outbox.c.state == "dead")


def _is_any(conn: Connection, *its: ColumnElement[bool]) -> bool:
    return conn.scalar(select(outbox.c.seq).where(*its).limit(1)) is not None


def newest_refs(conn: Connection, conversation_id: int) -> frozenset[str]:
    """Return the platform's ids of what was shown last in a conversation."""
    shown = (outbox.c.conversation == conversation_id, outbox.c.platform_ref.is_not(None))
    refs = select(outbox.c.platform_ref).where(*shown).order_by(outbox.c.seq.desc())
    return frozenset(conn.scalars(refs.limit(_RECENT)))


def choices_of(choices: str | None) -> tuple[Choice, ...]:
    """Return the buttons in a row's column."""
    return tuple(Choice(*pair) for pair in orjson.loads(choices)) if choices else ()
