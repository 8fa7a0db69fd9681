"""The outbox: what will be shown, one row per chunk, sent in order of seq.

Life of a row: pending → (sending →) sent. `sending` is the mark of platforms where sending twice
shows twice; a row found with it after a crash becomes `unknown`: the platform's adapter resolves
it. `dead` rows are the operator's (`parley dead-letters`); `dropped` ones were cancelled.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import Connection, Row, or_, select, update

from adapters.messages import Address, Choice, Outgoing, Receipt
from gateway.storage.models import conversation, is_unsent, now_s, outbox
from gateway.storage.statements import built_once

Renderer = Callable[[str], list[str]]
"""`Adapter.render`: markdown to payloads within the platform's limits."""


@dataclass(frozen=True, slots=True)
class Part:
    """One message to be shown; `source_key` names its cause and is unique, so that it is once."""

    source_key: str
    payload: str
    markdown: str
    preview_ref: str | None = None
    reply_to: str | None = None
    choices: tuple[Choice, ...] = ()
    attachment: int | None = None


def parts_of(
    render: Renderer,
    source_key: str,
    markdown: str,
    *,
    preview_ref: str | None = None,
    reply_to: str | None = None,
    choices: tuple[Choice, ...] = (),
) -> list[Part]:
    """Return a text as rows: one for each chunk that its platform needs.

    The first chunk keeps the whole text, replaces the live preview and carries the reply; the last
    one has the buttons.
    """
    payloads = render(markdown)
    first = Part(f"{source_key}:1", payloads[0], markdown, preview_ref, reply_to)
    rest = [
        Part(f"{source_key}:{n}", payload, f"(part {n} of {len(payloads)})")
        for n, payload in enumerate(payloads[1:], start=2)
    ]
    *before, last = [first, *rest]
    return [*before, replace(last, choices=choices)]


def file_part(source_key: str, attachment: int, name: str) -> Part:
    """Return the row that shows a stored file."""
    return Part(source_key, "", f"(file: {name})", attachment=attachment)


@dataclass(frozen=True, slots=True)
class Due:
    """The next row of a conversation, and in how many seconds it may be sent.

    Attributes:
        attachment: Id of the file that it shows, which is not loaded yet.
    """

    message: Outgoing
    in_s: float
    failures: int
    attachment: int | None = None

    @property
    def account(self) -> tuple[str, str]:
        """Platform and account that it goes through."""
        return self.message.address.platform, self.message.address.account


def append(
    conn: Connection,
    conversation_id: int,
    parts: Sequence[Part],
    *,
    inbox_seq: int,
    turn_id: int | None = None,
) -> None:
    """Insert rows behind the conversation's newest; known source keys are skipped."""
    for part in parts:
        if is_known(conn, part.source_key):
            continue
        seq = conn.scalar(*_next_seq(conversation_id))
        conn.execute(
            _INSERT,
            {
                "conversation": conversation_id,
                "seq": seq,
                "source_key": part.source_key,
                "inbox_seq": inbox_seq,
                "turn_id": turn_id,
                "payload": part.payload,
                "markdown": None if part.markdown == part.payload else part.markdown,
                "preview_ref": part.preview_ref,
                "reply_to": part.reply_to,
                "choices": _encoded(part.choices),
                "attachment": part.attachment,
            },
        )


_INSERT = outbox.insert().values(state="pending", at=now_s())


@built_once
def _next_seq(conversation_id: int) -> Any:
    return (
        update(conversation)
        .where(conversation.c.id == conversation_id)
        .values(outbox_head=conversation.c.outbox_head + 1)
        .returning(conversation.c.outbox_head)
    )


def is_known(conn: Connection, source_key: str) -> bool:
    """Whether something with this cause was entered before."""
    return conn.execute(*_known(source_key)).one_or_none() is not None


@built_once
def _known(source_key: str) -> Any:
    return select(outbox.c.seq).where(outbox.c.source_key == source_key)


def drop_unsent(conn: Connection, conversation_id: int, turn_id: int) -> None:
    """Drop a turn's rows that nobody has seen."""
    conn.execute(
        update(outbox)
        .where(
            outbox.c.conversation == conversation_id,
            is_unsent,
            outbox.c.turn_id == turn_id,
            outbox.c.state == "pending",
        )
        .values(state="dropped")
    )


def next_due(conn: Connection, conversation_id: int) -> Due | None:
    """Return the conversation's first unsent row; None when all is sent."""
    row = conn.execute(*_next_due(conversation_id)).one_or_none()
    if row is None:
        return None
    return Due(_outgoing(row), row.next_at - row.now, row.failures, row.attachment)


