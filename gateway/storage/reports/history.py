"""Reports for people and operators: chats on the web page, lineages, titles.

Only the title of a conversation's newest lineage is stored; those of earlier ones are read from
their first questions.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    func,
    literal,
    null,
    select,
    union_all,
)

from adapters.base import ChatFile, ChatItem, ChatSummary
from adapters.registry import BUILT_IN
from agent.messages import IMAGE_PARTS, ChatMessage, is_ephemeral
from agent.safety.redaction import printable
from agent.view.view import ViewPlan, load_plan
from gateway.errors import NotFound
from gateway.storage.conversation import compactions, conversations
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.conversation.conversations import title_of
from gateway.storage.conversation.transcript import END
from gateway.storage.queue import outbox as outbox_rows
from gateway.storage.queue.outbox import choices_of, is_over
from gateway.storage.schema import (
    alias,
    attachment,
    compaction,
    conversation,
    inbox,
    iso_time,
    message,
    outbox,
    session,
    turn,
    view_plan,
)

CHATS = 200
SHOWN = ("sent", "pending", "sending", "unknown", "dead")


def chats(conn: Connection, platform: str, account: str, user: str) -> list[ChatSummary]:
    """Return the conversations of a single user, newest activity first."""
    newest = and_(
        inbox.c.conversation == conversation.c.id, inbox.c.seq == conversation.c.inbox_head
    )
    rows = conn.execute(
        select(conversation.c.chat, conversation.c.title, inbox.c.at)
        .join(inbox, newest)
        .where(
            conversation.c.platform == platform,
            conversation.c.account == account,
            conversation.c.user == user,
        )
        .order_by(inbox.c.at.desc())
        .limit(CHATS)
    )
    return [ChatSummary(row.chat, row.title, iso_time(row.at)) for row in rows]


def accounts(conn: Connection) -> list[tuple[str, str, int]]:
    """Return all (platform, account, number of conversations) in the database."""
    account = (conversation.c.platform, conversation.c.account)
    # A delegated child is not a chat of its account.
    written_in = select(*account, func.count()).where(conversation.c.parent_turn_id.is_(None))
    rows = conn.execute(written_in.group_by(*account).order_by(*account))
    return [(row[0], row[1], row[2]) for row in rows]


def items(
    conn: Connection, session_key: str, after_inbox: int, after_outbox: int
) -> list[ChatItem]:
    """Return the messages after the two positions, answers after their questions.

    An edit is an item of its own, with the `ref` of the message that it changes.
    """
    rows = conn.execute(
        _ITEMS,
        {"session_key": session_key, "after_inbox": after_inbox, "after_outbox": after_outbox},
    ).all()
    # Pages poll, and mostly nothing is new.
    files = _files(conn, session_key) if rows else ({}, {})
    found = [_item(row, files) for row in rows]
    return sorted(found, key=lambda item: (item.inbox_seq, item.outbox_seq))


_of_key = select(alias.c.conversation).where(alias.c.session_key == bindparam("session_key"))
_asked = select(
    inbox.c.seq.label("inbox_seq"),
    literal(0).label("outbox_seq"),
    inbox.c.text.label("markdown"),
    inbox.c.at,
    literal("").label("source_key"),
    inbox.c.message_ref.label("ref"),
    null().label("choices"),
    null().label("attachment"),
).where(
    inbox.c.conversation.in_(_of_key),
    inbox.c.seq > bindparam("after_inbox"),
    # A note for the agent, which no person has written.
    inbox.c.kind != "correction",
)
_answered = select(
    outbox.c.inbox_seq,
    outbox.c.seq,
    func.coalesce(outbox.c.markdown, outbox.c.payload),
    outbox.c.at,
    outbox.c.source_key,
    null(),
    outbox.c.choices,
    outbox.c.attachment,
).where(
    outbox.c.conversation.in_(_of_key),
    outbox.c.seq > bindparam("after_outbox"),
    outbox.c.state.in_(SHOWN),
)
_ITEMS = union_all(_asked, _answered)

_FilesOfChat = tuple[dict[int, tuple[ChatFile, ...]], dict[int, ChatFile]]
"""A conversation's files, by message and by id."""


