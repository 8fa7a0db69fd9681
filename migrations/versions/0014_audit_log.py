"""The audit log, and where its chain ends

Revision: 0014, follows 0013.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

BEGINNING = "0" * 64


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("seq", WHOLE, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("conversation", WHOLE, nullable=True),
        sa.Column("emptied", sa.Text(), nullable=False),
        sa.Column("said", sa.Text(), nullable=True),
        sa.Column("salt", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("prev", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit_log")),
        sa.UniqueConstraint("prev", name=op.f("uq_audit_log_prev")),
    )
    there = sa.text("conversation IS NOT NULL")
    op.create_index(
        "ix_audit_log_conversation",
        "audit_log",
        ["conversation"],
        sqlite_where=there,
        postgresql_where=there,
    )
    op.create_index("ix_audit_log_kind_seq", "audit_log", ["kind", "seq"])
    head = op.create_table(
        "audit_head",
        sa.Column("id", WHOLE, autoincrement=False, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.bulk_insert(head, [{"id": 1, "seq": 0, "hash": BEGINNING}])
