"""The ledger: one row for each call of a model, with its tokens and what it cost.

What was spent stays on record whatever becomes of the turn, until its conversation is erased or
`retention.ledger_days` are over.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from agent.models.base import Usage
from agent.ports import ModelCall
from gateway.storage.models import (
    PICO,
    SLOT_S,
    conversation,
    ledger,
    now_s,
    spent_by,
    spent_slot,
)
from gateway.storage.statements import built_once

_NOTHING = Usage()


def book(
    conn: Connection,
    conversation_id: int,
    turn_id: int | None,
    sender: str,
    calls: Sequence[ModelCall],
) -> None:
    """Enter calls, but for those that a turn has entered before.

    Nothing is done for none, or where the conversation has been erased meanwhile. Not fenced: money
    that was spent is a fact, also where the lease was lost.

    Args:
        conn: The writing connection.
        conversation_id: Where they were made.
        turn_id: The turn that made them; None for work in the background.
        sender: Whose budget they count for: "platform:sender id"; "" where that is not known.
        calls: In order.
    """
    if not calls or conn.scalar(*_known(conversation_id)) is None:
        return
    entered = set() if turn_id is None else set(conn.scalars(*_entered(conversation_id, turn_id)))
    missing = [call for call in calls if call.id not in entered]
    if missing:
        append(conn, conversation_id, turn_id, sender, missing)


@built_once
def _known(conversation_id: int) -> Any:
    return select(conversation.c.id).where(conversation.c.id == conversation_id)


@built_once
def _entered(conversation_id: int, turn_id: int) -> Any:
    return select(ledger.c.call_id).where(
        ledger.c.conversation == conversation_id, ledger.c.turn_id == turn_id
    )


def append(
    conn: Connection,
    conversation_id: int,
    turn_id: int | None,
    sender: str,
    calls: Sequence[ModelCall],
) -> None:
    """Enter at least one call that is new; the caller holds the conversation's fence."""
    of_all = {"conversation": conversation_id, "turn_id": turn_id, "sender": sender}
    conn.execute(
        _INSERT,
        [
            {**of_all, **_entry(call), "in_conversation": conversation_id}
            | {"of_provider": call.provider, "of_model": call.model}
            for call in calls
        ],
    )


_before = ledger.alias()
_PROMPT_BEFORE = (
    # The newest answer in the same cache, which mostly is the newest call of all.
    select(
        _before.c.input_tokens
        + _before.c.cache_read_tokens
        + _before.c.cache_write_5m_tokens
        + _before.c.cache_write_1h_tokens
    )
    .where(
        _before.c.conversation == bindparam("in_conversation"),
        _before.c.provider == bindparam("of_provider"),
        _before.c.model == bindparam("of_model"),
        _before.c.purpose == "answer",
        _before.c.estimated.is_(False),
    )
    .order_by(_before.c.turn_id.desc(), _before.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_INSERT = ledger.insert().values(at=now_s(), before_tokens=func.coalesce(_PROMPT_BEFORE, 0))


def _entry(call: ModelCall) -> dict[str, Any]:
    known = call.usage is not None
    usage = call.usage or _NOTHING
    return {
        "call_id": call.id,
        "provider": call.provider,
        "model": call.model,
        "purpose": call.purpose,
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_5m_tokens": usage.cache_write_5m_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "output_tokens": usage.output_tokens,
        "estimated": call.estimated or not known,
        "usd": call.cost_usd if known else None,
    }


def spent_usd(conn: Connection, since: float, sender: str | None = None) -> float:
    """Return what calls have cost since a moment, as far as that is known.

    Reads one range of the sums (gateway/storage/rollup.py), and no rows of the ledger.

    Args:
        conn: A reading connection.
        since: Seconds since the epoch, included; the beginning of a quarter of an hour, as that of
            a day is in all time zones.
        sender: Only what counts for this one ("platform:sender id").
    """
    slot = int(since // SLOT_S)
    query = _spent(slot) if sender is None else _spent_by(sender, slot)
    return (conn.scalar(*query) or 0) / PICO


@built_once
def _spent(slot: int) -> Any:
    return select(func.sum(spent_slot.c.pico_usd)).where(spent_slot.c.slot >= slot)


@built_once
def _spent_by(sender: str, slot: int) -> Any:
    here = (spent_by.c.sender == sender, spent_by.c.slot >= slot)
    return select(func.sum(spent_by.c.pico_usd)).where(*here)
