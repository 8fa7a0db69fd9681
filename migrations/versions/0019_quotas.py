"""The index by which the messages of a sender are counted

Revision: 0019, follows 0018.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    of = sa.text("kind IN ('message', 'command')")
    columns = ["sender", "at"]
    op.create_index("ix_inbox_sender_at", "inbox", columns, sqlite_where=of, postgresql_where=of)
