"""Attachments: files that came with messages or that tools made, stored in parts.

Life of one that came in: pending → stored or failed. The intake enters it with its message, it is
fetched (gateway/agent_ports/files.py), and becomes content of a turn
(message_content.py). One that a tool made is stored at once; its turn's commit shows it.
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
"""A file that is fetched is stored in a transaction for each such part (decision 002)."""
NAME_CHARS = 120
OF_A_STRANGER = "it is from somebody who was not let in, so it was not fetched"
"""For the model: why the file of a quoted or forwarded message is missing."""
_MIME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,95}")
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control and formatting characters, which would affect the text around a name."""


@dataclass(frozen=True, slots=True)
class AwaitedFile:
    """A file to fetch, of the inbox entry `inbox_seq`; `failures`: attempts that were begun."""

    id: int
    conversation: int
    inbox_seq: int
    address: Address
    attachment: Attachment
    failures: int


class StoredFile(NamedTuple):
    """A file that came with a message or that a tool made, in any state.

    Attributes:
        inbox_seq: The message it came with; None for one that a tool of `turn_id` made.
        size_bytes: As the platform said; exact once it is stored.
        state: pending, stored or failed.
        error: Why it failed, in words for the model.
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
        """Its size, once it is stored."""
        return self.size_bytes or 0


def append(
    conn: Connection,
    conversation_id: int,
    inbox_seq: int,
    attachments: Sequence[Attachment],
    limit_bytes: int,
    strangers: Collection[str] = (),
) -> None:
    """Enter the files of a message; what came with its bytes is stored at once.

    Args:
        limit_bytes: Larger ones are entered as failed.
        strangers: Authors who may not act; theirs are entered as failed, too.
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
            # Strangers choose both, and both are in prompts and in the headers of downloads.
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
    """Return a content in pieces of at most `PART_BYTES`, at least one."""
    starts = range(0, max(1, len(content)), PART_BYTES)
    return (content[start : start + PART_BYTES] for start in starts)


def too_large(limit_bytes: int) -> str:
    """Return why a file is not taken, in words for the model."""
    if limit_bytes == 0:
        return "files are not taken here"
    return f"it is larger than the limit of {size_text(limit_bytes)}"


def next_pending(conn: Connection, account: tuple[str, str], limit: int) -> list[AwaitedFile]:
    """Return the first awaited file of each conversation of this (platform, account).

    Those that were tried least come first, then the oldest.
    """
    values = {"platform": account[0], "account": account[1], "limit": limit}
    return [_pending(row) for row in conn.execute(_NEXT_PENDING, values)]


def _awaited(*columns: Any) -> Select[Any]:
    its_message = (inbox.c.conversation == attachment.c.conversation) & (
        inbox.c.seq == attachment.c.inbox_seq
    )
    waits = (file_is_awaited, is_pending, inbox.c.state == "queued")
    return select(*columns).select_from(attachment).join(inbox, its_message).where(*waits)


# One of each conversation: a message with many files must not delay other chats.
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
    """Return the given files that are not stored and for which no message waits."""
    awaited = _awaited(attachment.c.id)
    query = select(attachment.c.id).where(
        file_is_awaited, attachment.c.id.in_(attachment_ids), attachment.c.id.not_in(awaited)
    )
    return list(conn.scalars(query))


def attempt(conn: Connection, attachment_id: int) -> int:
    """Count an attempt before it begins, since it may kill the process; returns their number.

    0 if nothing waits for the file any more.
    """
    awaited = _awaited(attachment.c.id).correlate(None)
    this = (attachment.c.id == attachment_id, attachment.c.id.in_(awaited))
    counted = update(attachment).where(*this).values(failures=attachment.c.failures + 1)
    return conn.scalar(counted.returning(attachment.c.failures)) or 0


