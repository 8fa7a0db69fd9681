"""No index of the times of the search index: seqs are in the order of their times.

Revision ID: 0009
Revises: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop it: 20 bytes for each message."""
    op.drop_index("ix_search_row_conversation_at", "search_row")
