"""Retention: finds old data and erases it in small steps.

Most classes are rows of one table (`SWEEPS`). Of a transcript, messages outside the conversation's
view are erased; after long silence the conversation starts over, and all of it is erased. Data
needed by a running turn, an unsent answer or an open question stays.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    update,
)

from agent.messages import decode, handle_of
from agent.view.view import ViewPlan, dump_plan
from gateway.storage.audit_log import SETTINGS
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.transcript import END, shown_ranges, without
from gateway.storage.schema import (
    UNSENT,
    attachment,
    attachment_part,
    audit_rows,
    blob,
    conversation,
    inbox,
    inquiry,
    is_pending,
    is_running,
    is_unanswered,
    is_unsent,
    ledger,
    memory,
    message,
    node,
    now_s,
    octets,
    outbox,
    quarantine,
    session,
    step,
    turn,
    view_plan,
)
from gateway.storage.search import index
from gateway.storage.search.index import terms_of

REASON = "retention"
"""The reason for restarting a conversation without messages for `retention.transcript_days`."""
STEP_ROWS = 200
"""Most rows per transaction, since others wait for it."""
STEP_MESSAGES = 50
"""Most messages per transaction, with their search index terms."""
FOUND_ROWS = 5_000
"""Most rows per read."""
CONVERSATIONS = 500
"""Most conversations per read."""
GONE = "it was removed: files are not kept that long here"

Key = tuple[Any, ...]
Range = tuple[int, int]


class Pruned(NamedTuple):
    """The erased or erasable amount; bytes of texts and files, not of pages."""

    rows: int = 0
    bytes: int = 0

    def plus(self, other: "Pruned") -> "Pruned":
        """Return the sum of both."""
        return Pruned(self.rows + other.rows, self.bytes + other.bytes)


class Sweep(NamedTuple):
    """The erasable rows of a table: their condition besides age, and a row's size in bytes."""

    table: Table
    may_go: ColumnElement[bool]
    size: ColumnElement[Any]


def _old(table: Table, age_s: float) -> ColumnElement[bool]:
    return table.c.at < now_s() - age_s


def _bytes_of(*texts: ColumnElement[Any]) -> ColumnElement[Any]:
    sizes = (func.coalesce(octets(each), 0) for each in texts)
    return sum(sizes, start=literal_column("0"))


def _turn_runs(turn_id: Any) -> ColumnElement[bool]:
    return exists().where(turn.c.id == turn_id, is_running)


def _turn_is_dead(turn_id: Any) -> ColumnElement[bool]:
    """Whether a turn is a dead letter, whose question an operator may retry."""
    return exists().where(turn.c.id == turn_id, turn.c.state == "dead")


_other = outbox.alias("other")
# Like `is_unsent`, matching its index, but for another row.
_is_unsent = _other.c.state.in_(UNSENT)


def _is_working(conversation_id: Any) -> ColumnElement[bool]:
    return or_(
        exists().where(turn.c.conversation == conversation_id, is_running),
        exists().where(inbox.c.conversation == conversation_id, is_pending),
        exists().where(_other.c.conversation == conversation_id, _is_unsent),
        exists().where(inquiry.c.conversation == conversation_id, is_unanswered),
    )


_is_finished = and_(
    inbox.c.state.in_(("done", "cancelled", "refused", "dead")), ~_turn_is_dead(inbox.c.turn_id)
)
# Looked up in the transcript without an index, since few turns end like this.
_is_unrecorded = and_(
    inbox.c.state.in_(("cancelled", "dead")),
    ~exists().where(
        message.c.conversation == inbox.c.conversation, message.c.turn_id == inbox.c.turn_id
    ),
)
_settings = audit_rows.alias("settings")
# Kept for the comparison at the next start.
_last_settings = func.coalesce(
    select(func.max(_settings.c.id)).where(_settings.c.kind == SETTINGS).scalar_subquery(), 0
)
SWEEPS: dict[str, tuple[Sweep, ...]] = {
    # An approval for a conversation is an answered inquiry and applies until it is erased.
    "audit": (
        Sweep(
            step,
            and_(step.c.kind == "tool", ~_turn_runs(step.c.turn_id)),
            _bytes_of(step.c.name, step.c.result),
        ),
        Sweep(
            inquiry,
            and_(
                ~is_unanswered,
                func.coalesce(inquiry.c.answer, "") != "conversation",
                ~_turn_runs(inquiry.c.turn_id),
            ),
            _bytes_of(inquiry.c.question, inquiry.c.answer),
        ),
        Sweep(audit_rows, audit_rows.c.id != _last_settings, _bytes_of(audit_rows.c.said)),
    ),
    "ledger": (
        Sweep(
            ledger,
            or_(ledger.c.turn_id.is_(None), ~_turn_runs(ledger.c.turn_id)),
            _bytes_of(ledger.c.model, ledger.c.provider),
        ),
    ),
    # Commands and unanswered entries; answered ones go with their messages. Notes that quote people
    # go as well; the agent's own stay.
    "transcript": (
        Sweep(memory, memory.c.conversation.is_not(None), _bytes_of(memory.c.text, memory.c.value)),
        Sweep(
            inbox,
            and_(
                _is_finished,
                or_(inbox.c.turn_id.is_(None), inbox.c.kind == "command", _is_unrecorded),
            ),
            _bytes_of(inbox.c.text),
        ),
        # Copies of messages in model steps and sent answers.
        Sweep(
            step,
            and_(step.c.kind == "model", ~_turn_runs(step.c.turn_id)),
            _bytes_of(step.c.name, step.c.result),
        ),
        # While work is in progress, keys are needed and buttons may have to be removed.
        Sweep(
            outbox,
            and_(outbox.c.state.in_(("sent", "dropped")), ~_is_working(outbox.c.conversation)),
            _bytes_of(outbox.c.payload, outbox.c.markdown),
        ),
    ),
}


