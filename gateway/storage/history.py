"""What people and operators look at: chats as shown on the web page, status, statistics."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, literal, select, union_all

from adapters.base import ChatItem, ChatSummary
from gateway.storage.models import (
    alias,
    conversation,
    inbox,
    is_pending,
    iso_time,
    outbox,
    session,
    turn,
)
from gateway.storage.statements import built_once

CHATS = 200
SHOWN = ("sent", "pending", "sending", "unknown", "dead")


def chats(conn: Connection, platform: str, account: str) -> list[ChatSummary]:
    """Return an account's conversations, newest activity first."""
    newest = and_(
        inbox.c.conversation == conversation.c.id, inbox.c.seq == conversation.c.inbox_head
    )
    rows = conn.execute(
        select(conversation.c.chat, conversation.c.title, inbox.c.at)
        .join(inbox, newest)
        .where(conversation.c.platform == platform, conversation.c.account == account)
        .order_by(inbox.c.at.desc())
        .limit(CHATS)
    )
    return [ChatSummary(row.chat, row.title, iso_time(row.at)) for row in rows]


def items(
    conn: Connection, session_key: str, after_inbox: int, after_outbox: int
) -> list[ChatItem]:
    """Return what was said after the two positions, answers behind what they answer."""
    rows = conn.execute(*_items(session_key, after_inbox, after_outbox))
    found = [ChatItem(row[0], row[1], row[2], iso_time(row[3])) for row in rows]
    return sorted(found, key=lambda item: (item.inbox_seq, item.outbox_seq))


@built_once
def _items(session_key: str, after_inbox: int, after_outbox: int) -> Any:
    of_key = select(alias.c.conversation).where(alias.c.session_key == session_key)
    zero = literal(0).label("outbox_seq")
    asked = select(inbox.c.seq, zero, inbox.c.text.label("markdown"), inbox.c.at).where(
        inbox.c.conversation.in_(of_key), inbox.c.seq > after_inbox, inbox.c.kind != "edit"
    )
    text = func.coalesce(outbox.c.markdown, outbox.c.payload)
    answered = select(outbox.c.inbox_seq, outbox.c.seq, text, outbox.c.at).where(
        outbox.c.conversation.in_(of_key),
        outbox.c.seq > after_outbox,
        outbox.c.state.in_(SHOWN),
    )
    return union_all(asked, answered)


def prompt_tokens(conn: Connection, session_key: str) -> int | None:
    """Return what the model last reported for the conversation's view."""
    reported: int | None = conn.scalar(*_prompt_tokens(session_key))
    return reported


@built_once
def _prompt_tokens(session_key: str) -> Any:
    return (
        select(session.c.prompt_tokens)
        .join(conversation, conversation.c.active_session_id == session.c.id)
        .join(alias, alias.c.conversation == conversation.c.id)
        .where(alias.c.session_key == session_key)
    )


@dataclass(frozen=True, slots=True)
class Status:
    """What `/status` tells about a conversation; times are in seconds."""

    conversation: int
    session_id: int
    prompt_tokens: int | None
    messages: int
    waiting: int
    turn_running: bool
    last_outcome: str | None


def status(conn: Connection, conversation_id: int) -> Status:
    """Return how a conversation stands."""
    row = conn.execute(
        select(conversation, session.c.prompt_tokens)
        .join(session, session.c.id == conversation.c.active_session_id)
        .where(conversation.c.id == conversation_id)
    ).one()
    waiting = conn.scalar(
        select(func.count()).where(
            inbox.c.conversation == conversation_id, is_pending, inbox.c.state == "queued"
        )
    )
    last = conn.execute(
        select(turn.c.state, turn.c.outcome)
        .where(turn.c.conversation == conversation_id)
        .order_by(turn.c.id.desc())
        .limit(1)
    ).one_or_none()
    return Status(
        conversation=conversation_id,
        session_id=row.active_session_id,
        prompt_tokens=row.prompt_tokens,
        messages=row.message_head,
        waiting=waiting or 0,
        turn_running=last is not None and last.state == "running",
        last_outcome=last.outcome if last is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What a conversation took so far; tokens as reported or estimated by the model."""

    messages: int
    turns: int
    tool_calls: int
    tokens_in: int
    tokens_out: int


def work(conn: Connection, conversation_id: int) -> Work:
    """Return the sums over a conversation's turns; all 0 for an unknown one."""
    messages = conn.scalar(
        select(conversation.c.message_head).where(conversation.c.id == conversation_id)
    )
    tokens_in = turn.c.input_tokens + turn.c.cache_read_tokens + turn.c.cache_write_tokens
    row = conn.execute(
        select(
            func.count(turn.c.id),
            func.coalesce(func.sum(turn.c.tool_calls), 0),
            func.coalesce(func.sum(tokens_in), 0),
            func.coalesce(func.sum(turn.c.output_tokens), 0),
        ).where(turn.c.conversation == conversation_id)
    ).one()
    return Work(messages or 0, *row)
