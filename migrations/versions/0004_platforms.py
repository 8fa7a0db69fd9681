"""Attachments, members and pairing codes, buttons and files of the outbox, what waits to be told

Revision: 0004, follows 0003.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_attachments()
    _create_access()
    op.add_column("outbox", sa.Column("choices", sa.Text(), nullable=True))
    op.add_column("outbox", sa.Column("attachment", WHOLE, nullable=True))
    op.add_column("quarantine", sa.Column("chat", sa.Text(), nullable=True))
    op.add_column("turn", sa.Column("senders", sa.Text(), nullable=True))
    noted = sa.text("state = 'noted'")
    op.create_index(
        "ix_inbox_noted",
        "inbox",
        ["conversation", "seq"],
        sqlite_where=noted,
        postgresql_where=noted,
    )
    op.create_index("ix_inbox_conversation_message_ref", "inbox", ["conversation", "message_ref"])


def _create_attachments() -> None:
    op.create_table(
        "attachment",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("inbox_seq", WHOLE, nullable=True),
        sa.Column("turn_id", WHOLE, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("mime", sa.Text(), nullable=False),
        sa.Column("size_bytes", WHOLE, nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("failures", WHOLE, server_default="0", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"],
            ["conversation.id"],
            name=op.f("fk_attachment_conversation_conversation"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attachment")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_attachment_conversation_inbox_seq", "attachment", ["conversation", "inbox_seq"]
    )
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_attachment_pending",
        "attachment",
        ["conversation"],
        sqlite_where=pending,
        postgresql_where=pending,
    )
    op.create_index("ix_attachment_turn_id", "attachment", ["turn_id"])
    op.create_table(
        "attachment_part",
        sa.Column("attachment", WHOLE, nullable=False),
        sa.Column("n", WHOLE, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attachment"], ["attachment.id"], name=op.f("fk_attachment_part_attachment_attachment")
        ),
        sa.PrimaryKeyConstraint("attachment", "n", name=op.f("pk_attachment_part")),
    )


def _create_access() -> None:
    op.create_table(
        "member",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("sender_name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "sender", name=op.f("pk_member")),
    )
    op.create_table(
        "pairing",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=True),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("sender", sa.Text(), nullable=True),
        sa.Column("sender_name", sa.Text(), server_default="", nullable=False),
        sa.Column("conversation", WHOLE, nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_pairing_conversation_conversation")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pairing")),
        sa.UniqueConstraint("code", name=op.f("uq_pairing_code")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_pairing_platform_sender", "pairing", ["platform", "sender"])