def count(conn: Connection, sweep: Sweep, age_s: float) -> Pruned:
    """Return the erasable amount, reading the whole table."""
    return _counted(conn, sweep.size, _old(sweep.table, age_s), sweep.may_go)


def _counted(conn: Connection, size: ColumnElement[Any], *its: ColumnElement[bool]) -> Pruned:
    sizes = select(func.count(), func.coalesce(func.sum(size), 0)).where(*its)
    return Pruned(*conn.execute(sizes).one())


def find(conn: Connection, sweep: Sweep, age_s: float) -> list[Key]:
    """Return the keys of up to `FOUND_ROWS` erasable rows."""
    # No index of times: it would cost each message, and readers look once an hour (decision 017).
    keys = select(*sweep.table.primary_key.columns)
    found = keys.where(_old(sweep.table, age_s), sweep.may_go).limit(FOUND_ROWS)
    return [tuple(row) for row in conn.execute(found)]


def erase(conn: Connection, sweep: Sweep, age_s: float, keys: Sequence[Key]) -> Pruned:
    """Erase the given rows if they are still erasable."""
    keyed = [column == bindparam(column.name) for column in sweep.table.primary_key]
    gone = delete(sweep.table).where(*keyed, _old(sweep.table, age_s), sweep.may_go)
    names = [column.name for column in sweep.table.primary_key]
    one = gone.returning(sweep.size)
    sizes = [size for key in keys for size in conn.scalars(one, dict(zip(names, key, strict=True)))]
    return Pruned(len(sizes), sum(sizes))


def count_raw(conn: Connection, age_s: float) -> Pruned:
    """Return the number of erasable raw updates."""
    total = Pruned()
    for table, there in ((inbox, inbox.c.raw.is_not(None)), (quarantine, quarantine.c.raw != "")):
        total = total.plus(_counted(conn, _bytes_of(table.c.raw), _old(table, age_s), there))
    return total


def conversations_with_old(conn: Connection, age_s: float, after: int) -> list[int]:
    """Return the next conversations after `after` that start with an old message, in order."""
    first_at = (
        select(message.c.at)
        .where(message.c.conversation == conversation.c.id)
        .order_by(message.c.seq)
        .limit(1)
        .scalar_subquery()
    )
    found = select(conversation.c.id).where(conversation.c.id > after, first_at < now_s() - age_s)
    return list(conn.scalars(found.order_by(conversation.c.id).limit(CONVERSATIONS)))


def begin_anew(conn: Connection, conversation_id: int, age_s: float) -> None:
    """Empty the view of a conversation that was silent for `age_s`."""
    # Checked here again: it may be in use since a reader found it (decision 017).
    conversations.hold(conn, conversation_id)
    if not _is_idle(conn, conversation_id, age_s):
        return
    active = sessions.active(conn, conversation_id)
    head = conversations.message_head(conn, conversation_id)
    if active.plan.first_seq <= head:
        sessions.end(conn, active.id, REASON)
        sessions.start_root(conn, conversation_id, REASON, first_seq=head + 1)


def _is_idle(conn: Connection, conversation_id: int, age_s: float) -> bool:
    young = exists().where(
        message.c.conversation == conversation_id,
        message.c.seq == conversation.c.message_head,
        ~_old(message, age_s),
    )
    here = conversation.c.id == conversation_id
    rests = (
        conversation.c.owner.is_(None),
        ~_is_working(conversation.c.id),
        ~_turn_runs(conversation.c.parent_turn_id),
        ~young,
    )
    return conn.scalar(select(conversation.c.id).where(here, *rests)) is not None


