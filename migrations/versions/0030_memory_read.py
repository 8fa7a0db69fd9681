"""Up to which turn a model has read what people said, for the memory

Revision: 0030, follows 0029.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memory_progress",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("upto_turn", WHOLE, nullable=False),
        sa.Column("claimed_until", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversation.id"],
            name=op.f("fk_memory_progress_conversation_conversation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation", name=op.f("pk_memory_progress")),
        sqlite_with_rowid=False,
    )
