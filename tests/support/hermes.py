"""Homes of Hermes Agent, made as its records describe them (hermes-agent 0.19.0).

The database has the columns that matter here; that ones which the real Hermes has written are read
alike is tried by hand (docs/import.md). `compact_in_place` and `compact_into_child` do to the rows
what its compactions do.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

TABLES = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, session_key TEXT,
  chat_id TEXT, chat_type TEXT, thread_id TEXT, origin_json TEXT, model TEXT, model_config TEXT,
  parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL, end_reason TEXT, title TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
  role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT,
  timestamp REAL NOT NULL, finish_reason TEXT, reasoning TEXT, reasoning_content TEXT,
  reasoning_details TEXT, platform_message_id TEXT, active INTEGER NOT NULL DEFAULT 1,
  compacted INTEGER NOT NULL DEFAULT 0);
"""
PREFIX = (
    "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier turns were compacted into the summary below."
    " This is a handoff; avoid repeating it:"
)
END = "--- END OF CONTEXT SUMMARY — respond to the message below, not the summary above ---"
BEFORE = "[PRIOR CONTEXT — for reference only; not a new message]"
BETWEEN = "[END OF PRIOR CONTEXT — COMPACTION SUMMARY BELOW]"
BEGAN = 1_772_352_000.0
"""1 March 2026, 08:00 UTC."""

Row = dict[str, Any]


class HermesRecords:
    """Writes the database of a home."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.path = home / "state.db"
        if not self.path.exists():
            with closing(sqlite3.connect(self.path)) as conn:
                conn.executescript(TABLES)

    def session(self, name: str, source: str = "cli", at: float = BEGAN, **columns: Any) -> str:
        """Enter a session; returns its id."""
        self._insert("sessions", {"id": name, "source": source, "started_at": at, **columns})
        return name

    def end(self, name: str, reason: str, at: float = BEGAN + 900) -> None:
        """End a session."""
        self._execute("UPDATE sessions SET ended_at=?, end_reason=? WHERE id=?", (at, reason, name))

    def say(self, session: str, role: str, content: Any, at: float, **columns: Any) -> None:
        """Enter a message as Hermes stores it."""
        if isinstance(content, list):
            content = "\x00json:" + json.dumps(content)
        if "tool_calls" in columns:
            columns["tool_calls"] = json.dumps(columns["tool_calls"])
        row = {"session_id": session, "role": role, "content": content, "timestamp": at, **columns}
        self._insert("messages", row)

    def turn(self, session: str, n: int, at: float | None = None) -> None:
        """Enter a question, a call with its result, and an answer."""
        at = BEGAN + 60 * n if at is None else at
        function = {"name": "terminal", "arguments": json.dumps({"command": f"grep T-{4000 + n}"})}
        call = {"id": f"call_{n}", "type": "function", "function": function}
        self.say(session, "user", f"Find ticket T-{4000 + n}.", at, platform_message_id=str(n))
        self.say(
            session,
            "assistant",
            None,
            at + 1,
            tool_calls=[call],
            reasoning=f"I should grep for {n}.",
            reasoning_details=json.dumps([{"type": "reasoning.text"}]),
        )
        result = {"tool_call_id": f"call_{n}", "tool_name": "terminal"}
        self.say(session, "tool", f"T-{4000 + n} lies in Rotterdam-{n}", at + 2, **result)
        self.say(session, "assistant", f"It is in Rotterdam-{n}.", at + 3, finish_reason="stop")

    def compact_in_place(self, session: str, summary: str, head: int = 4, tail: int = 4) -> None:
        """Do what a compaction does that keeps the session."""
        live = self._live(session)
        self._execute(
            "UPDATE messages SET active=0, compacted=1 WHERE session_id=? AND active=1", (session,)
        )
        self._written_again(session, live, summary, head, tail)

    def compact_into_child(
        self, session: str, child: str, summary: str, head: int = 4, tail: int = 4
    ) -> str:
        """Do what a compaction does that goes on in a child; returns the child's id."""
        live = self._live(session)
        self.end(session, "compression")
        (row,) = self._rows("SELECT * FROM sessions WHERE id=?", (session,))
        fresh = {"id": child, "parent_session_id": session, "ended_at": None, "end_reason": None}
        self._insert("sessions", {**row, **fresh, "started_at": live[-1]["timestamp"] + 1})
        self._written_again(child, live, summary, head, tail)
        return child

    def _written_again(
        self, session: str, live: Sequence[Row], summary: str, head: int, tail: int
    ) -> None:
        before = [n for n, row in enumerate(live) if PREFIX in str(row["content"])]
        # A summary is written anew: neither the head nor the tail of the next one holds it.
        head = min([head, *before])
        tail = min([tail, *(len(live) - n - 1 for n in before)])
        kept = live[len(live) - tail :]
        text = f"{PREFIX}\n{summary}"
        for row in live[:head]:
            self._copy(session, row)
        # Between a head that ends with an answer and a tail that begins with a question no role
        # fits: there the summary is put into the first message of the tail. So it is into calls
        # that nothing stands before.
        is_between = head and live[head - 1]["role"] == "assistant" and kept[0]["role"] == "user"
        if is_between or (not head and kept[0]["tool_calls"]):
            said = kept[0]["content"] or ""
            merged = f"{BEFORE}\n{said}\n\n{BETWEEN}\n\n{text}\n\n{END}"
            self._copy(session, {**kept[0], "content": merged})
            kept = kept[1:]
        else:
            role = "assistant" if not head or live[head - 1]["role"] == "user" else "user"
            self.say(session, role, f"{text}\n\n{END}", live[-1]["timestamp"])
        for row in kept:
            self._copy(session, row)

    def _copy(self, session: str, row: Row) -> None:
        fresh = {"session_id": session, "active": 1, "compacted": 0}
        self._insert("messages", {**{k: v for k, v in row.items() if k != "id"}, **fresh})

    def take_back(self, session: str, count: int) -> None:
        """Do what `/undo` does to the newest messages."""
        newest = [row["id"] for row in self._live(session)[-count:]]
        for number in newest:
            self._execute("UPDATE messages SET active=0 WHERE id=?", (number,))

    def _live(self, session: str) -> list[Row]:
        query = "SELECT * FROM messages WHERE session_id=? AND active=1 ORDER BY id"
        return self._rows(query, (session,))

    def _rows(self, query: str, values: Sequence[Any]) -> list[Row]:
        with closing(sqlite3.connect(self.path)) as conn:
            conn.row_factory = sqlite3.Row
            return [dict(row) for row in conn.execute(query, values)]

    def _insert(self, table: str, row: Row) -> None:
        names, places = ", ".join(row), ", ".join("?" * len(row))
        query = f"INSERT INTO {table} ({names}) VALUES ({places})"  # noqa: S608 - names of this file
        self._execute(query, list(row.values()))

    def _execute(self, query: str, values: Sequence[Any]) -> None:
        with closing(sqlite3.connect(self.path)) as conn, conn:
            conn.execute("PRAGMA synchronous=OFF")
            conn.execute(query, values)
