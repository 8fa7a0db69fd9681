"""All files lie in the database

Revision: 0034, follows 0033.
"""

import sqlalchemy as sa
from alembic import op

from gateway.errors import GatewayError

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    elsewhere = sa.text("SELECT count(*) FROM attachment WHERE object IS NOT NULL")
    if count := op.get_bind().scalar(elsewhere):
        raise GatewayError(
            f"{count} files lie in an object store, which this version does not read: back to the"
            " version that moved them there"
        )
    op.drop_index("ix_attachment_large", "attachment")
    op.drop_index("ix_attachment_object", "attachment")
    op.drop_column("attachment", "object")
    op.drop_table("stored_object")
