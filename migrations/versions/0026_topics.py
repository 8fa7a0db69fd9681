"""What conversations were about, in order

Revision: 0026, follows 0025.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "topic",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("first_seq", WHOLE, nullable=False),
        sa.Column("last_seq", WHOLE, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("messages", WHOLE, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversation.id"],
            name=op.f("fk_topic_conversation_conversation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation", "first_seq", name=op.f("pk_topic")),
        sqlite_with_rowid=False,
    )
