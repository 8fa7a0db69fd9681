"""Calls of models: what they cost, and sums that triggers keep.

Migration 0006 makes the sums with the words of this file: whoever changes these after 0.6 copies
them there first.
"""

from sqlalchemy import DDL, Boolean, Column, Double, Index, Table, Text, event, false

from gateway.storage.tables.columns import Whole, conversation_column, id_column, metadata

# One row for each call of a model; nothing but erasure changes them, and nothing refers to them.
ledger = Table(
    "ledger",
    metadata,
    id_column(),
    conversation_column(),
    Column("turn_id", Whole),  # NULL for what is done in the background
    Column("call_id", Text),  # NULL for calls of older versions
    Column("sender", Text, nullable=False, server_default=""),  # "platform:sender id"
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("purpose", Text, nullable=False),  # answer | summary | embedding | memory | lost
    Column("input_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_read_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_write_5m_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_write_1h_tokens", Whole, nullable=False, server_default="0"),
    Column("output_tokens", Whole, nullable=False, server_default="0"),
    Column("estimated", Boolean, nullable=False, server_default=false()),
    Column("usd", Double),  # NULL for an unknown price or unknown tokens
    Column("at", Double, nullable=False),
    Column("before_tokens", Whole, nullable=False, server_default="0"),  # the prompt before it
    Index("ix_ledger_conversation_turn_id", "conversation", "turn_id"),
)

SLOT_S = 900
"""Sums are kept for so many seconds: days of all time zones begin with one."""
PICO = 10**12
"""Money is summed in integers, so that erasing a call leaves no rest (decision 022)."""
SIZES = (512, 1024, 2048, 4096)
"""Shortest prefixes that models cache, tokens: agent/models/catalog.py has no others."""
_WORDS = {
    "sqlite": {
        "n": "",
        "most": "max",
        "floor": "",
        "end": "",
        "whole": "INTEGER",
        "own": "",
        "buckets": "1",
    },
    "postgresql": {
        "n": "::int",
        "most": "greatest",
        "floor": "floor(",
        "end": ")",
        "whole": "BIGINT",
        "own": "{table}.",
        # Turns of several conversations would wait for each other's commit at one row.
        "buckets": "8",
    },
}
"""What the sums of the ledger say otherwise in each dialect; `{n}` makes a number of a boolean."""
ANSWER = "({r}.purpose = 'answer' AND NOT {r}.estimated)"
PROMPT = (
    "({r}.input_tokens + {r}.cache_read_tokens + {r}.cache_write_5m_tokens"
    " + {r}.cache_write_1h_tokens)"
)
_KNOWN = (
    f"{{most}}({{r}}.cache_read_tokens, CASE WHEN {{r}}.before_tokens <= {PROMPT}"
    " THEN {r}.before_tokens ELSE 0 END)"
)
_PROMPT_SIZE = " + ".join(f"({PROMPT} >= {size}){{n}}" for size in SIZES)
_KNOWN_SIZE = " + ".join(f"({_KNOWN} >= {size}){{n}}" for size in SIZES)
MEASURES = {
    "calls": "1",
    "input_tokens": "{r}.input_tokens",
    "output_tokens": "{r}.output_tokens",
    "cache_read_tokens": "{r}.cache_read_tokens",
    "cache_write_5m_tokens": "{r}.cache_write_5m_tokens",
    "cache_write_1h_tokens": "{r}.cache_write_1h_tokens",
    "pico_usd": f"coalesce(cast(round({{r}}.usd * {PICO}) AS {{whole}}), 0)",
    "priced": "({r}.usd IS NOT NULL){n}",
    "estimates": "({r}.estimated AND {r}.usd IS NOT NULL){n}",
    "answers": f"{ANSWER}{{n}}",
    "answer_prompt": f"{ANSWER}{{n}} * {PROMPT}",
    "answer_input": f"{ANSWER}{{n}} * {{r}}.input_tokens",
    "answer_read": f"{ANSWER}{{n}} * {{r}}.cache_read_tokens",
    "answer_5m": f"{ANSWER}{{n}} * {{r}}.cache_write_5m_tokens",
    "answer_1h": f"{ANSWER}{{n}} * {{r}}.cache_write_1h_tokens",
    "answer_known": f"{ANSWER}{{n}} * {_KNOWN}",
}
"""What is summed up of the ledger, and how it is found in a row of it: `{r}` is NEW or OLD."""
_KEYS = {
    "slot": f"cast({{floor}}{{r}}.at / {SLOT_S}{{end}} AS {{whole}})",
    "conversation": "{r}.conversation",
    "sender": "{r}.sender",
    "provider": "{r}.provider",
    "model": "{r}.model",
    # 0: not compared with the least possible; else 1 + 5 * that of the prompt + that of what was
    # known of it, each the number of SIZES that it reaches.
    "size": f"CASE WHEN {ANSWER} THEN 1 + {len(SIZES) + 1} * ({_PROMPT_SIZE}) + {_KNOWN_SIZE}"
    " ELSE 0 END",
    "bucket": "{r}.conversation % {buckets}",
}


