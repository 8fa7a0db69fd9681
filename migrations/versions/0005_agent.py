"""What a turn waits for, the agent's notes, delegates, nodes of the engine lcm, the search index

Revision: 0005, follows 0004.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

FULL_TEXT = (
    "CREATE VIRTUAL TABLE search_index USING fts5(terms, content='', columnsize=0,"
    " detail=none, tokenize=\"ascii tokenchars '='\")"
)


def upgrade() -> None:
    _extend_conversations()
    op.add_column("session", sa.Column("prompt_layers", sa.Text(), nullable=True))
    op.create_index("ix_turn_session_id", "turn", ["session_id"])
    _create_inquiries()
    _create_notes()
    _create_nodes()
    _create_search()


def _extend_conversations() -> None:
    op.add_column("conversation", sa.Column("parent_turn_id", WHOLE, nullable=True))
    op.add_column("conversation", sa.Column("parent_call_id", sa.Text(), nullable=True))
    op.add_column("conversation", sa.Column("model", sa.Text(), nullable=True))
    op.add_column(
        "conversation", sa.Column("searched_seq", WHOLE, server_default="0", nullable=False)
    )
    delegated = sa.text("parent_turn_id IS NOT NULL")
    op.create_index(
        "uq_conversation_parent_turn_id_parent_call_id",
        "conversation",
        ["parent_turn_id", "parent_call_id"],
        unique=True,
        sqlite_where=delegated,
        postgresql_where=delegated,
    )
    unsearched = sa.text("message_head > searched_seq")
    op.create_index(
        "ix_conversation_unsearched",
        "conversation",
        ["id"],
        sqlite_where=unsearched,
        postgresql_where=unsearched,
    )


def _conversation(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_conversation_conversation")
    return sa.ForeignKeyConstraint(["conversation"], ["conversation.id"], name=name)


def _create_inquiries() -> None:
    op.create_table(
        "inquiry",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("turn_id", WHOLE, nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("choices", sa.Text(), server_default="[]", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("answered_by", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        _conversation("inquiry"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inquiry")),
        sa.UniqueConstraint("turn_id", "call_id", name=op.f("uq_inquiry_turn_id_call_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_inquiry_conversation", "inquiry", ["conversation"])
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_inquiry_pending",
        "inquiry",
        ["conversation"],
        sqlite_where=pending,
        postgresql_where=pending,
    )


def _create_notes() -> None:
    op.create_table(
        "todo",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("items", sa.Text(), nullable=False),
        sa.Column("first_seq", WHOLE, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        _conversation("todo"),
        sa.PrimaryKeyConstraint("conversation", name=op.f("pk_todo")),
    )
    op.create_table(
        "memory",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_memory")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_memory_scope", "memory", ["scope"])


def _create_nodes() -> None:
    op.create_table(
        "node",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("level", WHOLE, nullable=False),
        sa.Column("first_seq", WHOLE, nullable=False),
        sa.Column("last_seq", WHOLE, nullable=False),
        sa.Column("children", sa.Text(), server_default="[]", nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("tokens", WHOLE, nullable=False),
        sa.Column("source_tokens", WHOLE, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        _conversation("node"),
        sa.PrimaryKeyConstraint("conversation", "number", name=op.f("pk_node")),
    )


def _create_search() -> None:
    op.create_table(
        "search_row",
        sa.Column("conversation", WHOLE, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("terms", WHOLE, nullable=False),
        _conversation("search_row"),
        sa.PrimaryKeyConstraint("conversation", "seq", name=op.f("pk_search_row")),
        sqlite_with_rowid=False,
    )
    owned = sa.text('"user" IS NOT NULL')
    op.create_index(
        "ix_conversation_platform_user",
        "conversation",
        ["platform", "user"],
        sqlite_where=owned,
        postgresql_where=owned,
    )
    op.create_index("ix_search_row_conversation_at", "search_row", ["conversation", "at"])
    if op.get_bind().dialect.name == "sqlite":
        op.execute(FULL_TEXT)
    else:
        op.execute("CREATE TABLE search_index (id BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL)")
        op.execute("CREATE INDEX search_index_terms ON search_index USING gin (terms)")
