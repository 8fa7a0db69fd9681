"""How a turn stands after deaths of the process, and which dead turn it asks again

Revision: 0010, follows 0009.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turn", sa.Column("attempt_at", sa.Double(), nullable=True))
    for name, kind in (
        ("deaths", WHOLE),
        ("blamed", WHOLE),
        ("quiet_s", sa.Double()),
    ):
        op.add_column("turn", sa.Column(name, kind, server_default="0", nullable=False))
    op.add_column("turn", sa.Column("troubled_at", sa.Double(), nullable=True))
    op.add_column("turn", sa.Column("retries", WHOLE, nullable=True))
