"""What replicas tell each other: news, and who looks at which chat where

Revision: 0023, follows 0022.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "news",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("n", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_news")),
    )
    # They change a few times a second while somebody looks on, and are nothing after a crash.
    unlogged = ["UNLOGGED"] if op.get_bind().dialect.name == "postgresql" else []
    op.create_table(
        "chat_watch",
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("replica", WHOLE, autoincrement=False, nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("session_key", "replica", name=op.f("pk_chat_watch")),
        prefixes=unlogged,
    )
    op.create_table(
        "chat_preview",
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("session_key", name=op.f("pk_chat_preview")),
        prefixes=unlogged,
    )
