"""The ledger summed up for reports, for each quarter of an hour

Revision: 0011, follows 0010.
"""

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

WORDS = {
    "sqlite": {"n": "", "most": "max", "floor": "", "end": "", "whole": "INTEGER", "own": ""},
    "postgresql": {
        "n": "::int",
        "most": "greatest",
        "floor": "floor(",
        "end": ")",
        "whole": "BIGINT",
        "own": "{table}.",
    },
}
ANSWER = "({r}.purpose = 'answer' AND NOT {r}.estimated)"
PROMPT = (
    "({r}.input_tokens + {r}.cache_read_tokens + {r}.cache_write_5m_tokens"
    " + {r}.cache_write_1h_tokens)"
)
KNOWN = (
    f"{{most}}({{r}}.cache_read_tokens, CASE WHEN {{r}}.before_tokens <= {PROMPT}"
    " THEN {r}.before_tokens ELSE 0 END)"
)
SIZES = (512, 1024, 2048, 4096)
PROMPT_SIZE = " + ".join(f"({PROMPT} >= {size}){{n}}" for size in SIZES)
KNOWN_SIZE = " + ".join(f"({KNOWN} >= {size}){{n}}" for size in SIZES)
KEYS = {
    "slot": "cast({floor}{r}.at / 900{end} AS {whole})",
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
    "pico_usd": "coalesce(cast(round({r}.usd * 1000000000000) AS {whole}), 0)",
    "priced": "({r}.usd IS NOT NULL){n}",
    "estimates": "({r}.estimated AND {r}.usd IS NOT NULL){n}",
    "answers": f"{ANSWER}{{n}}",
    "answer_prompt": f"{ANSWER}{{n}} * {PROMPT}",
    "answer_input": f"{ANSWER}{{n}} * {{r}}.input_tokens",
    "answer_read": f"{ANSWER}{{n}} * {{r}}.cache_read_tokens",
    "answer_5m": f"{ANSWER}{{n}} * {{r}}.cache_write_5m_tokens",
    "answer_1h": f"{ANSWER}{{n}} * {{r}}.cache_write_1h_tokens",
    "answer_known": f"{ANSWER}{{n}} * {KNOWN}",
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
    op.add_column("ledger", sa.Column("before_tokens", WHOLE, server_default="0", nullable=False))
    for table, keys in TABLES.items():
        _create(table, keys)
    dialect = op.get_bind().dialect.name
    op.execute(_said(_BEFORE, "ledger", dialect))
    for table, keys in TABLES.items():
        op.execute(_filled(table, keys, dialect))
    _create_triggers(dialect)


def _said(text: str, row: str, dialect: str) -> str:
    return text.format(r=row, **WORDS[dialect])


def _create(table: str, keys: tuple[str, ...]) -> None:
    op.create_table(
        table,
        *(sa.Column(key, sa.Text() if key in TEXTS else WHOLE, nullable=False) for key in keys),
        *(sa.Column(name, WHOLE, server_default="0", nullable=False) for name in MEASURES),
        sa.PrimaryKeyConstraint(*keys, name=op.f(f"pk_{table}")),
        sqlite_with_rowid=False,
    )


_BEFORE = (
    "UPDATE ledger SET before_tokens = found.tokens FROM (SELECT id, lag("  # noqa: S608
    f"{PROMPT}, 1, 0) OVER (PARTITION BY conversation, provider, model"
    f" ORDER BY id) AS tokens FROM ledger WHERE {ANSWER}) AS found"
    " WHERE found.id = ledger.id AND found.tokens > 0"
)


def _filled(table: str, keys: tuple[str, ...], dialect: str) -> str:
    named = ", ".join(KEYS[key] for key in keys)
    sums = ", ".join(f"sum({how})" for how in MEASURES.values())
    places = ", ".join(str(n) for n in range(1, len(keys) + 1))
    columns = ", ".join([*keys, *MEASURES])
    found = _said(f"{named}, {sums}", "ledger", dialect)
    return f"INSERT INTO {table} ({columns}) SELECT {found} FROM ledger GROUP BY {places}"  # noqa: S608


def _added(table: str, row: str, dialect: str, sign: str = "") -> str:
    keys = TABLES[table]
    names = ", ".join([*keys, *MEASURES])
    values = [KEYS[key] for key in keys] + [f"{sign}({how})" for how in MEASURES.values()]
    own = WORDS[dialect]["own"].format(table=table)
    sums = ", ".join(f"{name} = {own}{name} + excluded.{name}" for name in MEASURES)
    return (
        f"INSERT INTO {table} ({names})"  # noqa: S608
        f" VALUES ({_said(', '.join(values), row, dialect)})"
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sums};"
    )


def _emptied(table: str, dialect: str) -> str:
    same = " AND ".join(f"{key} = {_said(KEYS[key], 'OLD', dialect)}" for key in TABLES[table])
    return f"DELETE FROM {table} WHERE {same} AND calls = 0;"  # noqa: S608


def _create_triggers(dialect: str) -> None:
    added = " ".join(_added(table, "NEW", dialect) for table in TABLES)
    taken = " ".join(
        f"{_added(table, 'OLD', dialect, '-')} {_emptied(table, dialect)}" for table in TABLES
    )
    for what, body in (("INSERT", added), ("DELETE", taken), ("UPDATE", f"{taken} {added}")):
        name = f"ledger_{what.lower()}"
        if dialect == "sqlite":
            op.execute(f"CREATE TRIGGER {name} AFTER {what} ON ledger BEGIN {body} END")
            continue
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
            f" AS $$ BEGIN {body} RETURN NULL; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {name} AFTER {what} ON ledger FOR EACH ROW EXECUTE FUNCTION {name}()"
        )
