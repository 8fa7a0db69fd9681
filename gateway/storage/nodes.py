"""Nodes of the engine `lcm`, stored with the compaction that made them (agent/nodes.py)."""

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, Row, delete, select

from agent.nodes import Node
from gateway.storage.models import node as table
from gateway.storage.models import now_s


def store(conn: Connection, conversation_id: int, nodes: Sequence[Node]) -> None:
    """Add new nodes; part of the transaction of a compaction (gateway/storage/compactions.py)."""
    rows = [
        {
            "conversation": conversation_id,
            "number": node.number,
            "level": node.level,
            "first_seq": node.first_seq,
            "last_seq": node.last_seq,
            "children": orjson.dumps(node.children).decode(),
            "text": node.text,
            "source": node.source,
            "tokens": node.tokens,
            "source_tokens": node.source_tokens,
        }
        for node in nodes
    ]
    if rows:
        conn.execute(table.insert().values(at=now_s()), rows)


def of_conversation(conn: Connection, conversation_id: int) -> list[Node]:
    """Return the nodes of a conversation in order of number."""
    rows = conn.execute(
        select(table).where(table.c.conversation == conversation_id).order_by(table.c.number)
    )
    return [_node(row) for row in rows]


def _node(row: Row[Any]) -> Node:
    return Node(
        number=row.number,
        level=row.level,
        first_seq=row.first_seq,
        last_seq=row.last_seq,
        text=row.text,
        source=row.source,
        tokens=row.tokens,
        source_tokens=row.source_tokens,
        children=tuple(orjson.loads(row.children)),
    )


def forget(conn: Connection, conversation_id: int) -> None:
    """Erase the nodes of a conversation; part of `gateway.storage.maintenance.forget`."""
    conn.execute(delete(table).where(table.c.conversation == conversation_id))
