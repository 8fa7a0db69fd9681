"""Tables of members, web users, notes, the audit log, and MCP."""

from sqlalchemy import Column, Double, ForeignKey, Index, Table, Text

from gateway.storage.schema.columns import Whole, Word, id_column, metadata, partial_index

# People who may talk to the bot, in addition to those in the settings.
member = Table(
    "member",
    metadata,
    Column("platform", Text, primary_key=True),
    Column("sender", Text, primary_key=True),
    Column("sender_name", Text, nullable=False),
    Column("role", Text, nullable=False),  # member | owner
    Column("granted_by", Text, nullable=False),  # "platform:sender", "code" or "command line"
    Column("at", Double, nullable=False),
    Index("ix_member_at", "at", "platform", "sender"),
)

# Users of the web chat; its first owner, who has the token, needs no row.
web_user = Table(
    "web_user",
    metadata,
    Column("name", Text, primary_key=True),  # the sender id of what they write
    Column("role", Text, nullable=False),  # owner | member | guest | removed
    Column("same_as", Text),  # "platform:sender" whose role they have; NULL for their own
    Column("invited_by", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("identity", Text),  # "issuer subject" of whom an identity provider names
    Column("let_in_by", Text),  # the entry of web.oidc.allowed whose role they have
    Index("ux_web_user_identity", "identity", unique=True),
)

# Sign-ins. Secrets are stored as hashes: a copy of the database gives no access.
web_session = Table(
    "web_session",
    metadata,
    id_column(),
    Column("hash", Text, nullable=False, unique=True),
    Column("sender", Text, nullable=False),
    Column("signed_in_by", Text, nullable=False),  # link | token | oidc
    Column("address", Text, nullable=False),
    Column("browser", Text, nullable=False),  # as it calls itself
    Column("at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("ix_web_session_sender", "sender"),
    sqlite_autoincrement=True,
)

# A link for one sign-in; the row goes when it is used.
web_link = Table(
    "web_link",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("sender", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

# One row for each stranger who asks to be let in, and one (sender NULL) for the first owner's code.
pairing = Table(
    "pairing",
    metadata,
    id_column(),
    Column("code", Text, nullable=False, unique=True),
    Column("platform", Text),
    Column("account", Text),
    Column("sender", Text),
    Column("sender_name", Text, nullable=False, server_default=""),
    Column("conversation", Whole, ForeignKey("conversation.id")),  # the stranger's direct chat
    Column("state", Word, nullable=False),  # pending | approved | denied
    Column("expires_at", Double, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_pairing_platform_sender", "platform", "sender"),
    Index("ix_pairing_conversation", "conversation"),
    sqlite_autoincrement=True,
)

# The notebook (gateway/storage/people/notebook.py); scope: "platform:sender id", or
# "conversation:id" for a shared one.
memory = Table(
    "memory",
    metadata,
    id_column(),
    Column("scope", Text, nullable=False),
    Column("target", Text, nullable=False),  # memory | user; waiting: offer
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("value", Text),  # the note that it replaced
    Column("said_by", Text),  # "platform:sender id"
    Column("conversation", Whole),  # of a quote: where it was said
    Column("seq", Whole),  # of the message that holds it
    Column("turn_id", Whole),  # the agent's turn that made it
    Index("ix_memory_scope", "scope"),
    sqlite_autoincrement=True,
)
partial_index("ix_memory_conversation", memory.c.conversation, where="conversation IS NOT NULL")
partial_index("ix_memory_turn_id", memory.c.turn_id, where="turn_id IS NOT NULL")

# The audit log (gateway/storage/audit_log.py).
audit_rows = Table(
    "audit_row",
    metadata,
    id_column(),
    Column("at", Double, nullable=False),
    Column("kind", Word, nullable=False),
    Column("conversation", Whole),  # of what may be erased by now: no foreign key
    Column("said", Text),  # NULL once it was erased
    Index("ix_audit_row_kind_id", "kind", "id"),
    sqlite_autoincrement=True,
)
partial_index(
    "ix_audit_row_conversation", audit_rows.c.conversation, where="conversation IS NOT NULL"
)

# MCP servers that stay confined: their home is older than unconfined programs. The name "" exists
# from the migration until the first start, which enters the servers of its settings.
mcp_confined = Table("mcp_confined", metadata, Column("name", Text, primary_key=True))

# Texts of MCP servers' tools that give orders, and owners' decisions about them.
mcp_text = Table(
    "mcp_text",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("server", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("state", Word, nullable=False),  # asked | agreed | refused
    Column("told_at", Double),  # when an owner saw it; NULL: not yet
    Column("by", Text, nullable=False, server_default=""),  # "platform:sender id"
    Column("at", Double, nullable=False),
)
