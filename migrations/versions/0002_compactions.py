"""Compactions, summaries prepared ahead, and what a segment knows about its tokens

Revision: 0002, follows 0001.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER_THE_LINEAGES = """
WITH RECURSIVE lineage (id, number) AS (
  SELECT id, 1 FROM session WHERE parent_session_id IS NULL
  UNION ALL
  SELECT session.id, lineage.number + 1
  FROM session JOIN lineage ON session.parent_session_id = lineage.id
)
UPDATE session SET number = lineage.number FROM lineage
WHERE lineage.id = session.id AND lineage.number > 1
"""


def upgrade() -> None:
    op.add_column("session", sa.Column("number", WHOLE, server_default="1", nullable=False))
    op.add_column("session", sa.Column("prompt_output_tokens", WHOLE, nullable=True))
    op.add_column("session", sa.Column("report_model", sa.Text(), nullable=True))
    op.add_column(
        "session", sa.Column("token_ratio", sa.Double(), server_default="1", nullable=False)
    )
    op.add_column(
        "session", sa.Column("planner_state", sa.Text(), server_default="{}", nullable=False)
    )
    op.execute(NUMBER_THE_LINEAGES)
    op.create_table(
        "compaction",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("parent_session_id", WHOLE, nullable=False),
        sa.Column("child_session_id", WHOLE, nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("messages_before", WHOLE, nullable=False),
        sa.Column("messages_after", WHOLE, nullable=False),
        sa.Column("tokens_before", WHOLE, nullable=False),
        sa.Column("tokens_after", WHOLE, nullable=False),
        sa.Column("tokens_after_reported", WHOLE, nullable=True),
        sa.Column("summary_model", sa.Text(), nullable=True),
        sa.Column("retained_share", sa.Double(), nullable=True),
        sa.Column("cache_tokens_lost", WHOLE, nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("duration_ms", WHOLE, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversation.id"],
            name=op.f("fk_compaction_conversation_conversation"),
        ),
        sa.ForeignKeyConstraint(
            ["parent_session_id"],
            ["session.id"],
            name=op.f("fk_compaction_parent_session_id_session"),
        ),
        sa.ForeignKeyConstraint(
            ["child_session_id"],
            ["session.id"],
            name=op.f("fk_compaction_child_session_id_session"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_compaction")),
        sa.UniqueConstraint("parent_session_id", name=op.f("uq_compaction_parent_session_id")),
        sa.UniqueConstraint("child_session_id", name=op.f("uq_compaction_child_session_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_compaction_conversation", "compaction", ["conversation"], unique=False)
    op.create_table(
        "summary_candidate",
        sa.Column("session_id", WHOLE, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("first_seq", WHOLE, nullable=False),
        sa.Column("last_seq", WHOLE, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversation.id"],
            name=op.f("fk_summary_candidate_conversation_conversation"),
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_summary_candidate_session_id_session")
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_summary_candidate")),
    )
    op.create_index(
        "ix_summary_candidate_conversation", "summary_candidate", ["conversation"], unique=False
    )
