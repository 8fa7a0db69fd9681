"""The audit log without a chain of hashes

Revision: 0033, follows 0032.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_row",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("conversation", WHOLE),
        sa.Column("said", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_row")),
        sqlite_autoincrement=True,
    )
    there = sa.text("conversation IS NOT NULL")
    op.create_index(
        "ix_audit_row_conversation",
        "audit_row",
        ["conversation"],
        sqlite_where=there,
        postgresql_where=there,
    )
    op.create_index("ix_audit_row_kind_id", "audit_row", ["kind", "id"])
    # Rows of the kind "pruned" said which links of the chain were emptied.
    op.execute(
        "INSERT INTO audit_row (id, at, kind, conversation, said)"
        " SELECT seq, at, kind, conversation, said FROM audit_log WHERE kind <> 'pruned'"
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            "SELECT setval('audit_row_id_seq', greatest(newest, 1), newest > 0)"
            " FROM (SELECT coalesce(max(id), 0) AS newest FROM audit_row) AS so_far"
        )
    op.drop_table("audit_log")
    op.drop_table("audit_head")
