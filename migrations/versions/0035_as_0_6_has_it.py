"""What 0.6 stores: prompts once, people of the web chat, the audit log, alerts

Revision: 0035, follows 0005: between them main had 0006 to 0034, none of which was released.
"""

import hashlib
import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import context, op

from migrations import WHOLE

revision = "0035"
down_revision = "0005"
branch_labels = None
depends_on = None

AT_ONCE = 2_000
OLD_COLUMNS = ("system_prompt", "tools", "prompt_inputs", "prompt_layers")
OWN_LAYER = "session"
"""The last layer of a prompt, which is the root's own; a blank line precedes it."""
COMMAND = re.compile(r"/([a-z]+)(?:@\w+)?(?:\s.*)?", re.DOTALL | re.IGNORECASE)
ALIASES = {"start": "help", "compact": "compress"}
NAMES = {
    "new", "stop", "approve", "deny", "answer", "status", "usage", "insights", "compress", "model",
    "help", "retry", "pair",
}  # fmt: skip
"""The commands of 0.5."""


def upgrade() -> None:
    _create_prompts()
    _move_prompts(op.get_bind())
    for name in OLD_COLUMNS:
        op.drop_column("session", name)
    _index("ix_session_base_id", "session", ["base_id"], "base_id IS NOT NULL")
    _move_plans()
    _create_summaries()
    _create_vectors()
    _end_pending_entries()
    _extend_queue()
    _name_commands(op.get_bind())
    _extend_turns()
    _create_replicas()
    _create_people()
    _extend_memory()
    _create_audit_log()
    _create_alerts()
    _note_prompts_before()


def _id() -> sa.Column[int]:
    return sa.Column("id", WHOLE, primary_key=True, autoincrement=True)


def _text(name: str, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=default)


def _whole(name: str, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, WHOLE, nullable=False, server_default=default)


def _time(name: str, default: str | None = None) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=False, server_default=default)


def _of_conversation() -> sa.Column[int]:
    refers = sa.ForeignKey("conversation.id", ondelete="CASCADE")
    return sa.Column("conversation", WHOLE, refers, primary_key=True)


def _index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    rows = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=rows, postgresql_where=rows)


