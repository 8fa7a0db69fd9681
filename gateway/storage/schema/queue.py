"""Tables of the inbox, the outbox, replicas, and alerts."""

from sqlalchemy import Boolean, Column, Double, Index, Table, Text, UniqueConstraint, false

from gateway.storage.schema.columns import (
    Whole,
    Word,
    conversation_column,
    id_column,
    metadata,
    partial_index,
)

replica = Table(
    "replica",
    metadata,
    id_column(),
    Column("name", Text, nullable=False),
    Column("heartbeat_until", Double, nullable=False),
    sqlite_autoincrement=True,
)

# Leases to receive for an account of a platform; on PostgreSQL alone.
adapter_lease = Table(
    "adapter_lease",
    metadata,
    Column("platform", Text, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("shard", Whole, primary_key=True),
    Column("owner", Whole),  # NULL: no replica receives
    Column("epoch", Whole, nullable=False, server_default="0"),
)

# One row: which database this is, and how many commits it has had (gateway/storage/engine.py).
identity = Table(
    "identity",
    metadata,
    Column("name", Text, primary_key=True),
    Column("commits", Whole, nullable=False),
)

quarantine = Table(
    "quarantine",
    metadata,
    id_column(),
    Column("source", Text, nullable=False),
    Column("dedupe_key", Text, nullable=False),
    Column("raw", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("chat", Text),  # a stranger's; NULL for what could not be decoded
    UniqueConstraint("source", "dedupe_key"),
)
partial_index("ix_quarantine_raw_at", quarantine.c.at, where="raw != ''")

inbox = Table(
    "inbox",
    metadata,
    conversation_column(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("source", Text, nullable=False),
    Column("dedupe_key", Text, nullable=False),
    Column("kind", Word, nullable=False),  # message | command | edit | overheard
    Column("sender", Text, nullable=False),
    Column("sender_name", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("message_ref", Text),
    Column("raw", Text),  # NULL once pruned
    # queued | taken | done | cancelled | refused | dead | noted (told with the next turn)
    Column("state", Word, nullable=False),
    Column("turn_id", Whole),
    Column("at", Double, nullable=False),
    Column("command", Text),  # its name (gateway/commands); NULL for what is none of them
    Column("authors", Text),  # JSON [id, …] of quoted or forwarded authors; NULL for none
    UniqueConstraint("source", "dedupe_key"),
)
# Partial: else SQLite would read a conversation's whole inbox by it to find what waits.
partial_index(
    "ix_inbox_conversation_message_ref",
    inbox.c.conversation,
    inbox.c.message_ref,
    where="message_ref IS NOT NULL",
)
# Added to narrower conditions (state = 'queued') as well: SQLite uses a partial index only if its
# words are in the statement.
is_pending = inbox.c.state.in_(("queued", "taken"))
"""Waits or is being answered."""
partial_index(
    "ix_inbox_pending", inbox.c.conversation, inbox.c.seq, where="state IN ('queued', 'taken')"
)
is_noted = inbox.c.state == "noted"
"""Context of the next turn: what was overheard, or changed after it was answered."""
partial_index("ix_inbox_noted", inbox.c.conversation, inbox.c.seq, where="state = 'noted'")
is_said = inbox.c.kind.in_(("message", "command"))
partial_index(
    "ix_inbox_sender_at", inbox.c.sender, inbox.c.at, where="kind IN ('message', 'command')"
)
partial_index("ix_inbox_raw_at", inbox.c.at, where="raw IS NOT NULL")

cursor = Table(
    "cursor",
    metadata,
    Column("source", Text, primary_key=True),
    Column("position", Whole, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    conversation_column(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("source_key", Text, nullable=False, unique=True),
    Column("inbox_seq", Whole, nullable=False),  # what it answers; orders it among the inbox rows
    Column("turn_id", Whole),
    Column("payload", Text, nullable=False),
    Column("markdown", Text),  # NULL: equal to the payload
    Column("preview_ref", Text),
    Column("reply_to", Text),
    Column("choices", Text),  # JSON [[label, text], …]; NULL for none
    Column("attachment", Whole),  # id of the file that the row shows
    Column("state", Word, nullable=False),  # pending | sending | unknown | sent | dead | dropped
    Column("doubt", Boolean, nullable=False, server_default=false()),  # may have been shown
    Column("failures", Whole, nullable=False, server_default="0"),
    Column("sender", Whole),  # the replica that is sending
    Column("next_at", Double, nullable=False, server_default="0"),
    Column("platform_ref", Text),
    Column("resent", Boolean, nullable=False, server_default=false()),
    Column("error", Text),
    Column("at", Double, nullable=False),
    Column("sent_at", Double),
)
UNSENT = ("pending", "sending", "unknown")
is_unsent = outbox.c.state.in_(UNSENT)
"""Still to be shown, or in doubt."""
partial_index(
    "ix_outbox_unsent",
    outbox.c.conversation,
    outbox.c.seq,
    where="state IN ('pending', 'sending', 'unknown')",
)
partial_index(
    "ix_outbox_dead", outbox.c.at, outbox.c.conversation, outbox.c.seq, where="state = 'dead'"
)

# News between replicas (gateway/storage/queue/replicas.py). With one process they stay empty; those
# of chats are UNLOGGED on PostgreSQL (migration 0035): a crash may lose them.
news = Table(
    "news",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("n", Whole, nullable=False),  # how often it has happened
)
chat_watch = Table(
    "chat_watch",
    metadata,
    Column("session_key", Text, primary_key=True),  # of a chat that may not have begun
    Column("replica", Whole, primary_key=True, autoincrement=False),
    Column("until", Double, nullable=False),
)
chat_preview = Table(
    "chat_preview",
    metadata,
    Column("session_key", Text, primary_key=True),
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
)

# Troubles that are reported to owners, once when they begin and once when they are over.
alert = Table(
    "alert",
    metadata,
    id_column(),
    Column("kind", Text, nullable=False),  # the id of its finding
    Column("subject", Text, nullable=False),  # what has it: an account, a model, a disk
    Column("text", Text, nullable=False),  # what happened, in a sentence
    Column("since", Double, nullable=False),
    Column("at", Double, nullable=False),  # when it was noticed
    Column("seen_at", Double, nullable=False),  # when a replica last saw it
    Column("told_at", Double),  # NULL: not reported in chats
    Column("over_at", Double),
    Column("over_told_at", Double),
    Column("posted", Whole, nullable=False, server_default="0"),  # 1: its begin, 2: its end
    Column("post_at", Double, nullable=False, server_default="0"),  # not before
    Index("ix_alert_at", "at"),
    sqlite_autoincrement=True,
)
is_open = alert.c.over_at.is_(None)
"""The trouble is still there."""
partial_index("ux_alert_open", alert.c.kind, alert.c.subject, where="over_at IS NULL", unique=True)
