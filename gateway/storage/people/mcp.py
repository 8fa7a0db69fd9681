"""Records about MCP servers: confined servers, and owners' decisions about tool texts.

`mcp_confined` lists the servers of homes older than unconfined programs. Names are never removed:
otherwise a replica with older settings would run its server unconfined.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy import Connection, delete, select, update

from agent.tools.registry import HeldTool
from gateway.errors import NotFound
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from gateway.storage.queue import leases, replicas
from gateway.storage.schema import mcp_confined, mcp_text, now_s

EVERY = ""
"""Stands for all servers in `confined`: an older home that has not been started since."""
ID_CHARS = 32
"""Hexadecimal digits of a digest, used as the text's ID. With 12, a server could find two texts
with the same ID within minutes, show one, and get the other approved."""


class McpRecord(NamedTuple):
    """The records for a start: `confined` servers and digests of `agreed` texts."""

    confined: frozenset[str]
    agreed: frozenset[str]


UNKNOWN = McpRecord(frozenset({EVERY}), frozenset())
"""Used if the record is unreadable: every server stays confined."""
Verdict = Literal["agreed", "refused"]


@dataclass(frozen=True, slots=True)
class ToolText:
    """A tool text with instructions.

    Attributes:
        state: "asked", "agreed" or "refused".
        by: The owner who decided, "platform:sender id", if any.
        told: Whether an owner has seen it.
    """

    held: HeldTool
    state: str
    by: str
    told: bool

    @property
    def id(self) -> str:
        """Its ID for owners."""
        return self.held.digest[:ID_CHARS]


def confined(conn: Connection) -> frozenset[str]:
    """Return the servers that stay confined unless their settings say otherwise; see `EVERY`."""
    return frozenset(conn.scalars(select(mcp_confined.c.name)))


def at_start(conn: Connection, names: Iterable[str]) -> McpRecord:
    """Return the records; the first start after an upgrade stores these servers."""
    # If two replicas start together, the second finds the first's rows.
    leases.one_at_a_time(conn)
    if EVERY in (known := confined(conn)):
        conn.execute(delete(mcp_confined).where(mcp_confined.c.name == EVERY))
        if new := sorted({*names} - known):
            conn.execute(mcp_confined.insert(), [{"name": name} for name in new])
    return McpRecord(confined(conn), agreed(conn))


def agreed(conn: Connection) -> frozenset[str]:
    """Return the digests of the texts that an owner approved."""
    state = mcp_text.c.state == "agreed"
    return frozenset(conn.scalars(select(mcp_text.c.digest).where(state)))


def note(conn: Connection, held: Iterable[HeldTool]) -> None:
    """Store new texts, deleting undecided earlier texts of the same tool."""
    leases.one_at_a_time(conn)
    known = frozenset(conn.scalars(select(mcp_text.c.digest)))
    for each in held:
        if each.digest in known:
            continue
        same_tool = (mcp_text.c.server == each.server, mcp_text.c.tool == each.tool)
        conn.execute(delete(mcp_text).where(*same_tool, mcp_text.c.state == "asked"))
        values = {"digest": each.digest, "server": each.server, "tool": each.tool}
        values |= {"why": each.why, "text": each.text, "state": "asked"}
        conn.execute(mcp_text.insert().values(values | {"at": now_s()}))


def texts(conn: Connection) -> list[ToolText]:
    """Return all texts by server and tool, newest last."""
    order = (mcp_text.c.server, mcp_text.c.tool, mcp_text.c.at)
    return [
        ToolText(
            HeldTool(row.digest, row.server, row.tool, row.why, row.text),
            *(row.state, row.by, row.told_at is not None),
        )
        for row in conn.execute(select(mcp_text).order_by(*order))
    ]


def text_of(conn: Connection, name: str) -> ToolText:
    """Return the text with this ID; raises `NotFound` if no text has it."""
    found = [each for each in texts(conn) if each.id == name.strip().lower()]
    if not found:
        raise NotFound("There is no tool with this id; `/mcp` lists those that wait.")
    return found[0]


def mark_told(conn: Connection, digests: Collection[str]) -> None:
    """Record that an owner has seen these texts."""
    conn.execute(update(mcp_text).where(mcp_text.c.digest.in_(digests)).values(told_at=now_s()))


def decide(conn: Connection, name: str, verdict: Verdict, by: str) -> ToolText:
    """Record an owner's decision about a text, also in the audit log; the latest applies.

    `name` is its `ToolText.id`. Raises `NotFound` for an unknown text.
    """
    text = text_of(conn, name)
    here = mcp_text.c.digest == text.held.digest
    conn.execute(update(mcp_text).where(here).values(state=verdict, by=by, at=now_s()))
    kind: audit_log.AuditKind = "mcp_agreed" if verdict == "agreed" else "mcp_refused"
    subject, detail = f"{text.held.server}: {text.held.tool}", {"digest": text.held.digest}
    audit_log.append(conn, AuditEntry(kind, by=by, subject=subject[:200], detail=detail))
    if conn.dialect.name == "postgresql":
        # All replicas reload their settings and owners' decisions.
        replicas.announce(conn, "secrets")
    return ToolText(text.held, verdict, by, text.told)