def store_part(conn: Connection, attachment_id: int, n: int, body: bytes) -> bool:
    """Store one piece; the first takes those of an earlier attempt away.

    Returns False if nothing waits for the file any more: it is stored, failed or erased.
    """
    awaited = select(attachment.c.id).where(attachment.c.id == attachment_id, file_is_awaited)
    if conn.execute(awaited).first() is None:
        return False
    if n == 0:
        conn.execute(delete(attachment_part).where(attachment_part.c.attachment == attachment_id))
    conn.execute(attachment_part.insert().values(attachment=attachment_id, n=n, body=body))
    return True


def finish(conn: Connection, attachment_id: int, size_bytes: int, sha256: str) -> None:
    """Note that all parts of a file are stored, and let its conversation go on."""
    _change(conn, attachment_id, state="stored", size_bytes=size_bytes, sha256=sha256, error=None)
    _go_on(conn, attachment_id)


def fail(conn: Connection, attachment_id: int, error: str) -> bool:
    """Note that a file failed, with an error for the model, and let its conversation go on.

    Returns whether it was awaited until now.
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
    """Make the conversation of a file ready, if that was the last that it waited for."""
    query = select(attachment.c.conversation).where(attachment.c.id == attachment_id)
    conversation_id = conn.scalar(query)
    if conversation_id is None:
        return
    # Else each of two files at once could find the other one awaited.
    conversations.hold(conn, conversation_id)
    if leases.has_work(conn, conversation_id):
        conversations.make_ready(conn, conversation_id)


def offer(
    conn: Connection, turn: Turn, name: str, mime: str, content: bytes, most: int
) -> StoredFile | None:
    """Store a file that a tool of this turn made; the same again is one file.

    Returns None if the turn has made `most` files already. Raises `LeaseLost` if another worker has
    the conversation.
    """
    leases.fence(conn, turn.lease)
    name, sha256 = clean_name(name), hashlib.sha256(content).hexdigest()
    made = _made_by(conn, turn.id)
    # A call that runs again after a crash offers the same bytes; they must not be shown twice.
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
    """Store a text that Parley itself shows as a file; returns its id.

    It belongs to a row of the outbox and to no turn, whose commit would show it once more.
    """
    given = Attachment(name=name, kind="file", mime="text/markdown")
    attachment_id = _insert(conn, conversation_id, given)
    _store(conn, attachment_id, content)
    return attachment_id


def of_turn(conn: Connection, turn_id: int) -> list[StoredFile]:
    """Return the files that the tools of a turn made, in order."""
    return [_stored(row) for row in _made_by(conn, turn_id)]


def _made_by(conn: Connection, turn_id: int) -> Sequence[Row[Any]]:
    its = (attachment.c.turn_id == turn_id, attachment.c.state == "stored")
    return conn.execute(select(attachment).where(*its).order_by(attachment.c.id)).all()


def of_messages(
    conn: Connection, conversation_id: int, inbox_seqs: Sequence[int]
) -> list[StoredFile]:
    """Return all files that came with these messages, in order."""
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
    """Return a stored file of this conversation, and of no other, with its bytes."""
    query = select(attachment.c.id).where(
        attachment.c.id == attachment_id,
        attachment.c.state == "stored",
        attachment.c.conversation == conversation_id,
    )
    return None if conn.scalar(query) is None else outgoing(conn, attachment_id)


def outgoing(conn: Connection, attachment_id: int) -> OutgoingFile:
    """Return a stored file with its bytes."""
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
    """Return a file name for display: one line, no path, nothing unseen, at most 120 characters."""
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
    """Return a media type without parameters; "" for an invalid one."""
    plain = mime.partition(";")[0].strip().lower()
    return plain if _MIME.fullmatch(plain) else ""


def size_text(size_bytes: int) -> str:
    """Return a size for people: "512 bytes", "34 KB", "3.2 MB"."""
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    if size_bytes < 999_500:
        return f"{size_bytes / 1000:.0f} KB"
    return f"{size_bytes / 1_000_000:.1f}".removesuffix(".0") + " MB"
