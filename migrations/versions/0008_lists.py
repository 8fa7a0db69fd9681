"""Indexes by which long lists are read page by page

Revision: 0008, follows 0007.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_member_at", "member", ["at", "platform", "sender"])
    for table, columns in (
        ("turn", ["finished_at", "id"]),
        ("outbox", ["at", "conversation", "seq"]),
    ):
        op.drop_index(f"ix_{table}_dead", table)
        _create_partial(f"ix_{table}_dead", table, columns, "state = 'dead'")
    _create_partial("ix_step_tool", "step", ["turn_id", "name", "at"], "kind = 'tool'")


def _create_partial(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
