"""One replica receives for an account of a platform, where several share the database

Revision: 0022, follows 0021.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "adapter_lease",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("shard", WHOLE, nullable=False),
        sa.Column("owner", WHOLE, nullable=True),
        sa.Column("epoch", WHOLE, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("platform", "account", "shard", name=op.f("pk_adapter_lease")),
    )
