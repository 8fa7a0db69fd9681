"""The index over platforms' message ids, only where there is one

SQLite took it for the index of what waits, and read all rows of a conversation to find them.

Revision: 0012, follows 0011.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

NAME = "ix_inbox_conversation_message_ref"


def upgrade() -> None:
    op.drop_index(NAME, "inbox")
    there = sa.text("message_ref IS NOT NULL")
    op.create_index(
        NAME,
        "inbox",
        ["conversation", "message_ref"],
        sqlite_where=there,
        postgresql_where=there,
    )
