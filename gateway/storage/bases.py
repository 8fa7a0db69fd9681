"""What requests begin with, stored once: prompts and tools are the same in most conversations.

A text is kept by the hash of its content, and a base names the two texts of a prompt and its tools.
Segments refer to a base. What only one root has in its prompt (`SystemPrompt.split`) lies beside
the reference in the segment's row.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Select, delete, exists, select

from agent.prompt import SystemPrompt
from gateway.storage.models import prompt_base, prompt_text, session
from gateway.storage.statements import built_once

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Base:
    """What segments share of the beginning of their requests.

    Attributes:
        prompt: The part of the system prompt that is no root's own.
        tools: Their schemas as JSON; None before version 0.3, `inputs` likewise.
        inputs: What prompt and tools were made from.
    """

    prompt: SystemPrompt
    tools: str | None
    inputs: Mapping[str, str] | None


def find(conn: Connection, base: Base) -> int:
    """Return the id of a base; it is entered, with its texts, where it is not known yet."""
    layers, inputs = _dumped(base.prompt.layers), _dumped(base.inputs)
    digest = digest_of(base.prompt.text, base.tools, layers, inputs)
    known = conn.scalar(*_known_base(digest))
    if known is not None:
        return int(known)
    values = {
        "digest": digest,
        "prompt_id": _find_text(conn, base.prompt.text),
        "tools_id": None if base.tools is None else _find_text(conn, base.tools),
        "layers": layers,
        "inputs": inputs,
    }
    entered = prompt_base.insert().returning(prompt_base.c.id)
    return int(conn.execute(entered, values).scalar_one())


@built_once
def _known_base(digest: bytes) -> Any:
    return select(prompt_base.c.id).where(prompt_base.c.digest == digest)


def _find_text(conn: Connection, body: str) -> int:
    digest = digest_of(body)
    known = conn.scalar(select(prompt_text.c.id).where(prompt_text.c.digest == digest))
    if known is None:
        entered = prompt_text.insert().returning(prompt_text.c.id)
        known = conn.execute(entered, {"digest": digest, "body": body}).scalar_one()
    return int(known)


def digest_of(*parts: str | None) -> bytes:
    """Return the key of a content: None is another part than an empty text."""
    known = hashlib.sha256()
    for part in parts:
        encoded = b"" if part is None else part.encode()
        known.update(b"%d:" % (-1 if part is None else len(encoded)))
        known.update(encoded)
    return known.digest()[:DIGEST_BYTES]


def with_base(*columns: Any) -> Select[Any]:
    """Select columns of segments, with what their base says; one row for each segment."""
    shared, tools = prompt_text.alias("shared"), prompt_text.alias("tools")
    return select(
        *columns,
        shared.c.body.label("shared_prompt"),
        tools.c.body.label("tools"),
        prompt_base.c.layers.label("prompt_layers"),
        prompt_base.c.inputs.label("prompt_inputs"),
    ).select_from(
        session
        .outerjoin(prompt_base, prompt_base.c.id == session.c.base_id)
        .outerjoin(shared, shared.c.id == prompt_base.c.prompt_id)
        .outerjoin(tools, tools.c.id == prompt_base.c.tools_id)
    )


def of_conversation(conn: Connection, conversation_id: int) -> set[int]:
    """Return the ids of the bases that the segments of a conversation refer to."""
    here = session.c.conversation == conversation_id
    used = select(session.c.base_id).where(here, session.c.base_id.is_not(None)).distinct()
    return set(conn.scalars(used))


def release(conn: Connection, base_ids: Collection[int]) -> None:
    """Erase those of these bases that no segment refers to any more, and texts that only they had.

    Whoever erases a segment, or gives it another base, calls this in the same transaction.
    """
    unused = ~exists().where(session.c.base_id == prompt_base.c.id)
    for base_id in base_ids:
        gone = delete(prompt_base).where(prompt_base.c.id == base_id, unused)
        texts = gone.returning(prompt_base.c.prompt_id, prompt_base.c.tools_id)
        for row in conn.execute(texts).all():
            for text_id in {row.prompt_id, row.tools_id} - {None}:
                _release_text(conn, text_id)


def _release_text(conn: Connection, text_id: int) -> None:
    used = [
        exists().where(column == prompt_text.c.id)
        for column in (prompt_base.c.prompt_id, prompt_base.c.tools_id)
    ]
    unused = [~each for each in used]
    conn.execute(delete(prompt_text).where(prompt_text.c.id == text_id, *unused))


def _dumped(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
