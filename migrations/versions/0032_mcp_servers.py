"""MCP servers that stay confined, and texts of their tools that an owner reads first

Revision: 0032, follows 0031.
"""

import json
from collections.abc import Iterator
from contextlib import suppress

import sqlalchemy as sa
from alembic import context, op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    confined = op.create_table(
        "mcp_confined",
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_mcp_confined")),
    )
    op.create_table(
        "mcp_text",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("told_at", sa.Double()),
        sa.Column("by", sa.Text(), server_default="", nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_mcp_text")),
    )
    if context.config.attributes["before"] is not None:
        # In use before this version: the next start enters the servers of its settings, too.
        op.bulk_insert(confined, [{"name": name} for name in sorted({"", *_named()})])


def _named() -> Iterator[str]:
    """Yield the MCP servers of all settings that the audit log has."""
    said = "SELECT said FROM audit_log WHERE kind = 'settings_changed' AND said IS NOT NULL"
    for row in op.get_bind().exec_driver_sql(said):
        servers = json.loads(row.said)[3].get("settings", {}).get("tools.mcp", "{}")
        # Masking may have broken the JSON: such a row names no server.
        with suppress(ValueError):
            yield from json.loads(servers)
