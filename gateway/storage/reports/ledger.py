"""The ledger: one row for each call of a model, with its tokens and what it cost.

What was spent stays on record whatever becomes of the turn, until its conversation is erased or
`retention.ledger_days` are over. `spending` sums it up.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, select

from agent.ports import ModelCall
from agent.usage import Usage
from gateway.storage.conversation import conversations
from gateway.storage.schema import ledger, now_s, turn

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
        turn_id: The turn that made them; None for work in the background.
        sender: Whose budget they count for: "platform:sender id"; "" where that is not known.
    """
    if not calls or not conversations.exists(conn, conversation_id):
        return
    query = select(ledger.c.call_id).where(
        ledger.c.conversation == conversation_id, ledger.c.turn_id == turn_id
    )
    entered = set() if turn_id is None else set(conn.scalars(query))
    missing = [call for call in calls if call.id not in entered]
    if missing:
        append(conn, conversation_id, turn_id, sender, missing)


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


# Its parameters have names of their own: SQLAlchemy keeps those of columns for what is set.
_before = ledger.alias()
_PROMPT_BEFORE = (
    # The newest answer in the same cache, which mostly is the newest call of all: in the order of
    # the index the first row that fits ends the look.
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


def chosen_or_answered(conn: Connection, conversation_id: int, provider: str, model: str) -> int:
    """Return the newest turn in which `/model` chose a model or this one answered; 0 for none."""
    calls = and_(ledger.c.conversation == turn.c.conversation, ledger.c.turn_id == turn.c.id)
    answers = and_(
        ledger.c.provider == provider, ledger.c.model == model, ledger.c.purpose == "answer"
    )
    query = select(turn.c.id).select_from(turn.outerjoin(ledger, calls))
    here = (turn.c.conversation == conversation_id, (turn.c.outcome == "model_chosen") | answers)
    return conn.scalar(query.where(*here).order_by(turn.c.id.desc()).limit(1)) or 0
