"""Whose words a message quotes, and what a lineage has read beside the words of its people

Revision: 0015, follows 0014.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("inbox", sa.Column("authors", sa.Text(), nullable=True))
    op.add_column("session", sa.Column("origins", sa.Text(), nullable=True))
