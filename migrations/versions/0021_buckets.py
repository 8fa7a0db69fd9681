"""The sums by model are spread over several rows on PostgreSQL, where turns end side by side

Revision: 0021, follows 0020.
"""

from importlib import import_module

import sqlalchemy as sa
from alembic import op

from migrations import WHOLE

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

ROLLUP = import_module("migrations.versions.0011_rollup")
"""As frozen as this: how the rows of the ledger are summed up."""
BUCKETS = {"sqlite": "1", "postgresql": "8"}
KEYS = {
    "spent_slot": ("slot", "provider", "model", "size", "bucket"),
    "spent_by": ROLLUP.TABLES["spent_by"],
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    _drop_triggers(dialect)
    op.drop_table("spent_slot")
    op.create_table(
        "spent_slot",
        *(
            sa.Column(key, sa.Text() if key in ROLLUP.TEXTS else WHOLE, nullable=False)
            for key in KEYS["spent_slot"]
        ),
        *(sa.Column(name, WHOLE, server_default="0", nullable=False) for name in ROLLUP.MEASURES),
        sa.PrimaryKeyConstraint(*KEYS["spent_slot"], name=op.f("pk_spent_slot")),
        sqlite_with_rowid=False,
    )
    # The sums are those of the ledger, whatever was erased of it.
    op.execute(_filled(dialect))
    _create_triggers(dialect)


def _drop_triggers(dialect: str) -> None:
    for what in ("insert", "delete", "update"):
        if dialect == "sqlite":
            op.execute(f"DROP TRIGGER ledger_{what}")
        else:
            op.execute(f"DROP FUNCTION ledger_{what} CASCADE")


def _key(name: str, row: str, dialect: str) -> str:
    if name == "bucket":
        return f"{row}.conversation % {BUCKETS[dialect]}"
    return _said(ROLLUP.KEYS[name], row, dialect)


def _said(text: str, row: str, dialect: str) -> str:
    return text.format(r=row, **ROLLUP.WORDS[dialect])


def _filled(dialect: str) -> str:
    keys = KEYS["spent_slot"]
    named = ", ".join(_key(key, "ledger", dialect) for key in keys)
    sums = ", ".join(f"sum({_said(how, 'ledger', dialect)})" for how in ROLLUP.MEASURES.values())
    places = ", ".join(str(n) for n in range(1, len(keys) + 1))
    columns = ", ".join([*keys, *ROLLUP.MEASURES])
    return (
        f"INSERT INTO spent_slot ({columns}) SELECT {named}, {sums} FROM ledger GROUP BY {places}"  # noqa: S608
    )


def _added(table: str, row: str, dialect: str, sign: str = "") -> str:
    keys = KEYS[table]
    names = ", ".join([*keys, *ROLLUP.MEASURES])
    measures = (f"{sign}({_said(how, row, dialect)})" for how in ROLLUP.MEASURES.values())
    values = ", ".join([*(_key(key, row, dialect) for key in keys), *measures])
    own = ROLLUP.WORDS[dialect]["own"].format(table=table)
    sums = ", ".join(f"{name} = {own}{name} + excluded.{name}" for name in ROLLUP.MEASURES)
    return (
        f"INSERT INTO {table} ({names}) VALUES ({values})"  # noqa: S608
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sums};"
    )


def _emptied(table: str, dialect: str) -> str:
    same = " AND ".join(f"{key} = {_key(key, 'OLD', dialect)}" for key in KEYS[table])
    return f"DELETE FROM {table} WHERE {same} AND calls = 0;"  # noqa: S608


def _create_triggers(dialect: str) -> None:
    added = " ".join(_added(table, "NEW", dialect) for table in KEYS)
    taken = " ".join(
        f"{_added(table, 'OLD', dialect, '-')} {_emptied(table, dialect)}" for table in KEYS
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
