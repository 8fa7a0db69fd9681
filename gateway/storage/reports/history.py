"""Histories for people and operators: chats on the web page, lineages, titles.

Only the newest lineage's title is stored; earlier titles are read from the first questions.
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
    """Return a single user's conversations, newest activity first."""
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
    # Exclude delegated children, which are not chats.
    written_in = select(*account, func.count()).where(conversation.c.parent_turn_id.is_(None))
    rows = conn.execute(written_in.group_by(*account).order_by(*account))
    return [(row[0], row[1], row[2]) for row in rows]


def items(
    conn: Connection, session_key: str, after_inbox: int, after_outbox: int
) -> list[ChatItem]:
    """Return the items after two positions, answers after their questions.

    An edit is a separate item with the `ref` of the edited message.
    """
    rows = conn.execute(
        _ITEMS,
        {"session_key": session_key, "after_inbox": after_inbox, "after_outbox": after_outbox},
    ).all()
    # Skip this for polls without new rows, which are the most common.
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
    # A note for the agent, not written by a person.
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
"""A conversation's files by message and by id."""


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
        # The file replaces its label.
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
"""Kinds of rows besides answers, taken from their keys (gateway/pipeline/turn.py,
gateway/pipeline/admission.py, gateway/agent_ports/tools.py)."""
TO_OWNERS = (*outbox_rows.NOTICES, "pairing:")


def is_notice(source_key: str) -> bool:
    """Whether a row precedes an answer: "turn:7:trouble:1", not "turn:7:answer:1".

    Includes alerts in an owner's chat, which may come while the owner waits for an answer.
    """
    return _kind(source_key) in NOTICES or source_key.startswith(TO_OWNERS)


def _kind(source_key: str) -> str:
    *_, kind, _part = ["", *source_key.split(":")]
    return kind


@dataclass(frozen=True, slots=True)
class Overview:
    """A conversation in `parley sessions list`.

    Attributes:
        thread: Thread in its chat; None outside threads.
        sender: Its only user; None if shared.
        number: Number of its active segment.
        segments: Number of segments in all lineages.
        messages: Number of recorded messages, including erased ones.
        last_at: Time of the newest message (its turn's end if erased), in seconds since the epoch.
        reported_tokens: The model's last report for the view; None before its first answer.
        estimated_tokens: Estimated view size after the compaction that began the active segment, if
            any.
        parent: The parent conversation of a delegated child.
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
    """List conversations including delegated children, newest first.

    `before` limits them to ids below it.
    """
    query = _overviews().order_by(conversation.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(conversation.c.id < before)
    return [Overview(*row) for row in conn.execute(query)]


def overviews_of(conn: Connection, conversation_ids: Collection[int]) -> list[Overview]:
    """Return the existing ones of these conversations, unordered."""
    rows = conn.execute(_overviews().where(conversation.c.id.in_(conversation_ids)))
    return [Overview(*row) for row in rows]


def overview(conn: Connection, conversation_id: int) -> Overview:
    """Return a conversation; raise `NotFound` if it does not exist."""
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
            # The newest message may be erased, and a new conversation has none.
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
    """A segment of a lineage; times are seconds since the epoch.

    Attributes:
        title: Title of its lineage; empty without a question.
        plan: Its view of the transcript.
        compaction: The compaction that began it; None for a root or after `/retry`.
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
    """A transcript row; `body` has the message's exact bytes, `at` is in seconds."""

    seq: int
    session_id: int
    at: float
    body: str
    turn: int | None


def conversations_of_chat(conn: Connection, chat: str) -> list[int]:
    """Return the conversations of a chat by the platform's id; a group has one per member."""
    here = select(conversation.c.id).where(conversation.c.chat == chat)
    return list(conn.scalars(here.order_by(conversation.c.id)))


def turn_in_chat(conn: Connection, chat: str, seq: int) -> dict[str, Any]:
    """Return the turn of a web chat entry, with its usage.

    All values are None without a turn, as for a command; `usd` also for an unknown price.
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
    """Return transcript rows in order, in view or not.

    Args:
        from_seq: First seq; None for the newest rows.
        before: Exclusive upper limit of seqs.
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
    """Return the title of each segment's lineage by segment id; may be empty.

    The newest lineage has the conversation's title, an older one its first question's.
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
    """Select the first question's entry and file in each segment."""
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
    """Name a message's speaker: the role, a result's tool, and whether Parley wrote it."""
    if message["role"] == "tool":
        named = f"{message.get('name', '')} {message.get('tool_call_id', '')}"
        return printable(f"tool {named}".rstrip())
    if is_ephemeral(message):
        return f"{message['role']} (by Parley, context only)"
    return f"{message['role']} (by Parley)" if message.get("synthetic") else message["role"]


def standing(plan: ViewPlan, seq: int) -> str:
    """Describe briefly how a plan shows a message."""
    if plan.shows(seq):
        kinds = [edit.kind for edit in plan.edits if edit.seq == seq]
        return f"in view, shortened ({', '.join(kinds)})" if kinds else "in view"
    if any(summary.first_seq <= seq <= summary.last_seq for summary in plan.summaries):
        return "summarised"
    return "out of view"


def text_with_labels(message: ChatMessage) -> str:
    """Return a message's text with labels for other parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", _label(part.get("type", "part")))) for part in content)


def _label(kind: str) -> str:
    return "[image]" if kind in IMAGE_PARTS else f"[{kind}]"
