"""Directions of messages, for the search

Revision: 0028, follows 0027.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "vector",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversation.id"],
            name=op.f("fk_vector_conversation_conversation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation", "seq", name=op.f("pk_vector")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "vector_progress",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("upto_seq", WHOLE, nullable=False),
        sa.Column("claimed_until", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversation.id"],
            name=op.f("fk_vector_progress_conversation_conversation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation", name=op.f("pk_vector_progress")),
        sqlite_with_rowid=False,
    )
