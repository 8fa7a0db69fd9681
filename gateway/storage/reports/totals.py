"""What a conversation took so far, in numbers; `parley replay` prints them."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from gateway.storage.conversation import conversations
from gateway.storage.schema import turn


@dataclass(frozen=True, slots=True)
class ConversationTotals:
    """What a conversation took so far; tokens as reported or estimated by the model."""

    messages: int
    turns: int
    tool_calls: int
    tokens_in: int
    tokens_out: int


def work(conn: Connection, conversation_id: int) -> ConversationTotals:
    """Return the sums over a conversation's turns; all 0 for an unknown one."""
    tokens_in = turn.c.input_tokens + turn.c.cache_read_tokens + turn.c.cache_write_tokens
    row = conn.execute(
        select(
            func.count(turn.c.id),
            func.coalesce(func.sum(turn.c.tool_calls), 0),
            func.coalesce(func.sum(tokens_in), 0),
            func.coalesce(func.sum(turn.c.output_tokens), 0),
        ).where(turn.c.conversation == conversation_id)
    ).one()
    return ConversationTotals(conversations.message_head(conn, conversation_id), *row)
