"""Prompts and tools are stored once, by their content; segments refer to them

Revision: 0006, follows 0005.
"""

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

AT_ONCE = 2_000
OLD_COLUMNS = ("system_prompt", "tools", "prompt_inputs", "prompt_layers")
OWN_LAYER = "session"
"""The last layer of a prompt, which every root has for itself; before it stands a blank line."""


def upgrade() -> None:
    _create_texts()
    _create_bases()
    # SQLite knows no other way to add a reference to a table.
    op.execute(
        f"ALTER TABLE session ADD COLUMN base_id {WHOLE.compile(op.get_bind().dialect)}"
        " CONSTRAINT fk_session_base_id_prompt_base REFERENCES prompt_base (id)"
    )
    op.add_column("session", sa.Column("own_prompt", sa.Text(), nullable=True))
    _move(op.get_bind())
    for name in OLD_COLUMNS:
        op.drop_column("session", name)
    based = sa.text("base_id IS NOT NULL")
    op.create_index(
        "ix_session_base_id",
        "session",
        ["base_id"],
        sqlite_where=based,
        postgresql_where=based,
    )

    # Without it each conversation that is erased costs a look at all requests to be let in.
    op.create_index("ix_pairing_conversation", "pairing", ["conversation"])


def _create_texts() -> None:
    op.create_table(
        "prompt_text",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prompt_text")),
        sa.UniqueConstraint("digest", name=op.f("uq_prompt_text_digest")),
        sqlite_autoincrement=True,
    )


def _create_bases() -> None:
    op.create_table(
        "prompt_base",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("prompt_id", WHOLE, nullable=False),
        sa.Column("tools_id", WHOLE, nullable=True),
        sa.Column("layers", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["prompt_id"], ["prompt_text.id"], name=op.f("fk_prompt_base_prompt_id_prompt_text")
        ),
        sa.ForeignKeyConstraint(
            ["tools_id"], ["prompt_text.id"], name=op.f("fk_prompt_base_tools_id_prompt_text")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prompt_base")),
        sa.UniqueConstraint("digest", name=op.f("uq_prompt_base_digest")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_prompt_base_prompt_id", "prompt_base", ["prompt_id"])
    op.create_index("ix_prompt_base_tools_id", "prompt_base", ["tools_id"])


def _move(conn: sa.Connection) -> None:
    """Move prompts and tools out of the segments; what is freed is overwritten by the database."""
    known: dict[bytes, int] = {}
    after = 0
    while rows := conn.execute(_NEXT, {"after": after}).all():
        after = rows[-1].id
        moved = [_moved(conn, row, known) for row in rows]
        conn.execute(_REFER, moved)


_NEXT = sa.text(
    "SELECT id, system_prompt, tools, prompt_inputs, prompt_layers FROM session"  # noqa: S608
    f" WHERE id > :after AND system_prompt IS NOT NULL ORDER BY id LIMIT {AT_ONCE}"
)
# What is freed here is not read again when the columns go.
_REFER = sa.text(
    "UPDATE session SET base_id = :base, own_prompt = :own, system_prompt = NULL, tools = NULL,"
    " prompt_inputs = NULL, prompt_layers = NULL WHERE id = :session"
)


def _moved(conn: sa.Connection, row: Any, known: dict[bytes, int]) -> dict[str, Any]:
    prompt, layers, own = _split(row.system_prompt, row.prompt_layers)
    digest = _digest(prompt, row.tools, layers, row.prompt_inputs)
    if digest not in known:
        known[digest] = conn.execute(
            _ENTER_BASE,
            {
                "digest": digest,
                "prompt": _text(conn, prompt, known),
                "tools": None if row.tools is None else _text(conn, row.tools, known),
                "layers": layers,
                "inputs": row.prompt_inputs,
            },
        ).scalar_one()
    return {"session": row.id, "base": known[digest], "own": own}


_ENTER_BASE = sa.text(
    "INSERT INTO prompt_base (digest, prompt_id, tools_id, layers, inputs)"
    " VALUES (:digest, :prompt, :tools, :layers, :inputs) RETURNING id"
)


def _text(conn: sa.Connection, body: str, known: dict[bytes, int]) -> int:
    digest = _digest(body)
    if digest not in known:
        known[digest] = conn.execute(_ENTER_TEXT, {"digest": digest, "body": body}).scalar_one()
    return known[digest]


_ENTER_TEXT = sa.text("INSERT INTO prompt_text (digest, body) VALUES (:digest, :body) RETURNING id")


def _split(prompt: str, stored_layers: str | None) -> tuple[str, str, str]:
    """Return what a prompt shares with others, the layers of that as JSON, and what is its own."""
    layers = json.loads(stored_layers or "[]")
    own = ""
    if layers and layers[-1][0] == OWN_LAYER:
        chars = layers.pop()[1] + (2 if layers else 0)
        prompt, own = prompt[: len(prompt) - chars], prompt[len(prompt) - chars :]
    return prompt, json.dumps(layers, separators=(",", ":"), ensure_ascii=False), own


def _digest(*parts: str | None) -> bytes:
    known = hashlib.sha256()
    for part in parts:
        encoded = b"" if part is None else part.encode()
        known.update(b"%d:" % (-1 if part is None else len(encoded)))
        known.update(encoded)
    return known.digest()[:16]
