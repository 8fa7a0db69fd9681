"""Which database this is, and how many commits it has had.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; its row is entered when the database is opened."""
    op.create_table(
        "identity",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("commits", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_identity")),
    )
