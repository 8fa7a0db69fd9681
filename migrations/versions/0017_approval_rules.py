"""By which row of the policy somebody is asked, and whether owners alone may approve

Revision: 0017, follows 0016.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    no = {"nullable": False, "server_default": sa.false()}
    op.add_column("inquiry", sa.Column("for_owners", sa.Boolean(), **no))
    op.add_column("inquiry", sa.Column("rule", sa.Text(), nullable=True))
