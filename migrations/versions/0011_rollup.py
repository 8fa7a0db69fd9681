"""The ledger summed up for reports, for each quarter of an hour

Revision: 0011, follows 0010.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

ANSWER = "({r}.purpose = 'answer' AND NOT {r}.estimated)"
PROMPT = (
    "({r}.input_tokens + {r}.cache_read_tokens + {r}.cache_write_5m_tokens"
    " + {r}.cache_write_1h_tokens)"
)
KNOWN = (
    f"max({{r}}.cache_read_tokens, CASE WHEN {{r}}.before_tokens <= {PROMPT}"
    " THEN {r}.before_tokens ELSE 0 END)"
)
SIZES = (512, 1024, 2048, 4096)
PROMPT_SIZE = " + ".join(f"({PROMPT} >= {size})" for size in SIZES)
KNOWN_SIZE = " + ".join(f"({KNOWN} >= {size})" for size in SIZES)
KEYS = {
    "slot": "cast({r}.at / 900 AS INTEGER)",
    "conversation": "{r}.conversation",
    "sender": "{r}.sender",
    "provider": "{r}.provider",
    "model": "{r}.model",
    "size": f"CASE WHEN {ANSWER} THEN 1 + 5 * ({PROMPT_SIZE}) + {KNOWN_SIZE} ELSE 0 END",
}
MEASURES = {
    "calls": "1",
    "input_tokens": "{r}.input_tokens",
    "output_tokens": "{r}.output_tokens",
    "cache_read_tokens": "{r}.cache_read_tokens",
    "cache_write_5m_tokens": "{r}.cache_write_5m_tokens",
    "cache_write_1h_tokens": "{r}.cache_write_1h_tokens",
    "pico_usd": "coalesce(cast(round({r}.usd * 1000000000000) AS INTEGER), 0)",
    "priced": "({r}.usd IS NOT NULL)",
    "estimates": "({r}.estimated AND {r}.usd IS NOT NULL)",
    "answers": ANSWER,
    "answer_prompt": f"{ANSWER} * {PROMPT}",
    "answer_input": f"{ANSWER} * {{r}}.input_tokens",
    "answer_read": f"{ANSWER} * {{r}}.cache_read_tokens",
    "answer_5m": f"{ANSWER} * {{r}}.cache_write_5m_tokens",
    "answer_1h": f"{ANSWER} * {{r}}.cache_write_1h_tokens",
    "answer_known": f"{ANSWER} * {KNOWN}",
}
TABLES = {
    "spent_slot": ("slot", "provider", "model", "size"),
    "spent_by": ("sender", "slot", "conversation", "provider", "model", "size"),
}
TEXTS = {"sender", "provider", "model"}


def upgrade() -> None:
    # 34 bytes of each message: budgets read what was spent since midnight from the sums.
    op.drop_index("ix_ledger_at_usd", "ledger")
    op.drop_index("ix_ledger_sender_at_usd", "ledger")
    op.add_column(
        "ledger", sa.Column("before_tokens", sa.Integer(), server_default="0", nullable=False)
    )
    for table, keys in TABLES.items():
        _create(table, keys)
    if op.get_bind().dialect.name != "sqlite":
        return
    op.execute(_BEFORE)
    for table, keys in TABLES.items():
        op.execute(_filled(table, keys))
    _create_triggers()


def _create(table: str, keys: tuple[str, ...]) -> None:
    op.create_table(
        table,
        *(
            sa.Column(key, sa.Text() if key in TEXTS else sa.Integer(), nullable=False)
            for key in keys
        ),
        *(
            sa.Column(
                name,
                sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
                server_default="0",
                nullable=False,
            )
            for name in MEASURES
        ),
        sa.PrimaryKeyConstraint(*keys, name=op.f(f"pk_{table}")),
        sqlite_with_rowid=False,
    )


_BEFORE = (
    "UPDATE ledger SET before_tokens = found.tokens FROM (SELECT id, lag("  # noqa: S608
    f"{PROMPT.format(r='ledger')}, 1, 0) OVER (PARTITION BY conversation, provider, model"
    f" ORDER BY id) AS tokens FROM ledger WHERE {ANSWER.format(r='ledger')}) AS found"
    " WHERE found.id = ledger.id AND found.tokens > 0"
)


def _filled(table: str, keys: tuple[str, ...]) -> str:
    named = ", ".join(KEYS[key].format(r="ledger") for key in keys)
    sums = ", ".join(f"sum({how.format(r='ledger')})" for how in MEASURES.values())
    places = ", ".join(str(n) for n in range(1, len(keys) + 1))
    columns = ", ".join([*keys, *MEASURES])
    return f"INSERT INTO {table} ({columns}) SELECT {named}, {sums} FROM ledger GROUP BY {places}"  # noqa: S608


def _added(table: str, row: str, sign: str = "") -> str:
    keys = TABLES[table]
    names = ", ".join([*keys, *MEASURES])
    values = [KEYS[key] for key in keys] + [f"{sign}({how})" for how in MEASURES.values()]
    sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in MEASURES)
    return (
        f"INSERT INTO {table} ({names}) VALUES ({', '.join(values).format(r=row)})"  # noqa: S608
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sums};"
    )


def _emptied(table: str) -> str:
    same = " AND ".join(f"{key} = {KEYS[key].format(r='OLD')}" for key in TABLES[table])
    return f"DELETE FROM {table} WHERE {same} AND calls = 0;"  # noqa: S608 - own names


def _create_triggers() -> None:
    added = " ".join(_added(table, "NEW") for table in TABLES)
    taken = " ".join(f"{_added(table, 'OLD', '-')} {_emptied(table)}" for table in TABLES)
    for what, body in (("INSERT", added), ("DELETE", taken), ("UPDATE", f"{taken} {added}")):
        name = f"ledger_{what.lower()}"
        op.execute(f"CREATE TRIGGER {name} AFTER {what} ON ledger BEGIN {body} END")
