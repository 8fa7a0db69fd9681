"""Whom an identity provider names, and which entry of the settings lets them in

Revision: 0018, follows 0017.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("web_user", sa.Column("identity", sa.Text(), nullable=True))
    op.add_column("web_user", sa.Column("let_in_by", sa.Text(), nullable=True))
    op.create_index("ux_web_user_identity", "web_user", ["identity"], unique=True)
