"""Makes a database as years of service leave one, through the real schema and in bulk.

Conversations, their aliases, first sessions and prompts are made by the product's own functions,
so that the same file fits every version of the schema; the rows of turns are inserted directly.
They lie in the order of time, as in service: the messages of a conversation are spread over the
file.
"""

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson
from sqlalchemy import Connection

from adapters.messages import Address, InboundMessage
from gateway.storage.conversation import conversations, sessions
from gateway.storage.migrations import prepare_schema
from gateway.storage.search import index
from gateway.storage.sqlite_file import connect
from gateway.wiring import build_prompts
from tests.bench.echo import EchoModel
from tests.bench.running import agent_of, bench_settings
from tests.bench.seeding import open_place

PLATFORMS = ("telegram", "discord", "slack", "web")
MODELS = (("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5.1"), ("anthropic", "claude-haiku"))
DAYS = 180
BATCH = 10_000
TEXT_CHARS = 370
EVERY_TOOL, EVERY_DEAD, EVERY_BACKGROUND = 5, 500, 20
"""One turn in so many calls a tool, is given up, has a summary written in the background."""


class Size(NamedTuple):
    """How much is made; each turn has two messages, those with a tool have four."""

    conversations: int = 100_000
    turns: int = 500_000

    @property
    def name(self) -> str:
        """Return a name for the file."""
        return f"aged-{self.conversations}-{self.turns}.db"


def make(path: Path, size: Size, *, ends_at: float | None = None) -> None:
    """Write the database; takes minutes for a large one."""
    connection = connect(path)
    try:
        prepare_schema(connection)
        raw = cast("sqlite3.Connection", connection.connection.driver_connection)
        raw.execute("PRAGMA synchronous=OFF")
        ends_at = time.time() if ends_at is None else ends_at
        _make_conversations(connection, path.parent / "home", size, ends_at)
        rows = _Rows(size, ends_at)
        for first in range(1, size.turns + 1, BATCH):
            with connection.begin():
                rows.write(raw, first, min(first + BATCH, size.turns + 1))
        with connection.begin():
            _finish(raw, size)
        _feed(connection)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
        connection.engine.dispose()


def _make_conversations(connection: Connection, home: Path, size: Size, ends_at: float) -> None:
    home.mkdir(exist_ok=True)
    settings = bench_settings(home)
    base = build_prompts(settings).base(agent_of(settings, EchoModel()))
    for first in range(1, size.conversations + 1, BATCH):
        with connection.begin():
            for n in range(first, min(first + BATCH, size.conversations + 1)):
                place = open_place(connection, _first(n))
                sessions.settle_base(connection, sessions.get(connection, place.session_id), base)
    began = ends_at - DAYS * 86_400
    with connection.begin():
        connection.exec_driver_sql("UPDATE conversation SET created_at = ?", (began,))
        connection.exec_driver_sql("UPDATE session SET started_at = ?", (began,))


def _first(n: int) -> InboundMessage:
    return InboundMessage(
        address=Address(PLATFORMS[n % len(PLATFORMS)], "default", f"chat-{n}"),
        chat_kind="dm",
        sender=sender_of(n),
        sender_name="Ada",
        text=f"Question {n} about order {n * 7}",
        dedupe_key=f"first-{n}",
        raw="{}",
    )


def sender_of(conversation: int) -> str:
    """Return who writes in a conversation: each person has two or three of them."""
    return f"person-{conversation * 2 // 5}"