def count_transcript(conn: Connection, conversation_id: int, age_s: float) -> Pruned:
    """Return the number of a conversation's erasable messages."""
    active = sessions.find_active(conn, conversation_id)
    ranges = [] if active is None else _removable(active.plan)
    if _is_idle(conn, conversation_id, age_s):
        ranges = [(1, END)]
    total = Pruned()
    for first, last in ranges:
        here = _may_go(conversation_id, first, last, age_s)
        total = total.plus(_counted(conn, _bytes_of(message.c.body), *here))
    return total


def _may_go(
    conversation_id: int, first: int, last: int, age_s: float
) -> tuple[ColumnElement[bool], ...]:
    """Match the old messages of a range; turns are erased whole, never while running or dead."""
    other = message.alias("other")
    young = (
        select(func.min(other.c.seq))
        .where(other.c.conversation == conversation_id, other.c.at >= now_s() - age_s)
        .scalar_subquery()
    )
    its_turn = (
        select(other.c.turn_id)
        .where(other.c.conversation == conversation_id, other.c.seq == young)
        .scalar_subquery()
    )
    return (
        message.c.conversation == conversation_id,
        message.c.seq.between(first, last),
        message.c.seq < func.coalesce(young, END),
        # Different defaults for NULL, since two messages without a turn do not share one.
        func.coalesce(message.c.turn_id, 0) != func.coalesce(its_turn, -1),
        ~_turn_runs(message.c.turn_id),
        ~_turn_is_dead(message.c.turn_id),
    )


def _removable(plan: ViewPlan) -> list[Range]:
    """Return the ranges that a view will never need again: before its start, or summarized.

    Messages of an extract are kept for a better summary, those of a node for recall.
    """
    covered = [
        (summary.first_seq, summary.last_seq)
        for summary in plan.summaries
        if summary.source == "model" and not summary.node
    ]
    spans = [(1, plan.first_seq - 1), *covered]
    for hole in shown_ranges(plan):
        spans = [part for span in spans for part in without(hole, span)]
    return spans


def may_take_out(conn: Connection, conversation_id: int, age_s: float) -> bool:
    """Whether a conversation has erasable messages."""
    active = sessions.find_active(conn, conversation_id)
    return active is not None and bool(_old_messages(conn, conversation_id, active.plan, age_s))


def take_out(conn: Connection, conversation_id: int, age_s: float) -> Pruned:
    """Erase the next erasable messages with their index terms and dependent rows.

    Does nothing for an erased conversation or without indexed erasable messages.
    """
    conversations.hold(conn, conversation_id)
    active = sessions.find_active(conn, conversation_id)
    rows = [] if active is None else _old_messages(conn, conversation_id, active.plan, age_s)
    if not rows or not _forget_words(conn, conversation_id, rows):
        return Pruned()
    seqs = [row.seq for row in rows]
    of_it = message.c.conversation == conversation_id
    conn.execute(delete(message).where(of_it, message.c.seq.in_(seqs)))
    turns = {row.turn_id for row in rows} - {None}
    # A turn's messages are adjacent and have no index by turn, so check only nearby ones.
    left = conn.scalars(
        select(message.c.turn_id)
        .where(of_it, message.c.seq.between(seqs[0] - STEP_ROWS, seqs[-1] + STEP_ROWS))
        .distinct()
    )
    gone = turns - set(left)
    told = (inbox.c.conversation == conversation_id, inbox.c.turn_id.in_(gone), _is_finished)
    conn.execute(delete(inbox).where(*told))
    conn.execute(
        delete(blob).where(blob.c.conversation == conversation_id, blob.c.turn_id.in_(gone))
    )
    _forget_summaries(conn, conversation_id, age_s)
    return Pruned(len(rows), sum(len(row.body.encode()) for row in rows))


def _old_messages(
    conn: Connection, conversation_id: int, plan: ViewPlan, age_s: float
) -> list[Any]:
    found: list[Any] = []
    for first, last in _removable(plan):
        here = _OLD.where(*_may_go(conversation_id, first, last, age_s))
        found += conn.execute(here.limit(STEP_MESSAGES - len(found)))
    return found


_OLD = select(message.c.seq, message.c.turn_id, message.c.body).order_by(message.c.seq)


def _forget_words(conn: Connection, conversation_id: int, rows: Sequence[Any]) -> bool:
    """Remove messages from the search index; return False if their terms are unknown."""
    is_fed = conversations.search_progress(conn, conversation_id)[0] >= rows[-1].seq
    if not is_fed or not index.is_current(conn):
        return False
    index.take_out(conn, conversation_id, {row.seq: terms_of(decode(row.body)) for row in rows})
    return True


