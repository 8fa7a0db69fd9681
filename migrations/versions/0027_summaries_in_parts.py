"""Summaries of parts are kept until the whole is written; windows that refusals have shown

Revision: 0027, follows 0026.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "summary_part",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("conversation", "key", name=op.f("pk_summary_part")),
    )
    op.create_index("ix_summary_part_at", "summary_part", ["at"])
    op.create_table(
        "model_window",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("believed", WHOLE, nullable=False),
        sa.Column("context_length", WHOLE, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_model_window")),
    )