class _Rows:
    """Makes the rows of turns in order; the same ones for the same size."""

    def __init__(self, size: Size, ends_at: float) -> None:
        self._size = size
        self._began = ends_at - DAYS * 86_400
        self._dice = random.Random(13)  # noqa: S311 - repeatable, guards nothing
        self._heads: dict[int, list[int]] = {}
        self._touched: set[int] = set()
        self._words = ["".join(self._letters()) for _ in range(20_000)]
        self._rows: dict[str, list[tuple[Any, ...]]] = {}

    def _letters(self) -> Iterator[str]:
        for n in range(self._dice.randint(3, 11)):
            yield self._dice.choice("aeiou" if n % 2 else "bcdfghjklmnprstvwz")

    def _text(self) -> str:
        return " ".join(self._dice.choices(self._words, k=60))[:TEXT_CHARS]

    def write(self, raw: sqlite3.Connection, first: int, behind: int) -> None:
        """Insert the turns from `first` on, up to the one before `behind`."""
        self._rows, self._touched = {table: [] for table in _STATEMENTS}, set()
        for turn in range(first, behind):
            self._turn(turn)
        for table, statement in _STATEMENTS.items():
            raw.executemany(statement, self._rows[table])
        heads = [(*self._heads[each], each) for each in self._touched]
        raw.executemany(
            "UPDATE conversation SET inbox_head = ?, outbox_head = ?, message_head = ?,"
            " epoch = 1 WHERE id = ?",
            heads,
        )

    def _turn(self, turn: int) -> None:
        count = self._size.conversations
        # Everybody has asked once; the rest is spread at random.
        here = turn if turn <= count else self._dice.randint(1, count)
        at = self._began + DAYS * 86_400 * turn / self._size.turns
        self._touched.add(here)
        head = self._heads.setdefault(here, [0, 0, 0])
        head[0] += 1
        head[1] += 1
        whose = f"{PLATFORMS[here % len(PLATFORMS)]}:{sender_of(here)}"
        asked, answer = self._text(), self._text()
        dead = turn % EVERY_DEAD == 0
        self._inbox(here, turn, head[0], asked, at, "dead" if dead else "done")
        self._outbox(here, turn, head, answer, at)
        self._messages(here, turn, head, asked, answer, at)
        self._accounts(here, turn, whose, at)
        state, outcome = ("dead", "failed") if dead else ("done", "final_text")
        model = MODELS[turn % len(MODELS)][1]
        self._rows["turn"].append((
            turn,
            here,
            here,
            head[0],
            head[0],
            state,
            outcome,
            model,
            at,
            at + 3,
            0.01,
            orjson.dumps([whose]).decode(),
        ))

    def _inbox(self, here: int, turn: int, seq: int, text: str, at: float, state: str) -> None:
        platform = PLATFORMS[here % len(PLATFORMS)]
        key, who = f"update-{turn}", sender_of(here)
        self._rows["inbox"].append((
            here,
            seq,
            f"{platform}:default",
            key,
            who,
            text,
            f"{turn}",
            state,
            turn,
            at,
        ))

    def _outbox(self, here: int, turn: int, head: list[int], text: str, at: float) -> None:
        key, ref = f"turn:{turn}:answer:1", f"{here}:{turn}"
        row = (here, head[1], key, head[0], turn, text, ref, at, at + 3)
        state = "dead" if turn % EVERY_DEAD == 1 else "sent"
        self._rows["outbox"].append((*row, state))

    def _messages(
        self, here: int, turn: int, head: list[int], asked: str, answer: str, at: float
    ) -> None:
        bodies: list[dict[str, Any]] = [{"role": "user", "content": asked}]
        if turn % EVERY_TOOL == 0:
            function = {"name": "fetch_url", "arguments": '{"url": "http://shop.example/7"}'}
            call = {"id": f"call-{turn}", "type": "function", "function": function}
            bodies += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": self._text()},
            ]
        for body in (*bodies, {"role": "assistant", "content": answer}):
            head[2] += 1
            text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode()
            row = (here, head[2], here, turn, body["role"], text, 110, at)
            self._rows["message"].append(row)

    def _accounts(self, here: int, turn: int, whose: str, at: float) -> None:
        """Enter the journal and the ledger of a turn."""
        provider, model = MODELS[turn % len(MODELS)]
        tokens = (self._dice.randint(200, 4_000), 3_000, 500, 0, 120)
        usd = None if turn % 97 == 0 else round(self._dice.random() / 50, 6)
        entry = (provider, model, *tokens, usd, at)
        self._rows["ledger"].append((here, turn, f"{turn:032x}", whose, "answer", *entry))
        if turn % EVERY_BACKGROUND == 0:
            self._rows["ledger"].append((here, None, f"b{turn:031x}", whose, "summary", *entry))
        usage = orjson.dumps({"input_tokens": tokens[0], "output_tokens": 120}).decode()
        steps = self._rows["step"]
        steps.append((turn, 1, "model", model, None, None, usage, at))
        if turn % EVERY_TOOL == 0:
            call, done = f"call-{turn}", '{"status":"ok"}'
            steps.append((turn, 2, "tool", "fetch_url", call, "side_effect", done, at + 1))
            steps.append((turn, 3, "model", model, None, None, usage, at + 2))
        if turn % (EVERY_TOOL * 4) == 0:
            self._rows["inquiry"].append((here, turn, f"call-{turn}", whose, at, at, at))


