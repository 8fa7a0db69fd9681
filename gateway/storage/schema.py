"""The schema. Uniqueness rules are indexes; `message` rows are never updated.

Times are seconds since the epoch by the database's clock (`now_s`), except where a comment says so.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    and_,
    event,
    false,
    literal_column,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gateway.storage.statements import Word

REVISION = "0024"
"""The alembic revision that this code needs; a test holds it equal to the newest migration."""
FLOOR = "0023"
"""The oldest revision whose program runs on this schema, beside this version's or behind it: from
there on migrations only add (docs/operations.md, *Rolling upgrades*). One that takes something away
raises it to its own revision."""


class now_s(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Seconds since the epoch by the database's clock."""

    type = Double()
    inherit_cache = True


@compiles(now_s, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    # 2440587.5 is the Julian day with which the Unix epoch begins.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_s, "postgresql")
def _postgresql_now(*_: Any, **__: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class greatest(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """The largest of several whole numbers."""

    type = BigInteger()
    inherit_cache = True


@compiles(greatest, "sqlite")
def _sqlite_greatest(element: greatest, compiler: Any, **how: Any) -> str:
    return f"max({compiler.process(element.clauses, **how)})"


@compiles(greatest, "postgresql")
def _postgresql_greatest(element: greatest, compiler: Any, **how: Any) -> str:
    return f"greatest({compiler.process(element.clauses, **how)})"


class octets(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """The bytes of a text; its `length` are characters."""

    type = BigInteger()
    inherit_cache = True


@compiles(octets, "sqlite")
def _sqlite_octets(element: octets, compiler: Any, **how: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **how)} AS BLOB))"


@compiles(octets, "postgresql")
def _postgresql_octets(element: octets, compiler: Any, **how: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **how)})"


def now(conn: Connection) -> float:
    """Return the time by the database's clock, in seconds since the epoch."""
    at: float = conn.execute(select(now_s())).scalar_one()
    return at


def iso_time(at: float) -> str:
    """Return a stored time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


Whole = BigInteger().with_variant(Integer(), "sqlite")
"""A whole number of 64 bits, which SQLite's INTEGER has anyway: ids of a large house outgrow 32."""

# Ids of what may be erased are never given again (sqlite_autoincrement).


def _id() -> Column[int]:
    return Column("id", Whole, primary_key=True, autoincrement=True)


def _conversation(*, primary_key: bool = False) -> Column[int]:
    reference = ForeignKey("conversation.id")
    return Column("conversation", Whole, reference, primary_key=primary_key, nullable=False)


def _session(name: str, *, primary_key: bool = False, unique: bool = False) -> Column[int]:
    return Column(
        name,
        Whole,
        ForeignKey("session.id"),
        primary_key=primary_key,
        unique=unique or None,
        nullable=False,
    )


def _partial_index(name: str, *columns: Column[Any], where: str, unique: bool = False) -> None:
    """Index the rows of a table for which `where` holds.

    SQLite matches it by its words: a condition that is to find it has literals, no parameters.
    """
    Index(name, *columns, unique=unique, sqlite_where=text(where))


@event.listens_for(metadata, "before_create")
def _restrict_indexes(target: MetaData, conn: Connection, **_: Any) -> None:
    """Give each partial index its condition in the dialect of the database, too.

    Else a unique one would hold for all rows there, unnoticed. Not said in `_partial_index`: that
    would import the other dialect at each start.
    """
    for index in (index for each in target.sorted_tables for index in each.indexes):
        index.dialect_options[conn.dialect.name]["where"] = index.dialect_options["sqlite"]["where"]


replica = Table(
    "replica",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("heartbeat_until", Double, nullable=False),
    sqlite_autoincrement=True,
)