def _files(conn: Connection, session_key: str) -> _FilesOfChat:
    of_message: dict[int, tuple[ChatFile, ...]] = {}
    by_id: dict[int, ChatFile] = {}
    query = (
        select(attachment)
        .where(
            attachment.c.conversation.in_(
                select(alias.c.conversation).where(alias.c.session_key == session_key)
            ),
            attachment.c.state == "stored",
        )
        .order_by(attachment.c.id)
    )
    for row in conn.execute(query):
        by_id[row.id] = ChatFile(row.id, row.name, row.mime, row.size_bytes)
        if row.inbox_seq is not None:
            of_message[row.inbox_seq] = (*of_message.get(row.inbox_seq, ()), by_id[row.id])
    return of_message, by_id


def _item(row: Row[Any], files: _FilesOfChat) -> ChatItem:
    of_messages, by_id = files
    shown = by_id.get(row.attachment)
    of_message = () if row.outbox_seq else of_messages.get(row.inbox_seq, ())
    return ChatItem(
        inbox_seq=row.inbox_seq,
        outbox_seq=row.outbox_seq,
        # The file is shown in place of its label.
        markdown="" if shown else row.markdown,
        at=iso_time(row.at),
        notice=is_notice(row.source_key),
        taken=_kind(row.source_key) == "taken",
        over=int(row.source_key.split(":")[1]) if is_over(row.source_key) else 0,
        files=(shown,) if shown else of_message,
        choices=choices_of(row.choices),
        ref=row.ref,
    )


NOTICES = frozenset({
    "trouble", "hygiene", "clipped", "floor", "taken", "over", "kept", "removed",
})  # fmt: skip
"""Kinds of messages in addition to an answer, from the key of an outbox row (pipeline/turn.py,
gateway/pipeline/admission.py, gateway/agent_ports/tools.py)."""
TO_OWNERS = (*outbox_rows.NOTICES, "pairing:")


def is_notice(source_key: str) -> bool:
    """Whether the row of this key precedes an answer: "turn:7:trouble:1", not "turn:7:answer:1".

    So do alerts in an owner's chat, which may come while they wait there.
    """
    return _kind(source_key) in NOTICES or source_key.startswith(TO_OWNERS)


def _kind(source_key: str) -> str:
    *_, kind, _part = ["", *source_key.split(":")]
    return kind


@dataclass(frozen=True, slots=True)
class Overview:
    """A conversation as `parley sessions list` shows it.

    Attributes:
        thread: In its chat; None outside of threads.
        sender: Its only user; None for one that several people share.
        number: Of its active segment.
        segments: How many there are, of all its lineages.
        messages: Recorded so far, in view or not; those that retention has erased included.
        last_at: When the newest message was recorded, or if it is erased its turn ended; seconds
            since the epoch.
        reported_tokens: What the model last reported for the view; None before its first answer.
        estimated_tokens: The view's size after the last compaction, as estimated; None if the
            active segment was not begun by one.
        parent: The conversation whose turn began it, if it is a delegated child.
    """

    id: int
    platform: str
    chat: str
    thread: str | None
    sender: str | None
    title: str
    active_session_id: int
    number: int
    segments: int
    messages: int
    last_at: float
    reported_tokens: int | None
    estimated_tokens: int | None
    parent: int | None = None