def _create_prompts() -> None:
    op.create_table(
        "prompt_text",
        _id(),
        sa.Column("digest", sa.LargeBinary(), nullable=False, unique=True),
        _text("body"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "prompt_base",
        _id(),
        sa.Column("digest", sa.LargeBinary(), nullable=False, unique=True),
        sa.Column("prompt_id", WHOLE, sa.ForeignKey("prompt_text.id"), nullable=False),
        sa.Column("tools_id", WHOLE, sa.ForeignKey("prompt_text.id")),
        _text("layers"),
        sa.Column("inputs", sa.Text()),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_prompt_base_prompt_id", "prompt_base", ["prompt_id"])
    op.create_index("ix_prompt_base_tools_id", "prompt_base", ["tools_id"])
    # SQLite knows no other way to add a reference to a table.
    op.execute(
        f"ALTER TABLE session ADD COLUMN base_id {WHOLE.compile(op.get_bind().dialect)}"
        " CONSTRAINT fk_session_base_id_prompt_base REFERENCES prompt_base (id)"
    )
    op.add_column("session", sa.Column("own_prompt", sa.Text()))
    op.add_column("session", sa.Column("origins", sa.Text()))


def _move_prompts(conn: sa.Connection) -> None:
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
_ENTER_BASE = sa.text(
    "INSERT INTO prompt_base (digest, prompt_id, tools_id, layers, inputs)"
    " VALUES (:digest, :prompt, :tools, :layers, :inputs) RETURNING id"
)
_ENTER_TEXT = sa.text("INSERT INTO prompt_text (digest, body) VALUES (:digest, :body) RETURNING id")


def _moved(conn: sa.Connection, row: Any, known: dict[bytes, int]) -> dict[str, Any]:
    prompt, layers, own = _split(row.system_prompt, row.prompt_layers)
    digest = _digest(prompt, row.tools, layers, row.prompt_inputs)
    if digest not in known:
        known[digest] = conn.execute(
            _ENTER_BASE,
            {
                "digest": digest,
                "prompt": _text_id(conn, prompt, known),
                "tools": None if row.tools is None else _text_id(conn, row.tools, known),
                "layers": layers,
                "inputs": row.prompt_inputs,
            },
        ).scalar_one()
    return {"session": row.id, "base": known[digest], "own": own}


def _text_id(conn: sa.Connection, body: str, known: dict[bytes, int]) -> int:
    digest = _digest(body)
    if digest not in known:
        known[digest] = conn.execute(_ENTER_TEXT, {"digest": digest, "body": body}).scalar_one()
    return known[digest]


def _split(prompt: str, stored_layers: str | None) -> tuple[str, str, str]:
    """Return the shared part of a prompt, its layers as JSON, and the root's own part."""
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


def _move_plans() -> None:
    op.create_table(
        "view_plan",
        sa.Column("session_id", WHOLE, sa.ForeignKey("session.id"), primary_key=True),
        _text("body"),
    )
    op.execute("INSERT INTO view_plan (session_id, body) SELECT id, view_plan FROM session")
    op.drop_column("session", "view_plan")


def _create_summaries() -> None:
    op.create_table(
        "summary_part",
        sa.Column("conversation", WHOLE, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text(), primary_key=True),
        _text("text"),
        _time("at"),
    )
    op.create_index("ix_summary_part_at", "summary_part", ["at"])


def _create_vectors() -> None:
    # Without it: 20 bytes less for each message.
    op.drop_index("ix_search_row_conversation_at", "search_row")
    op.create_table(
        "vector",
        _of_conversation(),
        sa.Column("seq", WHOLE, primary_key=True),
        _text("space"),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sqlite_with_rowid=False,
    )


def _end_pending_entries() -> None:
    """Enter terms into PostgreSQL's index at once: each search reads the pending ones."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER INDEX search_index_terms SET (fastupdate = off)")
        op.execute("SELECT gin_clean_pending_list('search_index_terms')")


def _extend_queue() -> None:
    op.add_column("inbox", sa.Column("command", sa.Text()))
    op.add_column("inbox", sa.Column("authors", sa.Text()))
    name = "ix_inbox_conversation_message_ref"
    op.drop_index(name, "inbox")
    _index(name, "inbox", ["conversation", "message_ref"], "message_ref IS NOT NULL")
    _index("ix_inbox_sender_at", "inbox", ["sender", "at"], "kind IN ('message', 'command')")
    op.drop_index("ix_outbox_dead", "outbox")
    _index("ix_outbox_dead", "outbox", ["at", "conversation", "seq"], "state = 'dead'")


def _name_commands(conn: sa.Connection) -> None:
    inbox = sa.table("inbox", *map(sa.column, ("conversation", "seq", "kind", "text", "command")))
    commands = sa.select(inbox.c.conversation, inbox.c.seq, inbox.c.text)
    for row in conn.execute(commands.where(inbox.c.kind == "command")).all():
        name = _name(row.text)
        if name is not None:
            here = (inbox.c.conversation == row.conversation, inbox.c.seq == row.seq)
            conn.execute(sa.update(inbox).where(*here).values(command=name))


def _name(text: str) -> str | None:
    found = COMMAND.fullmatch(text.strip())
    word = found[1].lower() if found else ""
    name = ALIASES.get(word, word)
    return name if name in NAMES else None


def _extend_turns() -> None:
    op.add_column("turn", sa.Column("attempt_at", sa.Double()))
    op.add_column("turn", _whole("deaths", "0"))
    op.add_column("turn", _whole("blamed", "0"))
    op.add_column("turn", _time("quiet_s", "0"))
    op.add_column("turn", sa.Column("troubled_at", sa.Double()))
    op.add_column("turn", sa.Column("retries", WHOLE))
    op.drop_index("ix_turn_dead", "turn")
    _index("ix_turn_dead", "turn", ["finished_at", "id"], "state = 'dead'")
    _index("ix_step_tool", "step", ["turn_id", "name", "at"], "kind = 'tool'")
    for_owners = sa.Column("for_owners", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("inquiry", for_owners)
    op.add_column("inquiry", sa.Column("rule", sa.Text()))


def _create_replicas() -> None:
    op.create_table("identity", sa.Column("name", sa.Text(), primary_key=True), _whole("commits"))
    op.create_table(
        "adapter_lease",
        sa.Column("platform", sa.Text(), primary_key=True),
        sa.Column("account", sa.Text(), primary_key=True),
        sa.Column("shard", WHOLE, primary_key=True),
        sa.Column("owner", WHOLE),
        _whole("epoch", "0"),
    )
    op.create_table("news", sa.Column("kind", sa.Text(), primary_key=True), _whole("n"))
    # They change a few times a second while a chat is watched, and have no value after a crash.
    unlogged = ["UNLOGGED"] if op.get_bind().dialect.name == "postgresql" else []
    op.create_table(
        "chat_watch",
        sa.Column("session_key", sa.Text(), primary_key=True),
        sa.Column("replica", WHOLE, primary_key=True, autoincrement=False),
        _time("until"),
        prefixes=unlogged,
    )
    op.create_table(
        "chat_preview",
        sa.Column("session_key", sa.Text(), primary_key=True),
        _text("text"),
        _time("at"),
        prefixes=unlogged,
    )


def _create_people() -> None:
    op.create_index("ix_member_at", "member", ["at", "platform", "sender"])
    # Without it each conversation that is erased costs a look at all requests to be let in.
    op.create_index("ix_pairing_conversation", "pairing", ["conversation"])
    op.create_table(
        "web_user",
        sa.Column("name", sa.Text(), primary_key=True),
        _text("role"),
        sa.Column("same_as", sa.Text()),
        _text("invited_by"),
        _time("at"),
        sa.Column("identity", sa.Text()),
        sa.Column("let_in_by", sa.Text()),
    )
    op.create_index("ux_web_user_identity", "web_user", ["identity"], unique=True)
    op.create_table(
        "web_session",
        _id(),
        sa.Column("hash", sa.Text(), nullable=False, unique=True),
        _text("sender"),
        _text("signed_in_by"),
        _text("address"),
        _text("browser"),
        _time("at"),
        _time("used_at"),
        _time("expires_at"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_web_session_sender", "web_session", ["sender"])
    op.create_table(
        "web_link",
        sa.Column("hash", sa.Text(), primary_key=True),
        _text("sender"),
        _time("expires_at"),
    )


def _extend_memory() -> None:
    for name in ("value", "said_by"):
        op.add_column("memory", sa.Column(name, sa.Text()))
    for name in ("conversation", "seq", "turn_id"):
        op.add_column("memory", sa.Column(name, WHOLE))
    _index("ix_memory_conversation", "memory", ["conversation"], "conversation IS NOT NULL")
    _index("ix_memory_turn_id", "memory", ["turn_id"], "turn_id IS NOT NULL")


def _create_audit_log() -> None:
    op.create_table(
        "audit_row",
        _id(),
        _time("at"),
        _text("kind"),
        sa.Column("conversation", WHOLE),
        sa.Column("said", sa.Text()),
        sqlite_autoincrement=True,
    )
    _index("ix_audit_row_conversation", "audit_row", ["conversation"], "conversation IS NOT NULL")
    op.create_index("ix_audit_row_kind_id", "audit_row", ["kind", "id"])
    confined = op.create_table("mcp_confined", sa.Column("name", sa.Text(), primary_key=True))
    op.create_table(
        "mcp_text",
        sa.Column("digest", sa.Text(), primary_key=True),
        _text("server"),
        _text("tool"),
        _text("why"),
        _text("text"),
        _text("state"),
        sa.Column("told_at", sa.Double()),
        _text("by", ""),
        _time("at"),
    )
    if context.config.attributes["before"] is not None:
        # In use before this version: the next start enters the servers of its settings, too.
        op.bulk_insert(confined, [{"name": ""}])


def _create_alerts() -> None:
    op.create_table(
        "alert",
        _id(),
        _text("kind"),
        _text("subject"),
        _text("text"),
        _time("since"),
        _time("at"),
        _time("seen_at"),
        sa.Column("told_at", sa.Double()),
        sa.Column("over_at", sa.Double()),
        sa.Column("over_told_at", sa.Double()),
        _whole("posted", "0"),
        _time("post_at", "0"),
        sqlite_autoincrement=True,
    )
    _index("ux_alert_open", "alert", ["kind", "subject"], "over_at IS NULL", unique=True)
    op.create_index("ix_alert_at", "alert", ["at"])


def _note_prompts_before() -> None:
    op.add_column("ledger", _whole("before_tokens", "0"))
    op.execute(
        "UPDATE ledger SET before_tokens = found.tokens FROM (SELECT id, lag(input_tokens"
        " + cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens, 1, 0)"
        " OVER (PARTITION BY conversation, provider, model ORDER BY id) AS tokens"
        " FROM ledger WHERE purpose = 'answer' AND NOT estimated) AS found"
        " WHERE found.id = ledger.id AND found.tokens > 0"
    )