@built_once
def _next_due(conversation_id: int) -> Any:
    return (
        select(outbox, conversation, now_s().label("now"))
        .join(conversation, conversation.c.id == outbox.c.conversation)
        .where(outbox.c.conversation == conversation_id, is_unsent)
        .order_by(outbox.c.seq)
        .limit(1)
    )


def all_sent(conn: Connection, conversation_id: int) -> bool:
    """Whether the conversation has nothing that waits to be shown."""
    query = select(outbox.c.seq).where(outbox.c.conversation == conversation_id, is_unsent)
    return conn.execute(query.limit(1)).one_or_none() is None


def mark_sending(conn: Connection, message: Outgoing, replica_id: int) -> bool:
    """Note that a send begins; False where another replica has taken the row or it was dropped.

    A row that this replica marked before, and whose receipt could not be stored, is taken again.
    """
    marked = conn.execute(
        _this(message)
        .where(
            or_(outbox.c.state.in_(("pending", "unknown")), outbox.c.sender == replica_id),
            is_unsent,
        )
        .values(state="sending", sender=replica_id)
    )
    return marked.rowcount == 1


def mark_sent(conn: Connection, message: Outgoing, receipt: Receipt) -> Due | None:
    """Record the receipt; return the conversation's next unsent row."""
    ref, resent = receipt.platform_ref, receipt.resent
    conn.execute(*_mark_sent(message.conversation, message.seq, ref, resent=resent))
    return next_due(conn, message.conversation)


@built_once
def _mark_sent(conversation_id: int, seq: int, platform_ref: str, *, resent: bool) -> Any:
    return (
        update(outbox)
        .where(outbox.c.conversation == conversation_id, outbox.c.seq == seq)
        .values(state="sent", platform_ref=platform_ref, resent=resent, sent_at=now_s(), error=None)
    )


def mark_delayed(conn: Connection, message: Outgoing, in_s: float, reason: str) -> None:
    """Nothing was shown: the same again in `in_s` seconds; a doubt from before stays."""
    conn.execute(
        _this(message).values(
            state="unknown" if message.outcome_unknown else "pending",
            sender=None,
            failures=outbox.c.failures + 1,
            next_at=now_s() + in_s,
            error=reason,
        )
    )


def mark_unknown(conn: Connection, message: Outgoing, in_s: float, reason: str) -> None:
    """It may have been shown: to be resolved in `in_s` seconds."""
    conn.execute(
        _this(message).values(
            state="unknown",
            doubt=True,
            sender=None,
            failures=outbox.c.failures + 1,
            next_at=now_s() + in_s,
            error=reason,
        )
    )


def mark_dead(conn: Connection, message: Outgoing, reason: str) -> None:
    """It will never be shown; an operator may try again."""
    conn.execute(_this(message).values(state="dead", sender=None, error=reason))


def unsent_conversations(conn: Connection, accounts: Sequence[tuple[str, str]]) -> list[int]:
    """Return the conversations of these (platform, account) pairs that have unsent rows."""
    rows = conn.execute(
        select(conversation.c.id, conversation.c.platform, conversation.c.account)
        .where(conversation.c.id.in_(select(outbox.c.conversation).where(is_unsent)))
        .order_by(conversation.c.id)
    )
    return [row.id for row in rows if (row.platform, row.account) in accounts]


def nonce_of(source_key: str) -> str:
    """Return the row's nonce: 24 hex characters, the same for every attempt."""
    return hashlib.sha256(source_key.encode()).hexdigest()[:24]


def _this(message: Outgoing) -> Any:
    return update(outbox).where(
        outbox.c.conversation == message.conversation, outbox.c.seq == message.seq
    )


def _outgoing(row: Row[Any]) -> Outgoing:
    return Outgoing(
        conversation=row.conversation,
        address=Address(row.platform, row.account, row.chat, row.thread),
        seq=row.seq,
        payload=row.payload,
        nonce=nonce_of(row.source_key),
        preview_ref=row.preview_ref,
        reply_to=row.reply_to,
        outcome_unknown=row.state in ("unknown", "sending"),
        choices=choices_of(row.choices),
        age_s=row.now - row.at,
    )


def _encoded(choices: Sequence[Choice]) -> str | None:
    return orjson.dumps([[each.label, each.text] for each in choices]).decode() if choices else None


def choices_of(choices: str | None) -> tuple[Choice, ...]:
    """Return the buttons that a row's column stands for."""
    return tuple(Choice(*pair) for pair in orjson.loads(choices)) if choices else ()
