"""What a segment shows stands apart from its row, which each call of a model writes anew

Revision: 0020, follows 0019.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "view_plan",
        sa.Column("session_id", WHOLE, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_view_plan_session_id_session")
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_view_plan")),
    )
    op.execute("INSERT INTO view_plan (session_id, body) SELECT id, view_plan FROM session")
    op.drop_column("session", "view_plan")
