"""Users of the web chat, their sessions, and links that sign in

The first owner of the web chat has no row and keeps the sender id of earlier versions, `web`: what
was said there before is theirs.

Revision: 0016, follows 0015.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "web_user",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("same_as", sa.Text(), nullable=True),
        sa.Column("invited_by", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_web_user"),
    )
    op.create_table(
        "web_session",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("signed_in_by", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("browser", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_web_session"),
        sa.UniqueConstraint("hash", name="uq_web_session_hash"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_web_session_sender", "web_session", ["sender"])
    op.create_table(
        "web_link",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_web_link"),
    )
