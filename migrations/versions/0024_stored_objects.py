"""Large files may lie in an object store

Revision: 0024, follows 0023.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_object",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stored_object")),
        sa.UniqueConstraint("name", name=op.f("uq_stored_object_name")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_stored_object_sha256", "stored_object", ["sha256"])
    op.create_index("ix_stored_object_state", "stored_object", ["state", "id"])
    op.add_column("attachment", sa.Column("object", WHOLE))
    large = "state = 'stored' AND object IS NULL AND size_bytes > 262144"
    _partial("ix_attachment_large", "attachment", "id", large)
    _partial("ix_attachment_object", "attachment", "object", "object IS NOT NULL")


def _partial(name: str, table: str, column: str, where: str) -> None:
    of = sa.text(where)
    op.create_index(name, table, [column], sqlite_where=of, postgresql_where=of)
