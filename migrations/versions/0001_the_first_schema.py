"""The first schema

Revision: 0001, the first one.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cursor",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("position", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_cursor")),
    )
    op.create_table(
        "quarantine",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("raw", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quarantine")),
        sa.UniqueConstraint("source", "dedupe_key", name=op.f("uq_quarantine_source_dedupe_key")),
    )
    op.create_index(
        "ix_quarantine_raw_at",
        "quarantine",
        ["at"],
        unique=False,
        sqlite_where=sa.text("raw != ''"),
        postgresql_where=sa.text("raw != ''"),
    )
    op.create_table(
        "replica",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("heartbeat_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replica")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "conversation",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("chat", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=True),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("title", sa.Text(), server_default="", nullable=False),
        sa.Column("active_session_id", WHOLE, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("inbox_head", WHOLE, server_default="0", nullable=False),
        sa.Column("outbox_head", WHOLE, server_default="0", nullable=False),
        sa.Column("message_head", WHOLE, server_default="0", nullable=False),
        sa.Column("owner", WHOLE, nullable=True),
        sa.Column("epoch", WHOLE, server_default="0", nullable=False),
        sa.Column("ready_no", WHOLE, nullable=True),
        sa.Column("turn_not_before", sa.Double(), server_default="0", nullable=False),
        sa.Column("cancel_upto_seq", WHOLE, server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["owner"], ["replica.id"], name=op.f("fk_conversation_owner_replica")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conversation")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_conversation_owner",
        "conversation",
        ["owner"],
        unique=False,
        sqlite_where=sa.text("owner IS NOT NULL"),
        postgresql_where=sa.text("owner IS NOT NULL"),
    )
    op.create_index(
        "ix_conversation_ready",
        "conversation",
        ["ready_no"],
        unique=False,
        sqlite_where=sa.text("owner IS NULL AND ready_no IS NOT NULL"),
        postgresql_where=sa.text("owner IS NULL AND ready_no IS NOT NULL"),
    )
    op.create_table(
        "alias",
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_alias_conversation_conversation")
        ),
        sa.PrimaryKeyConstraint("session_key", name=op.f("pk_alias")),
    )
    op.create_index("ix_alias_conversation", "alias", ["conversation"], unique=False)
    op.create_table(
        "blob",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("turn_id", WHOLE, nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_blob_conversation_conversation")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blob")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_blob_conversation", "blob", ["conversation"], unique=False)
    op.create_table(
        "inbox",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("sender_name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("message_ref", sa.Text(), nullable=True),
        sa.Column("raw", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("turn_id", WHOLE, nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_inbox_conversation_conversation")
        ),
        sa.PrimaryKeyConstraint("conversation", "seq", name=op.f("pk_inbox")),
        sa.UniqueConstraint("source", "dedupe_key", name=op.f("uq_inbox_source_dedupe_key")),
    )
    op.create_index(
        "ix_inbox_pending",
        "inbox",
        ["conversation", "seq"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'taken')"),
        postgresql_where=sa.text("state IN ('queued', 'taken')"),
    )
    op.create_index(
        "ix_inbox_raw_at",
        "inbox",
        ["at"],
        unique=False,
        sqlite_where=sa.text("raw IS NOT NULL"),
        postgresql_where=sa.text("raw IS NOT NULL"),
    )
    op.create_table(
        "message",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("session_id", WHOLE, nullable=False),
        sa.Column("turn_id", WHOLE, nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("tokens", WHOLE, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_message_conversation_conversation")
        ),
        sa.PrimaryKeyConstraint("conversation", "seq", name=op.f("pk_message")),
    )
    op.create_table(
        "outbox",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("source_key", sa.Text(), nullable=False),
        sa.Column("inbox_seq", WHOLE, nullable=False),
        sa.Column("turn_id", WHOLE, nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("markdown", sa.Text(), nullable=True),
        sa.Column("preview_ref", sa.Text(), nullable=True),
        sa.Column("reply_to", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("doubt", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("failures", WHOLE, server_default="0", nullable=False),
        sa.Column("sender", WHOLE, nullable=True),
        sa.Column("next_at", sa.Double(), server_default="0", nullable=False),
        sa.Column("platform_ref", sa.Text(), nullable=True),
        sa.Column("resent", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_outbox_conversation_conversation")
        ),
        sa.PrimaryKeyConstraint("conversation", "seq", name=op.f("pk_outbox")),
        sa.UniqueConstraint("source_key", name=op.f("uq_outbox_source_key")),
    )
    op.create_index(
        "ix_outbox_dead",
        "outbox",
        ["conversation", "seq"],
        unique=False,
        sqlite_where=sa.text("state = 'dead'"),
        postgresql_where=sa.text("state = 'dead'"),
    )
    op.create_index(
        "ix_outbox_unsent",
        "outbox",
        ["conversation", "seq"],
        unique=False,
        sqlite_where=sa.text("state IN ('pending', 'sending', 'unknown')"),
        postgresql_where=sa.text("state IN ('pending', 'sending', 'unknown')"),
    )
    op.create_table(
        "session",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("parent_session_id", WHOLE, nullable=True),
        sa.Column("start_reason", sa.Text(), nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("view_plan", sa.Text(), nullable=False),
        sa.Column("system_prompt", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", WHOLE, nullable=True),
        sa.Column("prompt_upto_seq", WHOLE, nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_session_conversation_conversation")
        ),
        sa.ForeignKeyConstraint(
            ["parent_session_id"], ["session.id"], name=op.f("fk_session_parent_session_id_session")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
        sa.UniqueConstraint("parent_session_id", name=op.f("uq_session_parent_session_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_session_conversation", "session", ["conversation"], unique=False)
    op.create_table(
        "turn",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("session_id", WHOLE, nullable=False),
        sa.Column("first_seq", WHOLE, nullable=False),
        sa.Column("upto_seq", WHOLE, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("epoch", WHOLE, nullable=False),
        sa.Column("attempt", WHOLE, nullable=False),
        sa.Column("progress", WHOLE, server_default="0", nullable=False),
        sa.Column("attempt_progress", WHOLE, server_default="0", nullable=False),
        sa.Column("preview_ref", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("iterations", WHOLE, server_default="0", nullable=False),
        sa.Column("tool_calls", WHOLE, server_default="0", nullable=False),
        sa.Column("input_tokens", WHOLE, server_default="0", nullable=False),
        sa.Column("cache_read_tokens", WHOLE, server_default="0", nullable=False),
        sa.Column("cache_write_tokens", WHOLE, server_default="0", nullable=False),
        sa.Column("output_tokens", WHOLE, server_default="0", nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_turn_conversation_conversation")
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_turn_session_id_session")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turn")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_turn_conversation_id", "turn", ["conversation", "id"], unique=False)
    op.create_index(
        "ix_turn_dead",
        "turn",
        ["id"],
        unique=False,
        sqlite_where=sa.text("state = 'dead'"),
        postgresql_where=sa.text("state = 'dead'"),
    )
    op.create_index(
        "uq_turn_running",
        "turn",
        ["conversation"],
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_table(
        "step",
        sa.Column("turn_id", WHOLE, nullable=False),
        sa.Column("n", WHOLE, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("effect", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name=op.f("fk_step_turn_id_turn")),
        sa.PrimaryKeyConstraint("turn_id", "n", name=op.f("pk_step")),
        sqlite_with_rowid=False,
    )
