"""Troubles that owners are told of

Revision: 0029, follows 0028.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("told_at", sa.Double()),
        sa.Column("over_at", sa.Double()),
        sa.Column("over_told_at", sa.Double()),
        sa.Column("posted", WHOLE, server_default="0", nullable=False),
        sa.Column("post_at", sa.Double(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert")),
        sqlite_autoincrement=True,
    )
    is_open = sa.text("over_at IS NULL")
    op.create_index(
        "ux_alert_open",
        "alert",
        ["kind", "subject"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index("ix_alert_at", "alert", ["at"])
