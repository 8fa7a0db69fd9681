"""The ledger of model calls, and what a segment's requests begin with

Revision: 0003, follows 0002.
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

AT_ONCE = 1000
TOKENS = (
    "input_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
)
CALLS_OF_BEFORE = sa.text("""
SELECT turn.conversation, turn.id AS turn_id, step.result, step.at,
  conversation.platform || ':' || inbox.sender AS sender,
  coalesce(session.report_model, turn.model, '') AS model
FROM step
JOIN turn ON turn.id = step.turn_id
JOIN conversation ON conversation.id = turn.conversation
JOIN session ON session.id = turn.session_id
JOIN inbox ON inbox.conversation = turn.conversation AND inbox.seq = turn.upto_seq
WHERE step.kind = 'model'
ORDER BY step.at, step.turn_id, step.n
""")


def upgrade() -> None:
    op.add_column("session", sa.Column("tools", sa.Text(), nullable=True))
    op.add_column("session", sa.Column("prompt_inputs", sa.Text(), nullable=True))
    op.add_column("session", sa.Column("prefix", sa.Text(), nullable=True))
    op.add_column("session", sa.Column("moved", sa.Text(), nullable=True))
    op.add_column("turn", sa.Column("usd", sa.Double(), nullable=True))
    ledger = op.create_table(
        "ledger",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("turn_id", WHOLE, nullable=True),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("sender", sa.Text(), server_default="", nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        *(sa.Column(name, WHOLE, server_default="0", nullable=False) for name in TOKENS),
        sa.Column("estimated", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("usd", sa.Double(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation"], ["conversation.id"], name=op.f("fk_ledger_conversation_conversation")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger")),
    )
    op.create_index("ix_ledger_conversation_turn_id", "ledger", ["conversation", "turn_id"])
    op.create_index("ix_ledger_at_usd", "ledger", ["at", "usd"])
    op.create_index("ix_ledger_sender_at_usd", "ledger", ["sender", "at", "usd"])
    calls = op.get_bind().execute(CALLS_OF_BEFORE)
    for rows in calls.mappings().partitions(AT_ONCE):
        op.bulk_insert(ledger, [booked(row) for row in rows])


def booked(call: sa.RowMapping) -> dict[str, Any]:
    """Return the entry of a call that an older version has journalled; its price is not known."""
    usage = json.loads(call["result"] or "{}")
    return {
        "conversation": call["conversation"],
        "turn_id": call["turn_id"],
        "sender": call["sender"],
        "provider": "",
        "model": call["model"],
        "purpose": "answer",
        **{name: usage.get(name, 0) for name in TOKENS},
        "estimated": not usage,
        "usd": None,
        "at": call["at"],
    }
