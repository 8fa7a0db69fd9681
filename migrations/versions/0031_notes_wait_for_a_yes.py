"""Notes have the turn that made them, and when people were told that some wait for a yes

Revision: 0031, follows 0030.

Prompts no longer contain notes made by rules (targets instruction and fact). Deletes rows ended by
a newer one: they had no effect.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("memory", sa.Column("turn_id", WHOLE))
    op.add_column("memory", sa.Column("told_at", sa.Double()))
    known = sa.text("turn_id IS NOT NULL")
    op.create_index(
        "ix_memory_turn_id",
        "memory",
        ["turn_id"],
        sqlite_where=known,
        postgresql_where=known,
    )
    op.execute("DELETE FROM memory WHERE ended_at IS NOT NULL")