def overviews(conn: Connection, limit: int = 50, before: int | None = None) -> list[Overview]:
    """Return conversations, newest first, with delegated children.

    `before`: only those that began before the one with this id.
    """
    query = _overviews().order_by(conversation.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(conversation.c.id < before)
    return [Overview(*row) for row in conn.execute(query)]


def overviews_of(conn: Connection, conversation_ids: Collection[int]) -> list[Overview]:
    """Return those of these conversations that exist, in no order."""
    rows = conn.execute(_overviews().where(conversation.c.id.in_(conversation_ids)))
    return [Overview(*row) for row in rows]


def overview(conn: Connection, conversation_id: int) -> Overview:
    """Return one conversation; raises `NotFound` if it does not exist."""
    row = conn.execute(_overviews().where(conversation.c.id == conversation_id)).one_or_none()
    if row is None:
        known = "`parley sessions list` shows them"
        raise NotFound(f"there is no conversation {conversation_id}; {known}")
    return Overview(*row)


def _overviews() -> Select[Any]:
    here = conversation.c
    segments = select(func.count()).where(session.c.conversation == here.id).scalar_subquery()
    newest = and_(message.c.conversation == here.id, message.c.seq == here.message_head)
    active = session.alias()
    parent = select(turn.c.conversation).where(turn.c.id == here.parent_turn_id)
    turns = select(func.coalesce(turn.c.finished_at, turn.c.started_at))
    newest_turn = turns.where(turn.c.conversation == here.id).order_by(turn.c.id.desc()).limit(1)
    return (
        select(
            here.id,
            here.platform,
            here.chat,
            here.thread,
            here.user,
            here.title,
            active.c.id,
            active.c.number,
            segments,
            here.message_head,
            # Retention may have erased the newest message; a new conversation has none yet.
            func.coalesce(message.c.at, newest_turn.scalar_subquery(), here.created_at),
            active.c.prompt_tokens,
            compaction.c.tokens_after,
            parent.scalar_subquery(),
        )
        .join(active, active.c.id == here.active_session_id)
        .outerjoin(message, newest)
        .outerjoin(compaction, compaction.c.child_session_id == active.c.id)
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a conversation's lineage; times are seconds since the epoch.

    Attributes:
        title: Of its lineage; empty if nothing was asked in it.
        plan: What it shows of the transcript.
        compaction: The one that began it; None for a root and for what `/retry` began.
    """

    id: int
    title: str
    parent_session_id: int | None
    number: int
    start_reason: str
    end_reason: str | None
    started_at: float
    ended_at: float | None
    prompt_tokens: int | None
    plan: ViewPlan
    compaction: CompactionRow | None


def segments_of(conn: Connection, conversation_id: int) -> list[Segment]:
    """Return a conversation's segments, oldest first: parents before their children."""
    by_child = {
        row.child_session_id: row for row in compactions.of_conversation(conn, conversation_id)
    }
    rows = conn.execute(
        select(*_OF_SEGMENT, view_plan.c.body.label("plan"))
        .join(view_plan, view_plan.c.session_id == session.c.id)
        .where(session.c.conversation == conversation_id)
        .order_by(session.c.id)
    )
    named = of_segments(conn, conversation_id)
    return [
        Segment(
            title=named[row["id"]],
            compaction=by_child.get(row["id"]),
            **{**row, "plan": load_plan(row["plan"])},
        )
        for row in rows.mappings()
    ]


_OF_SEGMENT = [session.c[field.name] for field in fields(Segment) if field.name in session.c]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row of the transcript; `body` has the message's exact bytes, `at` is in seconds."""

    seq: int
    session_id: int
    at: float
    body: str
    turn: int | None


def conversations_of_chat(conn: Connection, chat: str) -> list[int]:
    """Return the conversations of a chat, by its platform's id: a group has one for each member."""
    here = select(conversation.c.id).where(conversation.c.chat == chat)
    return list(conn.scalars(here.order_by(conversation.c.id)))


def turn_in_chat(conn: Connection, chat: str, seq: int) -> dict[str, Any]:
    """Return the turn of an entry in the web chat, with its usage.

    All is None without a turn, as for a command; `usd` also if the price of a call is unknown.
    """
    kinds = ("input", "output", "cache_read", "cache_write")
    row = conn.execute(
        select(turn)
        .join(conversation, conversation.c.id == turn.c.conversation)
        .where(
            conversation.c.platform == BUILT_IN,
            conversation.c.chat == chat,
            turn.c.first_seq <= seq,
            turn.c.upto_seq >= seq,
        )
        .order_by(turn.c.id.desc())
        .limit(1)
    ).one_or_none()
    names = ("conversation", "id", "first_seq", "state", "outcome", "error", "model", "usd")
    found = dict.fromkeys(names) if row is None else {name: getattr(row, name) for name in names}
    tokens = None if row is None else {kind: getattr(row, f"{kind}_tokens") for kind in kinds}
    return {"turn": found.pop("id"), "tokens": tokens, **found}


def recorded(
    conn: Connection,
    conversation_id: int,
    *,
    from_seq: int | None = None,
    before: int = END,
    limit: int,
) -> list[Recorded]:
    """Return rows of the transcript in order, in view or not.

    Args:
        from_seq: First position to return; None for the newest ones.
        before: Only those with a smaller position.
    """
    columns = (message.c.seq, message.c.session_id, message.c.at, message.c.body, message.c.turn_id)
    here = (message.c.conversation == conversation_id, message.c.seq < before)
    query = select(*columns).where(*here).limit(limit)
    if from_seq is None:
        query = query.order_by(message.c.seq.desc())
    else:
        query = query.where(message.c.seq >= from_seq).order_by(message.c.seq)
    return sorted((Recorded(*row) for row in conn.execute(query)), key=lambda row: row.seq)


def of_segments(conn: Connection, conversation_id: int) -> dict[int, str]:
    """Return the title of each segment's lineage, by the segment's id; empty for none.

    The newest lineage has its conversation's title, an older one that of its first question.
    """
    asked = {row.session_id: _title(row) for row in conn.execute(_first_questions(conversation_id))}
    segments = select(session.c.id, session.c.parent_session_id)
    rows = conn.execute(
        segments.where(session.c.conversation == conversation_id).order_by(session.c.id)
    ).all()
    if rows:
        newest = max(row.id for row in rows if row.parent_session_id is None)
        asked[newest] = conversations.title(conn, conversation_id)
    found: dict[int, str] = {}
    for row in rows:
        above = row.parent_session_id
        found[row.id] = asked.get(row.id, "") if above is None else found[above]
    return found


def _title(row: Row[Any]) -> str:
    # Text after `/new` is the first question.
    words = row.text.split()[1:] if row.kind == "command" else row.text.split()
    return title_of(" ".join(words)) or row.file or ""


def _first_questions(conversation_id: int) -> Select[Any]:
    """Select the entry and file of the first question in each segment."""
    first = (
        select(message.c.session_id, func.min(message.c.turn_id).label("turn_id"))
        .where(message.c.conversation == conversation_id)
        .group_by(message.c.session_id)
        .subquery()
    )
    file = (
        select(attachment.c.name)
        .where(attachment.c.conversation == conversation_id, attachment.c.inbox_seq == inbox.c.seq)
        .order_by(attachment.c.id)
        .limit(1)
        .scalar_subquery()
    )
    entry = and_(inbox.c.conversation == conversation_id, inbox.c.seq == turn.c.first_seq)
    return (
        select(first.c.session_id, inbox.c.kind, inbox.c.text, file.label("file"))
        .join(turn, turn.c.id == first.c.turn_id)
        .join(inbox, entry)
    )


def speaker(message: ChatMessage) -> str:
    """Name a message's speaker: the role, for a result its tool, and whether Parley wrote it."""
    if message["role"] == "tool":
        named = f"{message.get('name', '')} {message.get('tool_call_id', '')}"
        return printable(f"tool {named}".rstrip())
    if is_ephemeral(message):
        return f"{message['role']} (by Parley, context only)"
    return f"{message['role']} (by Parley)" if message.get("synthetic") else message["role"]


def standing(plan: ViewPlan, seq: int) -> str:
    """Say in a few words how a plan shows a message."""
    if plan.shows(seq):
        kinds = [edit.kind for edit in plan.edits if edit.seq == seq]
        return f"in view, shortened ({', '.join(kinds)})" if kinds else "in view"
    if any(summary.first_seq <= seq <= summary.last_seq for summary in plan.summaries):
        return "summarised"
    return "out of view"


def text_with_labels(message: ChatMessage) -> str:
    """Return the text of a message, with labels for other parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", _label(part.get("type", "part")))) for part in content)


def _label(kind: str) -> str:
    return "[image]" if kind in IMAGE_PARTS else f"[{kind}]"