# Which replica receives for an account of a platform, where only one may; on PostgreSQL alone.
adapter_lease = Table(
    "adapter_lease",
    metadata,
    Column("platform", Text, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("shard", Whole, primary_key=True),
    Column("owner", Whole),  # NULL where nobody receives
    Column("epoch", Whole, nullable=False, server_default="0"),
)

# One row: which database this is, and how many commits it has had (gateway/storage/identity.py).
identity = Table(
    "identity",
    metadata,
    Column("name", Text, primary_key=True),
    Column("commits", Whole, nullable=False),
)

conversation = Table(
    "conversation",
    metadata,
    _id(),
    Column("platform", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("thread", Text),
    Column("user", Text),
    Column("title", Text, nullable=False, server_default=""),
    Column("active_session_id", Whole),
    Column("created_at", Double, nullable=False),
    Column("inbox_head", Whole, nullable=False, server_default="0"),
    Column("outbox_head", Whole, nullable=False, server_default="0"),
    Column("message_head", Whole, nullable=False, server_default="0"),
    Column("owner", Whole, ForeignKey("replica.id")),
    Column("epoch", Whole, nullable=False, server_default="0"),
    Column("ready_no", Whole),
    Column("turn_not_before", Double, nullable=False, server_default="0"),
    Column("cancel_upto_seq", Whole, nullable=False, server_default="0"),
    Column("parent_turn_id", Whole),  # of a delegated child: the turn that waits for it
    Column("parent_call_id", Text),  # and the call of that turn
    Column("model", Text),  # chosen with `/model`; NULL for the settings' own
    Column("searched_seq", Whole, nullable=False, server_default="0"),  # newest in the index
    sqlite_autoincrement=True,
)
_partial_index(
    "uq_conversation_parent_turn_id_parent_call_id",
    conversation.c.parent_turn_id,
    conversation.c.parent_call_id,
    where="parent_turn_id IS NOT NULL",
    unique=True,
)
_partial_index("ix_conversation_unsearched", conversation.c.id, where="message_head > searched_seq")
_partial_index(
    "ix_conversation_platform_user",
    conversation.c.platform,
    conversation.c.user,
    where='"user" IS NOT NULL',
)
_partial_index(
    "ix_conversation_ready", conversation.c.ready_no, where="owner IS NULL AND ready_no IS NOT NULL"
)
_partial_index("ix_conversation_owner", conversation.c.owner, where="owner IS NOT NULL")

alias = Table(
    "alias",
    metadata,
    Column("session_key", Text, primary_key=True),
    _conversation(),
    Index("ix_alias_conversation", "conversation"),
)

quarantine = Table(
    "quarantine",
    metadata,
    _id(),
    Column("source", Text, nullable=False),
    Column("dedupe_key", Text, nullable=False),
    Column("raw", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("chat", Text),  # where a stranger wrote; NULL for what could not be decoded
    UniqueConstraint("source", "dedupe_key"),
)
_partial_index("ix_quarantine_raw_at", quarantine.c.at, where="raw != ''")

inbox = Table(
    "inbox",
    metadata,
    _conversation(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("source", Text, nullable=False),
    Column("dedupe_key", Text, nullable=False),
    Column("kind", Word, nullable=False),  # message | command | edit | overheard
    Column("sender", Text, nullable=False),
    Column("sender_name", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("message_ref", Text),
    Column("raw", Text),  # NULL once pruned
    # queued | taken | done | cancelled | refused | dead | noted (told with the next turn)
    Column("state", Word, nullable=False),
    Column("turn_id", Whole),
    Column("at", Double, nullable=False),
    Column("command", Text),  # its name (gateway/commands); NULL for what is none of them
    Column("authors", Text),  # JSON [id, …]: who is quoted or forwarded; NULL for nobody
    UniqueConstraint("source", "dedupe_key"),
)
# Partial: else SQLite takes it for the index of what waits, and reads a conversation's whole inbox.
_partial_index(
    "ix_inbox_conversation_message_ref",
    inbox.c.conversation,
    inbox.c.message_ref,
    where="message_ref IS NOT NULL",
)
# Stands beside narrower conditions, too (state = 'queued'): SQLite takes a partial index only where
# the words of its own condition are in the statement.
is_pending = inbox.c.state.in_(("queued", "taken"))
"""Waits or is being answered."""
_partial_index(
    "ix_inbox_pending", inbox.c.conversation, inbox.c.seq, where="state IN ('queued', 'taken')"
)
is_noted = inbox.c.state == "noted"
"""Context of the next turn: what was overheard, or changed after it was answered."""
_partial_index("ix_inbox_noted", inbox.c.conversation, inbox.c.seq, where="state = 'noted'")
is_said = inbox.c.kind.in_(("message", "command"))
_partial_index(
    "ix_inbox_sender_at", inbox.c.sender, inbox.c.at, where="kind IN ('message', 'command')"
)
_partial_index("ix_inbox_raw_at", inbox.c.at, where="raw IS NOT NULL")

cursor = Table(
    "cursor",
    metadata,
    Column("source", Text, primary_key=True),
    Column("position", Whole, nullable=False),
)

# Texts that many segments share, each once (gateway/storage/conversation/sessions.py).
prompt_text = Table(
    "prompt_text",
    metadata,
    _id(),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

# What the requests of segments begin with.
prompt_base = Table(
    "prompt_base",
    metadata,
    _id(),
    Column("digest", LargeBinary, nullable=False, unique=True),  # of all that follows
    Column("prompt_id", Whole, ForeignKey("prompt_text.id"), nullable=False),
    Column("tools_id", Whole, ForeignKey("prompt_text.id")),  # JSON, byte for byte as it began
    Column("layers", Text, nullable=False),  # JSON [[layer, characters], …] of the prompt, in order
    Column("inputs", Text),  # JSON of what prompt and tools were made from
    Index("ix_prompt_base_prompt_id", "prompt_id"),
    Index("ix_prompt_base_tools_id", "tools_id"),
    sqlite_autoincrement=True,
)

session = Table(
    "session",
    metadata,
    _id(),
    _conversation(),
    Column("parent_session_id", Whole, ForeignKey("session.id"), unique=True),
    Column("start_reason", Text, nullable=False),
    Column("end_reason", Text),
    Column("prompt_tokens", Whole),  # last reported by the model
    Column("prompt_upto_seq", Whole),  # newest message that the report covers
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("number", Whole, nullable=False, server_default="1"),  # place in its lineage
    Column("prompt_output_tokens", Whole),  # what the last reported call wrote
    Column("report_model", Text),  # who reported
    Column("token_ratio", Double, nullable=False, server_default="1"),  # reported / estimated
    Column("planner_state", Text, nullable=False, server_default="{}"),  # JSON
    Column("prefix", Text),  # JSON of the fingerprint of the last request
    Column("moved", Text),  # why the next request may begin otherwise than that one
    Column("base_id", Whole, ForeignKey("prompt_base.id")),  # NULL until its first turn
    Column("own_prompt", Text),  # the end of its system prompt, behind that of the base
    Column("origins", Text),  # JSON [[kind, which], …]: whose words its lineage holds; NULL: none
    Index("ix_session_conversation", "conversation"),
    sqlite_autoincrement=True,
)
# Whether a base is still used is asked for each segment that is erased.
_partial_index("ix_session_base_id", session.c.base_id, where="base_id IS NOT NULL")

# What a segment shows. Apart from its row, which each call of a model writes anew: a plan holds
# summaries, and SQLite writes a row whose size changes with all of its pages.
view_plan = Table(
    "view_plan",
    metadata,
    _session("session_id", primary_key=True),
    Column("body", Text, nullable=False),  # versioned JSON (agent/view/view.py)
)

compaction = Table(
    "compaction",
    metadata,
    _id(),
    _conversation(),
    _session("parent_session_id", unique=True),
    _session("child_session_id", unique=True),
    Column("trigger", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("level", Text, nullable=False),
    Column("messages_before", Whole, nullable=False),
    Column("messages_after", Whole, nullable=False),
    Column("tokens_before", Whole, nullable=False),
    Column("tokens_after", Whole, nullable=False),  # estimated
    Column("tokens_after_reported", Whole),  # by the first call after it
    Column("summary_model", Text),
    Column("retained_share", Double),
    Column("cache_tokens_lost", Whole, nullable=False),
    Column("failure", Text),
    Column("duration_ms", Whole, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_compaction_conversation", "conversation"),
    sqlite_autoincrement=True,
)

summary_candidate = Table(
    "summary_candidate",
    metadata,
    _session("session_id", primary_key=True),
    _conversation(),
    Column("first_seq", Whole, nullable=False),
    Column("last_seq", Whole, nullable=False),
    Column("text", Text, nullable=False),
    Column("source", Text, nullable=False),  # model | extract
    Column("model", Text),
    Column("at", Double, nullable=False),
    Index("ix_summary_candidate_conversation", "conversation"),
)

turn = Table(
    "turn",
    metadata,
    _id(),
    _conversation(),
    Column("session_id", Whole, ForeignKey("session.id"), nullable=False),
    Column("first_seq", Whole, nullable=False),
    Column("upto_seq", Whole, nullable=False),
    Column("state", Word, nullable=False),  # running | done | cancelled | dead | dropped
    Column("outcome", Text),
    Column("error", Text),
    Column("epoch", Whole, nullable=False),
    Column("attempt", Whole, nullable=False),
    Column("progress", Whole, nullable=False, server_default="0"),
    Column("attempt_progress", Whole, nullable=False, server_default="0"),
    Column("preview_ref", Text),  # "?" and a nonce from before it is posted until its id is known
    Column("model", Text),
    Column("iterations", Whole, nullable=False, server_default="0"),
    Column("tool_calls", Whole, nullable=False, server_default="0"),
    Column("input_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_read_tokens", Whole, nullable=False, server_default="0"),
    Column("cache_write_tokens", Whole, nullable=False, server_default="0"),
    Column("output_tokens", Whole, nullable=False, server_default="0"),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("usd", Double),  # what its calls cost; NULL where that of any is not known
    Column("senders", Text),  # JSON of ["platform:sender id", …]: whose words its question holds
    Column("attempt_at", Double),  # when its last attempt began; NULL: with the turn
    # How it stands after deaths of the process (gateway/storage/queue/blame.py):
    Column("deaths", Whole, nullable=False, server_default="0"),
    Column("blamed", Whole, nullable=False, server_default="0"),
    Column("quiet_s", Double, nullable=False, server_default="0"),
    Column("troubled_at", Double),
    Column("retries", Whole),  # the dead turn that it asks again
    sqlite_autoincrement=True,
)
is_running = turn.c.state == "running"
"""Not finished; at most one per conversation."""
Index("ix_turn_conversation_id", turn.c.conversation, turn.c.id)
# For the foreign key: without it each segment that is erased costs a look at all turns.
Index("ix_turn_session_id", turn.c.session_id)
# Unique: the database itself refuses a second running turn, whatever the code believes.
_partial_index("uq_turn_running", turn.c.conversation, where="state = 'running'", unique=True)
_partial_index("ix_turn_dead", turn.c.finished_at, turn.c.id, where="state = 'dead'")

step = Table(
    "step",
    metadata,
    Column("turn_id", Whole, ForeignKey("turn.id"), primary_key=True),
    Column("n", Whole, primary_key=True),
    Column("kind", Word, nullable=False),  # model | tool
    Column("name", Text, nullable=False),
    Column("call_id", Text),  # of a tool's call; of a model's: that of the ledger
    Column("effect", Text),
    Column("request_hash", Text),
    Column("state", Word, nullable=False),  # started | done
    # JSON: status of a tool; usage of a model's call before version 0.6 (now in the ledger only)
    Column("result", Text),
    Column("at", Double, nullable=False),
    sqlite_with_rowid=False,
)
is_of_tool = step.c.kind == "tool"
"""A step that called a tool, not a model."""
_partial_index("ix_step_tool", step.c.turn_id, step.c.name, step.c.at, where="kind = 'tool'")

# One row for each call of a model; nothing but erasure changes them, and nothing refers to them.
ledger = Table(
    "ledger",
    metadata,
    _id(),
    _conversation(),
    Column("turn_id", Whole),  # NULL for what is done in the background
    Column("call_id", Text),  # NULL for calls of older versions
    Column("sender", Text, nullable=False, server_default=""),  # "platform:sender id"
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("purpose", Text, nullable=False),  # answer | summary | lost
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
_ANSWER = "({r}.purpose = 'answer' AND NOT {r}.estimated)"
_PROMPT = (
    "({r}.input_tokens + {r}.cache_read_tokens + {r}.cache_write_5m_tokens"
    " + {r}.cache_write_1h_tokens)"
)
_KNOWN = (
    f"{{most}}({{r}}.cache_read_tokens, CASE WHEN {{r}}.before_tokens <= {_PROMPT}"
    " THEN {r}.before_tokens ELSE 0 END)"
)
_PROMPT_SIZE = " + ".join(f"({_PROMPT} >= {size}){{n}}" for size in SIZES)
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
    "answers": f"{_ANSWER}{{n}}",
    "answer_prompt": f"{_ANSWER}{{n}} * {_PROMPT}",
    "answer_input": f"{_ANSWER}{{n}} * {{r}}.input_tokens",
    "answer_read": f"{_ANSWER}{{n}} * {{r}}.cache_read_tokens",
    "answer_5m": f"{_ANSWER}{{n}} * {{r}}.cache_write_5m_tokens",
    "answer_1h": f"{_ANSWER}{{n}} * {{r}}.cache_write_1h_tokens",
    "answer_known": f"{_ANSWER}{{n}} * {_KNOWN}",
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
    "size": f"CASE WHEN {_ANSWER} THEN 1 + {len(SIZES) + 1} * ({_PROMPT_SIZE}) + {_KNOWN_SIZE}"
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


def slots_sql(dialect: str) -> str:
    """Return the statement that makes the sums by model of those by conversation."""
    keys = [column.name for column in spent_slot.primary_key]
    found = [key if key != "bucket" else _said(_KEYS[key], "spent_by", dialect) for key in keys]
    sums = [f"sum({name})" for name in MEASURES]
    places = ", ".join(str(n) for n in range(1, len(keys) + 1))
    return (
        f"INSERT INTO spent_slot ({', '.join([*keys, *MEASURES])})"  # noqa: S608 - own names
        f" SELECT {', '.join(found + sums)} FROM spent_by GROUP BY {places}"
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

# What a person is asked while a turn waits: an approval, or a question of the agent.
inquiry = Table(
    "inquiry",
    metadata,
    _id(),
    _conversation(),  # where it is asked; for a delegated child that of its parent
    Column("turn_id", Whole, nullable=False),  # the turn whose call waits
    Column("call_id", Text, nullable=False),
    Column("kind", Word, nullable=False),  # approval | clarify
    Column("tool", Text, nullable=False),
    Column("definition", Text, nullable=False),  # approval: digest of the tool as it was offered
    Column("question", Text, nullable=False),
    Column("choices", Text, nullable=False, server_default="[]"),  # JSON [label, …]
    Column("state", Word, nullable=False),  # pending | answered | expired | cancelled
    Column("answer", Text),  # approval: once | conversation | deny; else what was said
    Column("answered_by", Text),  # "platform:sender id"
    Column("expires_at", Double, nullable=False),
    Column("at", Double, nullable=False),
    Column("answered_at", Double),
    Column("for_owners", Boolean, nullable=False, server_default=false()),  # they alone may approve
    Column("rule", Text),  # approval: the row of the policy by which it is asked
    UniqueConstraint("turn_id", "call_id"),
    Index("ix_inquiry_conversation", "conversation"),
    sqlite_autoincrement=True,
)
is_unanswered = inquiry.c.state == "pending"
"""Its turn waits."""
_partial_index("ix_inquiry_pending", inquiry.c.conversation, where="state = 'pending'")

# The agent's list of what is to be done, as the model wrote it last.
todo = Table(
    "todo",
    metadata,
    _conversation(primary_key=True),
    Column("items", Text, nullable=False),  # JSON
    Column("first_seq", Whole, nullable=False),  # of the root in which it was written
    Column("at", Double, nullable=False),
)

# What the agent has noted down; scope: "platform:sender id", or "conversation:id" for a shared one.
memory = Table(
    "memory",
    metadata,
    _id(),
    Column("scope", Text, nullable=False),
    Column("target", Text, nullable=False),  # memory | user
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_memory_scope", "scope"),
    sqlite_autoincrement=True,
)

# Nodes of the engine `lcm`: a leaf summarises messages, a higher one summarises its children.
node = Table(
    "node",
    metadata,
    _conversation(primary_key=True),
    Column("number", Whole, primary_key=True),  # from 1 on in each conversation
    Column("level", Whole, nullable=False),  # 0 for a leaf
    Column("first_seq", Whole, nullable=False),
    Column("last_seq", Whole, nullable=False),
    Column("children", Text, nullable=False, server_default="[]"),  # JSON [number, …]
    Column("text", Text, nullable=False),
    Column("source", Text, nullable=False),  # model | extract | pointer
    Column("tokens", Whole, nullable=False),
    Column("source_tokens", Whole, nullable=False),  # of what it stands for
    Column("at", Double, nullable=False),
)

# What the full-text index (search_index, see gateway/storage/search/index.py) holds: its rows have
# no columns of their own, and their ids are made of conversation and seq.
search_row = Table(
    "search_row",
    metadata,
    _conversation(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("role", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("terms", Whole, nullable=False),  # how many different ones
    sqlite_with_rowid=False,
)
SEARCH_INDEX = "search_index"
"""Begins the names of the tables in which SQLite keeps it, too."""
event.listen(
    search_row,
    "after_create",
    # No text, no positions: 30 bytes for a message. Terms come ready-made, separated by spaces.
    DDL(  # type: ignore[no-untyped-call]
        f"CREATE VIRTUAL TABLE {SEARCH_INDEX} USING fts5(terms, content='', columnsize=0,"
        " detail=none, tokenize=\"ascii tokenchars '='\")"
    ).execute_if(dialect="sqlite"),
)
event.listen(
    search_row,
    "after_create",
    DDL(  # type: ignore[no-untyped-call]
        f"CREATE TABLE {SEARCH_INDEX} (id BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL);"
        f" CREATE INDEX {SEARCH_INDEX}_terms ON {SEARCH_INDEX} USING gin (terms)"
    ).execute_if(dialect="postgresql"),
)

message = Table(
    "message",
    metadata,
    _conversation(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("session_id", Whole, nullable=False),
    Column("turn_id", Whole),
    Column("role", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("tokens", Whole, nullable=False),
    Column("at", Double, nullable=False),
)

blob = Table(
    "blob",
    metadata,
    _id(),
    _conversation(),
    Column("turn_id", Whole),
    Column("body", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_blob_conversation", "conversation"),
    sqlite_autoincrement=True,
)

# Files that came with a message or that a tool made; their bytes are the parts, in order. Where
# those lie in the object store the parts are their beginning.
attachment = Table(
    "attachment",
    metadata,
    _id(),
    _conversation(),
    Column("inbox_seq", Whole),  # the message it came with; NULL for one that a tool made
    Column("turn_id", Whole),  # the turn that made it; NULL for one that came in
    Column("name", Text, nullable=False),
    Column("kind", Word, nullable=False),  # image | voice | audio | video | file
    Column("mime", Text, nullable=False),
    Column("size_bytes", Whole),  # as the platform said; exact once it is stored
    Column("sha256", Text),  # hex, once it is stored
    Column("object", Whole),  # id of the stored_object with its bytes; NULL: they are here
    Column("ref", Text, nullable=False),  # the platform's handle
    Column("state", Word, nullable=False),  # pending | stored | failed
    Column("failures", Whole, nullable=False, server_default="0"),
    Column("error", Text),  # why it is not there, in words for the model
    Column("at", Double, nullable=False),
    Index("ix_attachment_conversation_inbox_seq", "conversation", "inbox_seq"),
    sqlite_autoincrement=True,
)
file_is_awaited = attachment.c.state == "pending"
"""A file that is not there yet."""
_partial_index("ix_attachment_pending", attachment.c.conversation, where="state = 'pending'")
Index("ix_attachment_turn_id", attachment.c.turn_id)
LARGE_BYTES = 262_144
"""Files of more bytes are moved to the object store, where there is one."""
is_large = and_(
    attachment.c.state == "stored",
    attachment.c.object.is_(None),
    attachment.c.size_bytes > literal_column(str(LARGE_BYTES)),
)
"""A large file whose bytes lie in the database."""
_partial_index(
    "ix_attachment_large",
    attachment.c.id,
    where="state = 'stored' AND object IS NULL AND size_bytes > 262144",
)
_partial_index("ix_attachment_object", attachment.c.object, where="object IS NOT NULL")

# What was put into the object store (gateway/storage/conversation/stored_objects.py).
stored_object = Table(
    "stored_object",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),  # in the store, below its prefix
    Column("sha256", Text, nullable=False),
    Column("state", Word, nullable=False),  # coming | there | leaving
    Column("at", Double, nullable=False),  # when the state was entered, or last tried
    Index("ix_stored_object_sha256", "sha256"),
    Index("ix_stored_object_state", "state", "id"),
    sqlite_autoincrement=True,
)

attachment_part = Table(
    "attachment_part",
    metadata,
    Column("attachment", Whole, ForeignKey("attachment.id"), primary_key=True),
    Column("n", Whole, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

# Who may talk to the bot beside those in the settings.
member = Table(
    "member",
    metadata,
    Column("platform", Text, primary_key=True),
    Column("sender", Text, primary_key=True),
    Column("sender_name", Text, nullable=False),
    Column("role", Text, nullable=False),  # member | owner
    Column("granted_by", Text, nullable=False),  # "platform:sender", "code" or "command line"
    Column("at", Double, nullable=False),
    Index("ix_member_at", "at", "platform", "sender"),
)

# Who may use the web chat beside its first owner, who needs no row: whoever has the token.
web_user = Table(
    "web_user",
    metadata,
    Column("name", Text, primary_key=True),  # the sender id of what they write
    Column("role", Text, nullable=False),  # owner | member | guest | removed
    Column("same_as", Text),  # "platform:sender" whose role they have; NULL for their own
    Column("invited_by", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("identity", Text),  # "issuer subject" of whom an identity provider names
    Column("let_in_by", Text),  # the entry of web.oidc.allowed whose role they have
    Index("ux_web_user_identity", "identity", unique=True),
)

# Who is signed in. Secrets are stored as hashes: a copy of the database signs nobody in.
web_session = Table(
    "web_session",
    metadata,
    _id(),
    Column("hash", Text, nullable=False, unique=True),
    Column("sender", Text, nullable=False),
    Column("signed_in_by", Text, nullable=False),  # link | token | proxy | oidc
    Column("address", Text, nullable=False),
    Column("browser", Text, nullable=False),  # as it calls itself
    Column("at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("ix_web_session_sender", "sender"),
    sqlite_autoincrement=True,
)

# A link that signs somebody in, once; the row goes when it is used.
web_link = Table(
    "web_link",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("sender", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

# One row for each stranger who asks to be let in, and one (sender NULL) for the first owner's code.
pairing = Table(
    "pairing",
    metadata,
    _id(),
    Column("code", Text, nullable=False, unique=True),
    Column("platform", Text),
    Column("account", Text),
    Column("sender", Text),
    Column("sender_name", Text, nullable=False, server_default=""),
    Column("conversation", Whole, ForeignKey("conversation.id")),  # where the stranger is told
    Column("state", Word, nullable=False),  # pending | approved | denied
    Column("expires_at", Double, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_pairing_platform_sender", "platform", "sender"),
    Index("ix_pairing_conversation", "conversation"),
    sqlite_autoincrement=True,
)

# The audit log; its rows stay, what they say may be erased (gateway/storage/audit_log.py).
audit_log = Table(
    "audit_log",
    metadata,
    Column("seq", Whole, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", Word, nullable=False),
    Column("conversation", Whole),  # of what may be erased by now: no foreign key
    Column("emptied", Text, nullable=False),
    Column("said", Text),  # NULL once it was erased, with its salt
    Column("salt", Text),
    Column("digest", Text, nullable=False),
    Column("prev", Text, nullable=False, unique=True),
    Column("hash", Text, nullable=False),
    Index("ix_audit_log_kind_seq", "kind", "seq"),
)
_partial_index(
    "ix_audit_log_conversation", audit_log.c.conversation, where="conversation IS NOT NULL"
)
# One row: where the chain of the audit log ends. Who appends holds it.
audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=False),
    Column("seq", Whole, nullable=False),
    Column("hash", Text, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    _conversation(primary_key=True),
    Column("seq", Whole, primary_key=True),
    Column("source_key", Text, nullable=False, unique=True),
    Column("inbox_seq", Whole, nullable=False),  # what it answers; orders it among the inbox rows
    Column("turn_id", Whole),
    Column("payload", Text, nullable=False),
    Column("markdown", Text),  # NULL where the payload is the markdown itself
    Column("preview_ref", Text),
    Column("reply_to", Text),
    Column("choices", Text),  # JSON [[label, text], …]; NULL for none
    Column("attachment", Whole),  # id of the file that the row shows
    Column("state", Word, nullable=False),  # pending | sending | unknown | sent | dead | dropped
    Column("doubt", Boolean, nullable=False, server_default=false()),  # may have been shown
    Column("failures", Whole, nullable=False, server_default="0"),
    Column("sender", Whole),  # the replica that is sending
    Column("next_at", Double, nullable=False, server_default="0"),
    Column("platform_ref", Text),
    Column("resent", Boolean, nullable=False, server_default=false()),
    Column("error", Text),
    Column("at", Double, nullable=False),
    Column("sent_at", Double),
)
UNSENT = ("pending", "sending", "unknown")
is_unsent = outbox.c.state.in_(UNSENT)
"""Still to be shown, or in doubt."""
_partial_index(
    "ix_outbox_unsent",
    outbox.c.conversation,
    outbox.c.seq,
    where="state IN ('pending', 'sending', 'unknown')",
)
_partial_index(
    "ix_outbox_dead", outbox.c.at, outbox.c.conversation, outbox.c.seq, where="state = 'dead'"
)

# What replicas tell each other (gateway/storage/sharing.py). With one process they stay empty;
# those of chats are UNLOGGED on PostgreSQL (migration 0023): after a crash nobody misses them.
news = Table(
    "news",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("n", Whole, nullable=False),  # how often it has happened
)
chat_watch = Table(
    "chat_watch",
    metadata,
    Column("session_key", Text, primary_key=True),  # of a chat that may not have begun
    Column("replica", Whole, primary_key=True, autoincrement=False),
    Column("until", Double, nullable=False),
)
chat_preview = Table(
    "chat_preview",
    metadata,
    Column("session_key", Text, primary_key=True),
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
)