def _forget_summaries(conn: Connection, conversation_id: int, age_s: float) -> None:
    """Empty the plans of old ended segments, since summaries repeat messages.

    Also erases nodes of ended lineages. No summary or node outlives the last message.
    """
    empty = dump_plan(ViewPlan())
    is_last = ~exists().where(message.c.conversation == conversation_id)
    ended = select(session.c.id).where(
        session.c.conversation == conversation_id,
        session.c.ended_at.is_not(None),
        or_(session.c.ended_at < now_s() - age_s, session.c.end_reason == REASON, is_last),
    )
    told = (view_plan.c.session_id.in_(ended), view_plan.c.body.contains("summaries"))
    conn.execute(update(view_plan).where(*told).values(body=empty))
    left = sessions.active(conn, conversation_id).plan.first_seq
    over = (node.c.conversation == conversation_id, node.c.last_seq < left)
    conn.execute(delete(node).where(*over, or_(_old(node, age_s), is_last)))


def files_due(
    conn: Connection, age_s: float | None, most_bytes: int | None
) -> list[tuple[int, int]]:
    """Return files that are too old or beyond the total size, oldest first.

    Each is (id, bytes). Files in a view or not sent yet stay.
    """
    is_stored = attachment.c.state == "stored"
    total = int(conn.scalar(select(func.sum(attachment.c.size_bytes)).where(is_stored)) or 0)
    too_old = false() if age_s is None else _old(attachment, age_s)
    stored = select(attachment, too_old.label("too_old")).where(is_stored)
    due = []
    for row in conn.execute(stored.order_by(attachment.c.id)):
        if not row.too_old and (most_bytes is None or total <= most_bytes):
            break
        if not _is_needed(conn, row):
            due.append((row.id, row.size_bytes))
            total -= row.size_bytes
    return due


def _is_needed(conn: Connection, row: Any) -> bool:
    turn_id = row.turn_id
    if turn_id is None:
        its_message = (inbox.c.conversation == row.conversation, inbox.c.seq == row.inbox_seq)
        found = conn.execute(select(inbox.c.turn_id, inbox.c.state).where(*its_message)).first()
        turn_id = None if found is None else found.turn_id
        if found is not None and found.state in {"queued", "taken", "noted"}:
            return True
    sent_with = (outbox.c.conversation == row.conversation, outbox.c.attachment == row.id)
    is_dead_letter = outbox.c.state == "dead"
    unsent, dead = (exists().where(*sent_with, each) for each in (is_unsent, is_dead_letter))
    waits = or_(unsent, dead, _turn_runs(turn_id), _turn_is_dead(turn_id))
    return bool(conn.scalar(select(waits))) or _is_shown(conn, row, turn_id)


def _is_shown(conn: Connection, row: Any, turn_id: int | None) -> bool:
    """Whether a view contains messages of the file's turn or others that refer to it."""
    active = sessions.find_active(conn, row.conversation)
    if active is None:
        return False
    shown = or_(*(message.c.seq.between(*span) for span in shown_ranges(active.plan)))
    # Within a text, quotes are escaped.
    names_it = message.c.body.contains(f'"{handle_of(row.id)}"', autoescape=True)
    about_it = names_it if turn_id is None else or_(message.c.turn_id == turn_id, names_it)
    here = (message.c.conversation == row.conversation, shown, about_it)
    return conn.execute(select(message.c.seq).where(*here).limit(1)).first() is not None


def remove_file(conn: Connection, file_id: int) -> bool:
    """Mark an unneeded file as erased; its parts are erased one by one afterwards."""
    row = conn.execute(select(attachment).where(attachment.c.id == file_id)).one_or_none()
    if row is None or row.state != "stored":
        return False
    conversations.hold(conn, row.conversation)
    if _is_needed(conn, row):
        return False
    here = attachment.c.id == file_id
    conn.execute(update(attachment).where(here).values(state="failed", error=GONE))
    return True


def parts_left(conn: Connection) -> list[Key]:
    """Return the keys of orphaned parts, left by a kill."""
    found = (
        select(attachment_part.c.attachment, attachment_part.c.n)
        .join(attachment, attachment.c.id == attachment_part.c.attachment)
        .where(attachment.c.state == "failed", attachment.c.error == GONE)
    )
    return [tuple(row) for row in conn.execute(found.limit(STEP_ROWS))]


def erase_part(conn: Connection, key: Key) -> None:
    """Erase one part of a file, at most a megabyte."""
    attachment_id, n = key
    here = (attachment_part.c.attachment == attachment_id, attachment_part.c.n == n)
    conn.execute(delete(attachment_part).where(*here))
