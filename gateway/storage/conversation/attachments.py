"""Attachments: files from messages or tools, stored in parts.

States of an incoming file: pending → stored or failed. The intake enters it with its message,
gateway/agent_ports/files.py fetches it, message_content.py puts it into a turn. A tool's file is
stored at once and sent with its turn's commit.
"""

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, select, update

from adapters.messages import Address, Attachment, AttachmentKind, OutgoingFile
from gateway.storage.conversation import conversations
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import leases
from gateway.storage.schema import (
    attachment,
    attachment_part,
    conversation,
    file_is_awaited,
    inbox,
    is_pending,
    now_s,
)

PART_BYTES = 1_048_576
"""A fetched file is stored in one transaction per part (decision 002)."""
NAME_CHARS = 120
OF_A_STRANGER = "it is from somebody who was not let in, so it was not fetched"
"""Tells the model why the file of a quoted or forwarded message is missing."""
_MIME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,95}")
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control and formatting characters, which would affect surrounding text."""


@dataclass(frozen=True, slots=True)
class AwaitedFile:
    """A file to fetch for the inbox entry `inbox_seq`; `failures` counts started attempts."""

    id: int
    conversation: int
    inbox_seq: int
    address: Address
    attachment: Attachment
    failures: int


class StoredFile(NamedTuple):
    """A file from a message or a tool, in any state.

    Attributes:
        inbox_seq: Its message; None for a file made by a tool of `turn_id`.
        size_bytes: Size reported by the platform; exact once stored.
        state: "pending", "stored" or "failed".
        error: Why it failed, worded for the model.
    """

    id: int
    inbox_seq: int | None
    turn_id: int | None
    name: str
    kind: AttachmentKind
    mime: str
    size_bytes: int | None
    state: str
    error: str | None

    @property
    def stored_bytes(self) -> int:
        """The size of a stored file, else 0."""
        return self.size_bytes or 0


def append(
    conn: Connection,
    conversation_id: int,
    inbox_seq: int,
    attachments: Sequence[Attachment],
    limit_bytes: int,
    strangers: Collection[str] = (),
) -> None:
    """Enter the files of a message; store those that came with content at once.

    Args:
        limit_bytes: Larger files are entered as failed.
        strangers: Authors who may not act; their files are entered as failed, too.
    """
    for each in attachments:
        size_bytes = each.size_bytes if each.content is None else len(each.content)
        attachment_id = _insert(
            conn, conversation_id, each, inbox_seq=inbox_seq, size_bytes=size_bytes
        )
        if not set(strangers).isdisjoint(each.authors):
            fail(conn, attachment_id, OF_A_STRANGER)
        elif size_bytes is not None and size_bytes > limit_bytes:
            fail(conn, attachment_id, too_large(limit_bytes))
        elif each.content is not None:
            _store(conn, attachment_id, each.content)


def _insert(conn: Connection, conversation_id: int, given: Attachment, **values: int | None) -> int:
    inserted = conn.execute(
        attachment
        .insert()
        .values(
            conversation=conversation_id,
            # Strangers choose both, which appear in prompts and download headers.
            name=clean_name(given.name),
            kind=given.kind,
            mime=clean_mime(given.mime),
            ref=given.ref,
            state="pending",
            at=now_s(),
            **values,
        )
        .returning(attachment.c.id)
    )
    return int(inserted.scalar_one())


def _store(conn: Connection, attachment_id: int, content: bytes) -> None:
    for n, body in enumerate(parts_of(content)):
        store_part(conn, attachment_id, n, body)
    finish(conn, attachment_id, len(content), hashlib.sha256(content).hexdigest())


def parts_of(content: bytes) -> Iterator[bytes]:
    """Split a content into at least one part of at most `PART_BYTES`."""
    starts = range(0, max(1, len(content)), PART_BYTES)
    return (content[start : start + PART_BYTES] for start in starts)


def too_large(limit_bytes: int) -> str:
    """Return the text for the model about a file that is too large."""
    if limit_bytes == 0:
        return "files are not taken here"
    return f"it is larger than the limit of {size_text(limit_bytes)}"


def next_pending(conn: Connection, account: tuple[str, str], limit: int) -> list[AwaitedFile]:
    """Return the next awaited file of each conversation of this (platform, account).

    Sorted by fewest tries, then oldest first.
    """
    values = {"platform": account[0], "account": account[1], "limit": limit}
    return [_pending(row) for row in conn.execute(_NEXT_PENDING, values)]


def _awaited(*columns: Any) -> Select[Any]:
    its_message = (inbox.c.conversation == attachment.c.conversation) & (
        inbox.c.seq == attachment.c.inbox_seq
    )
    waits = (file_is_awaited, is_pending, inbox.c.state == "queued")
    return select(*columns).select_from(attachment).join(inbox, its_message).where(*waits)


# One per conversation, so that a message with many files does not delay other chats.
_NEXT_PENDING = (
    select(
        attachment,
        conversation.c.platform,
        conversation.c.account,
        conversation.c.chat,
        conversation.c.thread,
    )
    .join(conversation, conversation.c.id == attachment.c.conversation)
    .where(
        conversation.c.platform == bindparam("platform"),
        conversation.c.account == bindparam("account"),
        attachment.c.id.in_(
            _awaited(func.min(attachment.c.id)).group_by(attachment.c.conversation)
        ),
    )
    .order_by(attachment.c.failures, attachment.c.id)
    .limit(bindparam("limit"))
)


def _pending(row: Row[Any]) -> AwaitedFile:
    known = Attachment(
        name=row.name, kind=row.kind, mime=row.mime, size_bytes=row.size_bytes, ref=row.ref
    )
    address = Address(row.platform, row.account, row.chat, row.thread)
    return AwaitedFile(row.id, row.conversation, row.inbox_seq, address, known, row.failures)


def dropped(conn: Connection, attachment_ids: Collection[int]) -> list[int]:
    """Return the given unstored files for which no message waits."""
    awaited = _awaited(attachment.c.id)
    query = select(attachment.c.id).where(
        file_is_awaited, attachment.c.id.in_(attachment_ids), attachment.c.id.not_in(awaited)
    )
    return list(conn.scalars(query))


def attempt(conn: Connection, attachment_id: int) -> int:
    """Count an attempt before it starts, since it may kill the process; return the count.

    Return 0 if nothing waits for the file any more.
    """
    awaited = _awaited(attachment.c.id).correlate(None)
    this = (attachment.c.id == attachment_id, attachment.c.id.in_(awaited))
    counted = update(attachment).where(*this).values(failures=attachment.c.failures + 1)
    return conn.scalar(counted.returning(attachment.c.failures)) or 0


def store_part(conn: Connection, attachment_id: int, n: int, body: bytes) -> bool:
    """Store a part; the first deletes the parts of an earlier attempt.

    Return False if the file is no longer awaited: it is stored, failed or erased.
    """
    awaited = select(attachment.c.id).where(attachment.c.id == attachment_id, file_is_awaited)
    if conn.execute(awaited).first() is None:
        return False
    if n == 0:
        conn.execute(delete(attachment_part).where(attachment_part.c.attachment == attachment_id))
    conn.execute(attachment_part.insert().values(attachment=attachment_id, n=n, body=body))
    return True


def finish(conn: Connection, attachment_id: int, size_bytes: int, sha256: str) -> None:
    """Mark a file as stored and resume its conversation."""
    _change(conn, attachment_id, state="stored", size_bytes=size_bytes, sha256=sha256, error=None)
    _go_on(conn, attachment_id)


def fail(conn: Connection, attachment_id: int, error: str) -> bool:
    """Mark a file as failed, with an error for the model, and resume its conversation.

    Return whether it was awaited until now.
    """
    is_new = _change(conn, attachment_id, state="failed", error=error)
    if is_new:
        conn.execute(delete(attachment_part).where(attachment_part.c.attachment == attachment_id))
        _go_on(conn, attachment_id)
    return is_new


def _change(conn: Connection, attachment_id: int, **values: Any) -> bool:
    waiting = update(attachment).where(attachment.c.id == attachment_id, file_is_awaited)
    return conn.execute(waiting.values(**values)).rowcount == 1


def _go_on(conn: Connection, attachment_id: int) -> None:
    """Make a file's conversation ready if it waits for no other file."""
    query = select(attachment.c.conversation).where(attachment.c.id == attachment_id)
    conversation_id = conn.scalar(query)
    if conversation_id is None:
        return
    # Otherwise two concurrent files could each find the other one awaited.
    conversations.hold(conn, conversation_id)
    if leases.has_work(conn, conversation_id):
        conversations.make_ready(conn, conversation_id)