def _sums_table(name: str, *keys: str) -> Table:
    texts = {"sender", "provider", "model"}
    return Table(
        name,
        metadata,
        *(
            Column(key, Text if key in texts else Whole, primary_key=True, nullable=False)
            for key in keys
        ),
        *(Column(measure, Whole, nullable=False, server_default="0") for measure in MEASURES),
        sqlite_with_rowid=False,
    )


# The ledger summed up for reports (gateway/storage/reports/costs.py), by triggers.
spent_slot = _sums_table("spent_slot", "slot", "provider", "model", "size", "bucket")
# The key begins with the sender for budgets, which read the day of one sender.
spent_by = _sums_table("spent_by", "sender", "slot", "conversation", "provider", "model", "size")


def _said(text: str, row: str, dialect: str) -> str:
    return text.format(r=row, **_WORDS[dialect])


def rollup_sql(table: Table, row: str, sign: str = "", dialect: str = "sqlite") -> str:
    """Return the statement that adds (sign "-": takes off) a row of the ledger in a trigger."""
    keys = [column.name for column in table.primary_key]
    names = ", ".join([*keys, *MEASURES])
    values = [_KEYS[key] for key in keys] + [f"{sign}({how})" for how in MEASURES.values()]
    own = _WORDS[dialect]["own"].format(table=table.name)
    sums = ", ".join(f"{name} = {own}{name} + excluded.{name}" for name in MEASURES)
    return (
        f"INSERT INTO {table.name} ({names})"  # noqa: S608 - own names
        f" VALUES ({_said(', '.join(values), row, dialect)})"
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sums};"
    )


def filled_sql(dialect: str) -> str:
    """Return the statement that makes the sums by sender of the ledger."""
    keys = [column.name for column in spent_by.primary_key]
    found = [_KEYS[key] for key in keys] + [f"sum({how})" for how in MEASURES.values()]
    places = ", ".join(str(n) for n in range(1, len(keys) + 1))
    return (
        f"INSERT INTO spent_by ({', '.join([*keys, *MEASURES])})"  # noqa: S608 - own names
        f" SELECT {_said(', '.join(found), 'ledger', dialect)} FROM ledger GROUP BY {places}"
    )


def slots_sql(dialect: str) -> str:
    """Return the statement that makes the sums by model of those by conversation.

    In the order of time, as service enters them: the sums of a day lie side by side, so that
    PostgreSQL finds them in a few blocks.
    """
    keys = [column.name for column in spent_slot.primary_key]
    found = [key if key != "bucket" else _said(_KEYS[key], "spent_by", dialect) for key in keys]
    sums = [f"sum({name})" for name in MEASURES]
    places = ", ".join(str(n) for n in range(1, len(keys) + 1))
    return (
        f"INSERT INTO spent_slot ({', '.join([*keys, *MEASURES])})"  # noqa: S608 - own names
        f" SELECT {', '.join(found + sums)} FROM spent_by GROUP BY {places} ORDER BY {places}"
    )


def _emptied_sql(table: Table, dialect: str) -> str:
    keys = [column.name for column in table.primary_key]
    same = " AND ".join(f"{key} = {_said(_KEYS[key], 'OLD', dialect)}" for key in keys)
    return f"DELETE FROM {table.name} WHERE {same} AND calls = 0;"  # noqa: S608 - own names


def rollup_triggers(dialect: str = "sqlite") -> dict[str, str]:
    """Return the triggers of the ledger by name."""
    both = (spent_slot, spent_by)
    added = " ".join(rollup_sql(table, "NEW", dialect=dialect) for table in both)
    taken = " ".join(
        f"{rollup_sql(table, 'OLD', '-', dialect)} {_emptied_sql(table, dialect)}" for table in both
    )
    bodies = {"INSERT": added, "DELETE": taken, "UPDATE": f"{taken} {added}"}
    return {
        f"ledger_{what.lower()}": _trigger_sql(f"ledger_{what.lower()}", what, body, dialect)
        for what, body in bodies.items()
    }


def _trigger_sql(name: str, what: str, body: str, dialect: str) -> str:
    if dialect == "sqlite":
        return f"CREATE TRIGGER {name} AFTER {what} ON ledger BEGIN {body} END"
    return (
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" AS $$ BEGIN {body} RETURN NULL; END $$;"
        f" CREATE TRIGGER {name} AFTER {what} ON ledger FOR EACH ROW EXECUTE FUNCTION {name}()"
    )


# DDL formats its text with `%`: one that is meant as it is has to be doubled.
for _dialect in _WORDS:
    for _trigger in rollup_triggers(_dialect).values():
        event.listen(
            metadata,
            "after_create",
            DDL(_trigger.replace("%", "%%")).execute_if(dialect=_dialect),  # type: ignore[no-untyped-call]
        )