def _insert(table: str, columns: str, **fixed: Any) -> str:
    """Return an INSERT of these columns, with literals for the fixed ones."""
    names = [*columns.split(), *fixed]
    marks = ["?"] * len(columns.split()) + [repr(value) for value in fixed.values()]
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"INSERT INTO {table} ({quoted}) VALUES ({', '.join(marks)})"  # noqa: S608 - own text


_STATEMENTS = {
    "inbox": _insert(
        "inbox",
        "conversation seq source dedupe_key sender text message_ref state turn_id at",
        kind="message",
        sender_name="Ada",
    ),
    "turn": _insert(
        "turn",
        "id conversation session_id first_seq upto_seq state outcome model started_at finished_at"
        " usd senders",
        epoch=1,
        attempt=1,
        progress=1,
    ),
    "message": _insert("message", "conversation seq session_id turn_id role body tokens at"),
    "outbox": _insert(
        "outbox",
        "conversation seq source_key inbox_seq turn_id payload platform_ref at sent_at state",
    ),
    "ledger": _insert(
        "ledger",
        "conversation turn_id call_id sender purpose provider model input_tokens cache_read_tokens"
        " cache_write_5m_tokens cache_write_1h_tokens output_tokens usd at",
    ),
    "step": _insert("step", "turn_id n kind name call_id effect result at", state="done"),
    "inquiry": _insert(
        "inquiry",
        "conversation turn_id call_id answered_by expires_at at answered_at",
        kind="approval",
        tool="fetch_url",
        definition="0f",
        question="May I?",
        state="answered",
        answer="once",
    ),
}


def _finish(raw: sqlite3.Connection, size: Size) -> None:
    """Enter what has to do with people: members, requests to be let in, notes, strangers."""
    people = range(1, size.conversations // 20 + 1)
    raw.executemany(
        _insert("member", "platform sender sender_name role granted_by at"),
        [("telegram", f"person-{n}", "Ada", "member", "code", float(n)) for n in people],
    )
    raw.executemany(
        _insert("pairing", "code platform account sender state expires_at at"),
        [
            (f"CODE{n}", "telegram", "default", f"stranger-{n}", "pending", 4e9, float(n))
            for n in people
        ],
    )
    raw.executemany(
        _insert("memory", "scope target text at"),
        [(f"telegram:person-{n}", "memory", f"Likes colour {n}.", float(n)) for n in people],
    )
    raw.executemany(
        _insert("quarantine", "source dedupe_key raw reason at chat"),
        [("telegram:default", f"q{n}", "", "stranger", float(n), f"x{n}") for n in people],
    )


def _feed(connection: Connection) -> None:
    """Fill the search index with what is in the transcripts, as the gateway does."""
    with connection.begin():
        index.clear(connection)
    while behind := _behind(connection):
        with connection.begin():
            for each in behind:
                _feed_one(connection, each)


def _behind(connection: Connection) -> list[int]:
    with connection.begin():
        return conversations.unsearched(connection, 2_000)


def _feed_one(connection: Connection, conversation: int) -> None:
    while found := index.waiting(connection, conversation):
        index.feed(connection, index.prepared(found))


def made(path: Path) -> tuple[int, int, int]:
    """Return how many conversations, messages and turns a database has."""
    with closing(sqlite3.connect(path)) as raw:
        counts = [
            raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - own names
            for table in ("conversation", "message", "turn")
        ]
    return counts[0], counts[1], counts[2]