def offer(
    conn: Connection, turn: Turn, name: str, mime: str, content: bytes, most: int
) -> StoredFile | None:
    """Store a file made by a tool of this turn; identical files are stored once.

    Return None if the turn already made `most` files. Raises `LeaseLost` if another worker has the
    conversation.
    """
    leases.fence(conn, turn.lease)
    name, sha256 = clean_name(name), hashlib.sha256(content).hexdigest()
    made = _made_by(conn, turn.id)
    # A call repeated after a crash offers the same bytes, which must not be sent twice.
    same = [each for each in made if (each.name, each.sha256) == (name, sha256)]
    if same:
        return _stored(same[0])
    if len(made) >= most:
        return None
    kind: AttachmentKind = "image" if mime.startswith("image/") else "file"
    given = Attachment(name=name, kind=kind, mime=mime)
    attachment_id = _insert(conn, turn.lease.conversation, given, turn_id=turn.id)
    _store(conn, attachment_id, content)
    made_by, what = (attachment_id, None, turn.id), (name, kind, clean_mime(mime))
    return StoredFile(*made_by, *what, len(content), "stored", None)


def keep(conn: Connection, conversation_id: int, name: str, content: bytes) -> int:
    """Store a text that Parley sends as a file; return its id.

    It belongs to an outbox row, not to a turn, whose commit would send it again.
    """
    given = Attachment(name=name, kind="file", mime="text/markdown")
    attachment_id = _insert(conn, conversation_id, given)
    _store(conn, attachment_id, content)
    return attachment_id


