"""Conversations: their segments, what these begin with and were cut to, messages and files."""

from sqlalchemy import DDL, Column, Double, ForeignKey, Index, LargeBinary, Table, Text, event

from gateway.storage.tables.columns import (
    Whole,
    Word,
    conversation_column,
    id_column,
    metadata,
    partial_index,
    session_column,
)

conversation = Table(
    "conversation",
    metadata,
    id_column(),
    Column("platform", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("thread", Text),
    Column("user", Text),
    Column("title", Text, nullable=False, server_default=""),
    Column("active_session_id", Whole),
    Column("created_at", Double, nullable=False),
    Column("inbox_head", Whole, nullable=False, server_default="0"),
    Column("outbox_head", Whole, nullable=False, server_default="0"),
    Column("message_head", Whole, nullable=False, server_default="0"),
    Column("owner", Whole, ForeignKey("replica.id")),
    Column("epoch", Whole, nullable=False, server_default="0"),
    Column("ready_no", Whole),
    Column("turn_not_before", Double, nullable=False, server_default="0"),
    Column("cancel_upto_seq", Whole, nullable=False, server_default="0"),
    Column("parent_turn_id", Whole),  # of a delegated child: the turn that waits for it
    Column("parent_call_id", Text),  # and the call of that turn
    Column("model", Text),  # chosen with `/model`; NULL for the settings' own
    Column("searched_seq", Whole, nullable=False, server_default="0"),  # newest in the index
    sqlite_autoincrement=True,
)
partial_index(
    "uq_conversation_parent_turn_id_parent_call_id",
    conversation.c.parent_turn_id,
    conversation.c.parent_call_id,
    where="parent_turn_id IS NOT NULL",
    unique=True,
)
partial_index("ix_conversation_unsearched", conversation.c.id, where="message_head > searched_seq")
partial_index(
    "ix_conversation_platform_user",
    conversation.c.platform,
    conversation.c.user,
    where='"user" IS NOT NULL',
)
partial_index(
    "ix_conversation_ready", conversation.c.ready_no, where="owner IS NULL AND ready_no IS NOT NULL"
)
partial_index("ix_conversation_owner", conversation.c.owner, where="owner IS NOT NULL")

alias = Table(
    "alias",
    metadata,
    Column("session_key", Text, primary_key=True),
    conversation_column(),
    Index("ix_alias_conversation", "conversation"),
)

# Texts that many segments share, each once (gateway/storage/conversation/sessions.py).
prompt_text = Table(
    "prompt_text",
    metadata,
    id_column(),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

# What the requests of segments begin with.
prompt_base = Table(
    "prompt_base",
    metadata,
    id_column(),
    Column("digest", LargeBinary, nullable=False, unique=True),  # of all that follows
    Column("prompt_id", Whole, ForeignKey("prompt_text.id"), nullable=False),
    Column("tools_id", Whole, ForeignKey("prompt_text.id")),  # JSON, byte for byte as it began
    Column("layers", Text, nullable=False),  # JSON [[layer, characters], …] of the prompt, in order
    Column("inputs", Text),  # JSON of what prompt and tools were made from
    Index("ix_prompt_base_prompt_id", "prompt_id"),
    Index("ix_prompt_base_tools_id", "tools_id"),
    sqlite_autoincrement=True,
)

session = Table(
    "session",
    metadata,
    id_column(),
    conversation_column(),
    Column("parent_session_id", Whole, ForeignKey("session.id"), unique=True),
    Column("start_reason", Text, nullable=False),
    Column("end_reason", Text),
    Column("prompt_tokens", Whole),  # last reported by the model
    Column("prompt_upto_seq", Whole),  # newest message that the report covers
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("number", Whole, nullable=False, server_default="1"),  # place in its lineage
    Column("prompt_output_tokens", Whole),  # what the last reported call wrote
    Column("report_model", Text),  # who reported
    Column("token_ratio", Double, nullable=False, server_default="1"),  # reported / estimated
    Column("planner_state", Text, nullable=False, server_default="{}"),  # JSON
    Column("prefix", Text),  # JSON of the fingerprint of the last request
    Column("moved", Text),  # why the next request may begin otherwise than that one
    Column("base_id", Whole, ForeignKey("prompt_base.id")),  # NULL until its first turn
    Column("own_prompt", Text),  # the end of its system prompt, behind that of the base
    Column("origins", Text),  # JSON [[kind, which], …]: whose words its lineage holds; NULL: none
    Index("ix_session_conversation", "conversation"),
    sqlite_autoincrement=True,
)
# Whether a base is still used is asked for each segment that is erased.
partial_index("ix_session_base_id", session.c.base_id, where="base_id IS NOT NULL")

# What a segment shows. Apart from its row, which each call of a model writes anew: a plan holds
# summaries, and SQLite writes a row whose size changes with all of its pages.
view_plan = Table(
    "view_plan",
    metadata,
    session_column("session_id", primary_key=True),
    Column("body", Text, nullable=False),  # versioned JSON (agent/view/view.py)
)

compaction = Table(
    "compaction",
    metadata,
    id_column(),
    conversation_column(),
    session_column("parent_session_id", unique=True),
    session_column("child_session_id", unique=True),
    Column("trigger", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("level", Text, nullable=False),
    Column("messages_before", Whole, nullable=False),
    Column("messages_after", Whole, nullable=False),
    Column("tokens_before", Whole, nullable=False),
    Column("tokens_after", Whole, nullable=False),  # estimated
    Column("tokens_after_reported", Whole),  # by the first call after it
    Column("summary_model", Text),
    Column("retained_share", Double),
    Column("cache_tokens_lost", Whole, nullable=False),
    Column("failure", Text),
    Column("duration_ms", Whole, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_compaction_conversation", "conversation"),
    sqlite_autoincrement=True,
)

summary_candidate = Table(
    "summary_candidate",
    metadata,
    session_column("session_id", primary_key=True),
    conversation_column(),
    Column("first_seq", Whole, nullable=False),
    Column("last_seq", Whole, nullable=False),
    Column("text", Text, nullable=False),
    Column("source", Text, nullable=False),  # model | extract
    Column("model", Text),
    Column("at", Double, nullable=False),
    Index("ix_summary_candidate_conversation", "conversation"),
)

# Summaries of parts that are kept until the whole is written: they are paid for once.
summary_part = Table(
    "summary_part",
    metadata,
    # No reference: the program of the version before does not erase from here.
    Column("conversation", Whole, primary_key=True, autoincrement=False),
    Column("key", Text, primary_key=True),  # a digest of the part's texts
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_summary_part_at", "at"),
)

# Nodes of the engine `lcm`: a leaf summarises messages, a higher one summarises its children.
node = Table(
    "node",
    metadata,
    conversation_column(primary_key=True),
    Column("number", Whole, primary_key=True),  # from 1 on in each conversation
    Column("level", Whole, nullable=False),  # 0 for a leaf
    Column("first_seq", Whole, nullable=False),
    Column("last_seq", Whole, nullable=False),
    Column("children", Text, nullable=False, server_default="[]"),  # JSON [number, …]
    Column("text", Text, nullable=False),
    Column("source", Text, nullable=False),  # model | extract | pointer
    Column("tokens", Whole, nullable=False),
    Column("source_tokens", Whole, nullable=False),  # of what it stands for
    Column("at", Double, nullable=False),
)

message = Table(
    "message",
    metadata,
    conversation_column(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("session_id", Whole, nullable=False),
    Column("turn_id", Whole),
    Column("role", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("tokens", Whole, nullable=False),
    Column("at", Double, nullable=False),
)

blob = Table(
    "blob",
    metadata,
    id_column(),
    conversation_column(),
    Column("turn_id", Whole),
    Column("body", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_blob_conversation", "conversation"),
    sqlite_autoincrement=True,
)

# What the full-text index (search_index, see gateway/storage/search/index.py) holds: its rows have
# no columns of their own, and their ids are made of conversation and seq.
search_row = Table(
    "search_row",
    metadata,
    conversation_column(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("role", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("terms", Whole, nullable=False),  # how many different ones
    sqlite_with_rowid=False,
)
SEARCH_INDEX = "search_index"
"""Begins the names of the tables in which SQLite keeps it, too."""
event.listen(
    search_row,
    "after_create",
    # No text, no positions: 30 bytes for a message. Terms come ready-made, separated by spaces.
    DDL(  # type: ignore[no-untyped-call]
        f"CREATE VIRTUAL TABLE {SEARCH_INDEX} USING fts5(terms, content='', columnsize=0,"
        " detail=none, tokenize=\"ascii tokenchars '='\")"
    ).execute_if(dialect="sqlite"),
)
event.listen(
    search_row,
    "after_create",
    DDL(  # type: ignore[no-untyped-call]
        f"CREATE TABLE {SEARCH_INDEX} (id BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL);"
        # Without a list of pending entries, which each look for a term would read whole.
        f" CREATE INDEX {SEARCH_INDEX}_terms ON {SEARCH_INDEX} USING gin (terms)"
        " WITH (fastupdate = off)"
    ).execute_if(dialect="postgresql"),
)

# Vectors of messages, where the search has a model of embeddings (storage/search/query.py).
vector = Table(
    "vector",
    metadata,
    conversation_column(primary_key=True, cascades=True),
    Column("seq", Whole, primary_key=True),
    Column("space", Text, nullable=False),  # what it can be compared with: server, model, length
    Column("body", LargeBinary, nullable=False),  # eight bits for each number; none for no vector
    sqlite_with_rowid=False,
)

# The agent's list of what is to be done, as the model wrote it last.
todo = Table(
    "todo",
    metadata,
    conversation_column(primary_key=True),
    Column("items", Text, nullable=False),  # JSON
    Column("first_seq", Whole, nullable=False),  # of the root in which it was written
    Column("at", Double, nullable=False),
)


# Files that came with a message or that a tool made; their bytes are the parts, in order.
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

attachment_part = Table(
    "attachment_part",
    metadata,
    Column("attachment", Whole, ForeignKey("attachment.id"), primary_key=True),
    Column("n", Whole, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
