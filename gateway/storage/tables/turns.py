"""Turns, their steps, what they cost, and what a person is asked while one waits."""

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from gateway.storage.tables.columns import (
    Whole,
    Word,
    conversation_column,
    id_column,
    metadata,
    of_key,
    partial_index,
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
    Column("usd", Double),  # what its calls cost; NULL where that of any is not known
    Column("senders", Text),  # JSON of ["platform:sender id", …]: whose words its question holds
    Column("attempt_at", Double),  # when its last attempt began; NULL: with the turn
    # How it stands after deaths of the process (gateway/storage/queue/blame.py):
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
