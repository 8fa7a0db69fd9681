"""Files whose bytes lie in an object store; the rows say which object that is, and who needs it.

A file is stored in the database first, always. Later it is moved: a row of its object is entered,
its bytes are put into the store, then the file refers to the object and only its beginning stays
here (`attachment_part`). Files with the same bytes share an object. One that no file refers to any
more is `leaving`: it is deleted in the store, then its row goes. Names are given once: a request
that was lost on its way, and comes late, finds nothing that anybody needs.
"""

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, literal_column, select, update

from gateway.storage.conversation.attachments import PART_BYTES
from gateway.storage.schema import attachment, attachment_part, is_large, now_s, stored_object

MOVED_AFTER_S = 60.0
"""The turn that a file came for reads it from the database."""
UPLOAD_S = 300.0
"""Whoever has not put an object into the store by then has failed: another one may try."""
ABANDONED_S = 3600.0
SOME = 100


@dataclass(frozen=True, slots=True)
class Upload:
    """An object that is to be put into the store for a file."""

    id: int
    name: str
    attachment: int


def movable(conn: Connection, after: int) -> list[int]:
    """Return the ids of some large files that lie in the database, from an id on, in order."""
    old = attachment.c.at < now_s() - MOVED_AFTER_S
    query = select(attachment.c.id).where(is_large, old, attachment.c.id > after)
    return list(conn.scalars(query.order_by(attachment.c.id).limit(SOME)))


def begin(conn: Connection, attachment_id: int, keep_bytes: int) -> Upload | None:
    """Enter an object for the bytes of a file.

    Args:
        keep_bytes: As much of its beginning stays in the database.

    Returns:
        None where there is nothing to upload: the bytes are in the store already, and the file
        refers to them from now on; or somebody else is putting them there; or the file is gone.
    """
    sha256 = _locked(conn, attachment_id)
    if sha256 is None:
        return None
    known = (
        select(stored_object)
        .where(stored_object.c.sha256 == sha256, stored_object.c.state != "leaving")
        .order_by(stored_object.c.id)
        .with_for_update()
    )
    rows = conn.execute(known).all()
    for row in rows:
        if row.state == "there":
            _refer(conn, attachment_id, row.id, keep_bytes)
            return None
    for row in rows:
        here = (stored_object.c.id == row.id, stored_object.c.at < now_s() - UPLOAD_S)
        taken = conn.execute(update(stored_object).where(*here).values(at=now_s()))
        # Who failed may have put it there: the same bytes by the same name do no harm.
        return Upload(row.id, row.name, attachment_id) if taken.rowcount else None
    name = f"{sha256[:2]}/{sha256}-{secrets.token_hex(4)}"
    values = {"name": name, "sha256": sha256, "state": "coming", "at": now_s()}
    entered = conn.execute(
        stored_object.insert().values(values).returning(stored_object.c.id)
    ).scalar_one()
    return Upload(int(entered), name, attachment_id)


def _locked(conn: Connection, attachment_id: int) -> str | None:
    """Return the digest of a file that lies in the database; None where it does not any more."""
    here = (attachment.c.id == attachment_id, is_large)
    query = select(attachment.c.sha256).where(*here).with_for_update()
    sha256: str | None = conn.scalar(query)
    return sha256


def finish(conn: Connection, upload: Upload, keep_bytes: int) -> bool:
    """Note that an object is in the store; its file refers to it, and keeps its beginning here.

    Returns:
        False where the file is gone meanwhile: nobody needs the object.
    """
    sha256 = _locked(conn, upload.attachment)
    query = select(stored_object.c.sha256).where(
        stored_object.c.id == upload.id, stored_object.c.state == "coming"
    )
    needed = sha256 is not None and conn.scalar(query.with_for_update()) == sha256
    _change(conn, upload.id, "there" if needed else "leaving")
    if needed:
        _refer(conn, upload.attachment, upload.id, keep_bytes)
    return needed


def _change(conn: Connection, object_id: int, state: str) -> None:
    here = (stored_object.c.id == object_id, stored_object.c.state == "coming")
    conn.execute(update(stored_object).where(*here).values(state=state, at=now_s()))


def _refer(conn: Connection, attachment_id: int, object_id: int, keep_bytes: int) -> None:
    """Have a file refer to an object; what is beyond its beginning goes out of the database."""
    this = attachment.c.id == attachment_id
    conn.execute(update(attachment).where(this).values(object=object_id))
    whole, rest = divmod(keep_bytes, PART_BYTES)
    parts = attachment_part.c.attachment == attachment_id
    conn.execute(delete(attachment_part).where(parts, attachment_part.c.n > whole))
    last = (parts, attachment_part.c.n == whole)
    if rest == 0:
        conn.execute(delete(attachment_part).where(*last))
    else:
        begins = func.substr(attachment_part.c.body, 1, literal_column(str(rest)))
        conn.execute(update(attachment_part).where(*last).values(body=begins))


def abandon(conn: Connection) -> int:
    """Have objects be deleted that nobody has finished, and whose files are gone; returns how many.

    Whoever put them there was killed. Where a file with these bytes waits, it goes on with them.
    """
    waits = select(attachment.c.id).where(is_large, attachment.c.sha256 == stored_object.c.sha256)
    old = (stored_object.c.state == "coming", stored_object.c.at < now_s() - ABANDONED_S)
    gone = update(stored_object).where(*old, ~waits.exists())
    return conn.execute(gone.values(state="leaving", at=now_s())).rowcount


def leaving(conn: Connection) -> list[tuple[int, str]]:
    """Return ids and names of some objects that are to be deleted."""
    columns = (stored_object.c.id, stored_object.c.name)
    query = select(*columns).where(stored_object.c.state == "leaving")
    return [tuple(row) for row in conn.execute(query.order_by(stored_object.c.id).limit(SOME))]


def erase(conn: Connection, object_id: int) -> None:
    """Take note that an object is deleted."""
    here = (stored_object.c.id == object_id, stored_object.c.state == "leaving")
    conn.execute(delete(stored_object).where(*here))