def of_turn(conn: Connection, turn_id: int) -> list[StoredFile]:
    """Return the files made by a turn's tools, in order."""
    return [_stored(row) for row in _made_by(conn, turn_id)]


def _made_by(conn: Connection, turn_id: int) -> Sequence[Row[Any]]:
    its = (attachment.c.turn_id == turn_id, attachment.c.state == "stored")
    return conn.execute(select(attachment).where(*its).order_by(attachment.c.id)).all()


def of_messages(
    conn: Connection, conversation_id: int, inbox_seqs: Sequence[int]
) -> list[StoredFile]:
    """Return all files of these messages, in order."""
    if not inbox_seqs:
        return []
    query = select(attachment).where(
        attachment.c.conversation == conversation_id, attachment.c.inbox_seq.in_(inbox_seqs)
    )
    rows = conn.execute(query.order_by(attachment.c.inbox_seq, attachment.c.id))
    return [_stored(row) for row in rows]


def in_conversation(
    conn: Connection, conversation_id: int, attachment_id: int
) -> OutgoingFile | None:
    """Return a stored file of this conversation with its content, else None."""
    query = select(attachment.c.id).where(
        attachment.c.id == attachment_id,
        attachment.c.state == "stored",
        attachment.c.conversation == conversation_id,
    )
    return None if conn.scalar(query) is None else outgoing(conn, attachment_id)


def outgoing(conn: Connection, attachment_id: int) -> OutgoingFile:
    """Return a stored file with its content."""
    columns = (attachment.c.name, attachment.c.mime)
    row = conn.execute(select(*columns).where(attachment.c.id == attachment_id)).one()
    return OutgoingFile(row.name, row.mime, first_bytes(conn, attachment_id))


def first_bytes(conn: Connection, attachment_id: int, size_bytes: int | None = None) -> bytes:
    """Return the first `size_bytes` of a file; None for all."""
    query = select(attachment_part.c.body).where(attachment_part.c.attachment == attachment_id)
    if size_bytes is not None:
        query = query.where(attachment_part.c.n <= size_bytes // PART_BYTES)
    return b"".join(conn.scalars(query.order_by(attachment_part.c.n)))[:size_bytes]


def _stored(row: Row[Any]) -> StoredFile:
    return StoredFile(*(getattr(row, name) for name in StoredFile._fields))


def clean_name(name: str) -> str:
    """Clean a file name for display: one line, no path, only visible characters, 120 at most."""
    last = re.split(r"[/\\]", name)[-1]
    seen = "".join(" " if unicodedata.category(char) in _UNSEEN else char for char in last)
    plain = " ".join(seen.split()).strip(". ") or "file"
    if len(plain) <= NAME_CHARS:
        return plain
    stem, dot, ending = plain.rpartition(".")
    if not dot or len(ending) > NAME_CHARS // 4:
        return plain[: NAME_CHARS - 1] + "…"
    return stem[: NAME_CHARS - len(ending) - 2] + "…." + ending


def clean_mime(mime: str) -> str:
    """Return a media type without parameters; "" if invalid."""
    plain = mime.partition(";")[0].strip().lower()
    return plain if _MIME.fullmatch(plain) else ""


def size_text(size_bytes: int) -> str:
    """Format a size: "512 bytes", "34 KB", "3.2 MB"."""
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    if size_bytes < 999_500:
        return f"{size_bytes / 1000:.0f} KB"
    return f"{size_bytes / 1_000_000:.1f}".removesuffix(".0") + " MB"
