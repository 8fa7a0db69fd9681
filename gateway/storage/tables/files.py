"""Files of messages and tools, and where their bytes lie."""

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    Table,
    Text,
    and_,
    literal_column,
)

from gateway.storage.statements import Word
from gateway.storage.tables.columns import (
    Whole,
    conversation_column,
    id_column,
    metadata,
    partial_index,
)

# Files that came with a message or that a tool made; their bytes are the parts, in order. Where
# those lie in the object store the parts are their beginning.
attachment = Table(
    "attachment",
    metadata,
    id_column(),
    conversation_column(),
    Column("inbox_seq", Whole),  # the message it came with; NULL for one that a tool made
    Column("turn_id", Whole),  # the turn that made it; NULL for one that came in
    Column("name", Text, nullable=False),
    Column("kind", Word, nullable=False),  # image | voice | audio | video | file
    Column("mime", Text, nullable=False),
    Column("size_bytes", Whole),  # as the platform said; exact once it is stored
    Column("sha256", Text),  # hex, once it is stored
    Column("object", Whole),  # id of the stored_object with its bytes; NULL: they are here
    Column("ref", Text, nullable=False),  # the platform's handle
    Column("state", Word, nullable=False),  # pending | stored | failed
    Column("failures", Whole, nullable=False, server_default="0"),
    Column("error", Text),  # why it is not there, in words for the model
    Column("at", Double, nullable=False),
    Index("ix_attachment_conversation_inbox_seq", "conversation", "inbox_seq"),
    sqlite_autoincrement=True,
)
file_is_awaited = attachment.c.state == "pending"
"""A file that is not there yet."""
partial_index("ix_attachment_pending", attachment.c.conversation, where="state = 'pending'")
Index("ix_attachment_turn_id", attachment.c.turn_id)
LARGE_BYTES = 262_144
"""Files of more bytes are moved to the object store, where there is one."""
is_large = and_(
    attachment.c.state == "stored",
    attachment.c.object.is_(None),
    attachment.c.size_bytes > literal_column(str(LARGE_BYTES)),
)
"""A large file whose bytes lie in the database."""
partial_index(
    "ix_attachment_large",
    attachment.c.id,
    where="state = 'stored' AND object IS NULL AND size_bytes > 262144",
)
partial_index("ix_attachment_object", attachment.c.object, where="object IS NOT NULL")

# What was put into the object store (gateway/storage/conversation/stored_objects.py).
stored_object = Table(
    "stored_object",
    metadata,
    id_column(),
    Column("name", Text, nullable=False, unique=True),  # in the store, below its prefix
    Column("sha256", Text, nullable=False),
    Column("state", Word, nullable=False),  # coming | there | leaving
    Column("at", Double, nullable=False),  # when the state was entered, or last tried
    Index("ix_stored_object_sha256", "sha256"),
    Index("ix_stored_object_state", "state", "id"),
    sqlite_autoincrement=True,
)

attachment_part = Table(
    "attachment_part",
    metadata,
    Column("attachment", Whole, ForeignKey("attachment.id"), primary_key=True),
    Column("n", Whole, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
