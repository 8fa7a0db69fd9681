"""Attachments: files that came with messages or that tools made, stored in parts."""

from sqlalchemy import Connection, select

from adapters.messages import OutgoingFile
from gateway.storage.models import attachment, attachment_part


def outgoing(conn: Connection, attachment_id: int) -> OutgoingFile:
    """Return a stored file with its bytes."""
    row = conn.execute(select(attachment).where(attachment.c.id == attachment_id)).one()
    parts = conn.scalars(
        select(attachment_part.c.body)
        .where(attachment_part.c.attachment == attachment_id)
        .order_by(attachment_part.c.n)
    )
    return OutgoingFile(row.name, row.mime, b"".join(parts))
