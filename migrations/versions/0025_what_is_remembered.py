"""Standing instructions and facts stand beside the agent's notes

Revision: 0025, follows 0024.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("subject", "value", "said_by"):
        op.add_column("memory", sa.Column(name, sa.Text()))
    for name in ("conversation", "seq", "ended_by"):
        op.add_column("memory", sa.Column(name, WHOLE))
    op.add_column("memory", sa.Column("ended_at", sa.Double()))
    known = sa.text("conversation IS NOT NULL")
    op.create_index(
        "ix_memory_conversation",
        "memory",
        ["conversation"],
        sqlite_where=known,
        postgresql_where=known,
    )
