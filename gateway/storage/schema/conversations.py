"""Conversations: segments, messages, files, search; turns, their steps, costs and questions."""

from sqlalchemy import (
    DDL,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    event,
    false,
)

from gateway.storage.schema.columns import (
    Whole,
    Word,
    conversation_column,
    id_column,
    metadata,
    of_key,
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
    Column("report_model", Text),  # the model that reported
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

# View plans of segments. Apart from their rows, which each call of a model rewrites: a plan has
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
    Column("source_tokens", Whole, nullable=False),  # of the messages in it
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

# Vectors of messages, if the search has a model of embeddings (storage/search/query.py).
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


turn = Table(
    "turn",
    metadata,
    id_column(),
    conversation_column(),
    Column("session_id", Whole, ForeignKey("session.id"), nullable=False),
    Column("first_seq", Whole, nullable=False),
    Column("upto_seq", Whole, nullable=False),
    Column("state", Word, nullable=False),  # running | done | cancelled | dead | dropped
    Column("outcome", Text),
    Column("error", Text),
    Column("epoch", Whole, nullable=False),
    Column("attempt", Whole, nullable=False),
    Column("progress", Whole, nullable=False, server_default="0"),
    Column("attempt_progress", Whole, nullable=False, server_default="0"),
    Column("preview_ref", Text),  # "?" and a nonce from before it is posted until its id is known
    Column("model", Text),
    Column("iterations", Whole, nullable=False, server_default="0"),
    Column("tool_calls", Whole, nullable=False, server_default="0"),
    Column("input_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_read_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_write_tokens", Whole, nullable=False, server_default="0"),
    Column("output_tokens", Whole, nullable=False, server_default="0"),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("usd", Double),  # cost of its calls; NULL if that of any is unknown
    Column("senders", Text),  # JSON of ["platform:sender id", …]: whose words its question holds
    Column("attempt_at", Double),  # when its last attempt began; NULL: with the turn
    # Deaths of the process (gateway/storage/queue/blame.py):
    Column("deaths", Whole, nullable=False, server_default="0"),
    Column("blamed", Whole, nullable=False, server_default="0"),
    Column("quiet_s", Double, nullable=False, server_default="0"),
    Column("troubled_at", Double),
    Column("retries", Whole),  # the dead turn that it asks again
    sqlite_autoincrement=True,
)
is_running = turn.c.state == "running"
"""Not finished; at most one per conversation."""

still_runs = of_key(turn.c.state, "''") == "running"
"""The same of a turn that is found by its id."""
Index("ix_turn_conversation_id", turn.c.conversation, turn.c.id)
# For the foreign key: without it each segment that is erased costs a look at all turns.
Index("ix_turn_session_id", turn.c.session_id)
# Unique: the database itself refuses a second running turn, whatever the code believes.
partial_index("uq_turn_running", turn.c.conversation, where="state = 'running'", unique=True)
partial_index("ix_turn_dead", turn.c.finished_at, turn.c.id, where="state = 'dead'")

step = Table(
    "step",
    metadata,
    Column("turn_id", Whole, ForeignKey("turn.id"), primary_key=True),
    Column("n", Whole, primary_key=True),
    Column("kind", Word, nullable=False),  # model | tool
    Column("name", Text, nullable=False),
    Column("call_id", Text),  # of a tool's call; of a model's: that of the ledger
    Column("effect", Text),
    Column("request_hash", Text),
    Column("state", Word, nullable=False),  # started | done
    # JSON: status of a tool; usage of a model's call before version 0.6 (now in the ledger only)
    Column("result", Text),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)
is_of_tool = step.c.kind == "tool"
"""A step that called a tool, not a model."""
partial_index("ix_step_tool", step.c.turn_id, step.c.name, step.c.at, where="kind = 'tool'")

# One row for each call of a model; nothing but erasure changes them, and nothing refers to them.
ledger = Table(
    "ledger",
    metadata,
    id_column(),
    conversation_column(),
    Column("turn_id", Whole),  # NULL for what is done in the background
    Column("call_id", Text),  # NULL for calls of older versions
    Column("sender", Text, nullable=False, server_default=""),  # "platform:sender id"
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("purpose", Text, nullable=False),  # answer | summary | embedding | memory | lost
    Column("input_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_read_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_write_5m_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_write_1h_tokens", Whole, nullable=False, server_default="0"),
    Column("output_tokens", Whole, nullable=False, server_default="0"),
    Column("estimated", Boolean, nullable=False, server_default=false()),
    Column("usd", Double),  # NULL for an unknown price or unknown tokens
    Column("at", Double, nullable=False),
    Column("before_tokens", Whole, nullable=False, server_default="0"),  # the prompt before it
    Index("ix_ledger_conversation_turn_id", "conversation", "turn_id"),
    # For budgets, which look at a day before each call, and for reports.
    Index("ix_ledger_at_usd", "at", "usd"),
    Index("ix_ledger_sender_at_usd", "sender", "at", "usd"),
)

# What a person is asked while a turn waits: an approval, or a question of the agent.
inquiry = Table(
    "inquiry",
    metadata,
    id_column(),
    conversation_column(),  # where it is asked; for a delegated child that of its parent
    Column("turn_id", Whole, nullable=False),  # the turn whose call waits
    Column("call_id", Text, nullable=False),
    Column("kind", Word, nullable=False),  # approval | clarify
    Column("tool", Text, nullable=False),
    Column("definition", Text, nullable=False),  # approval: digest of the tool as it was offered
    Column("question", Text, nullable=False),
    Column("choices", Text, nullable=False, server_default="[]"),  # JSON [label, …]
    Column("state", Word, nullable=False),  # pending | answered | expired | cancelled
    Column("answer", Text),  # approval: once | conversation | deny; else what was said
    Column("answered_by", Text),  # "platform:sender id"
    Column("expires_at", Double, nullable=False),
    Column("at", Double, nullable=False),
    Column("answered_at", Double),
    Column("for_owners", Boolean, nullable=False, server_default=false()),  # they alone may approve
    Column("rule", Text),  # approval: the row of the policy by which it is asked
    UniqueConstraint("turn_id", "call_id"),
    Index("ix_inquiry_conversation", "conversation"),
    sqlite_autoincrement=True,
)
is_unanswered = inquiry.c.state == "pending"
"""Its turn waits."""
partial_index("ix_inquiry_pending", inquiry.c.conversation, where="state = 'pending'")
