"""How full a conversation's window is and what it took so far: `/status` and `/usage`.

Both are answered while a message is admitted, so nothing is read here but sums and
figures of the newest calls: no message texts.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Select, func, select

from gateway.storage import costs, lineage, prompts
from gateway.storage.costs import Group, Spent
from gateway.storage.lineage import Session
from gateway.storage.models import (
    alias,
    compaction,
    conversation,
    is_running,
    message,
    session,
    step,
    turn,
)
from gateway.storage.prompts import Answer
from gateway.storage.statements import built_once
from gateway.storage.transcript import shown_ranges

HOUSEKEPT = (
    "compressed",
    "nothing_to_compress",
    "model_listed",
    "model_chosen",
    "model_unknown",
    "model_refused",
)
"""Outcomes of the turns of `/compress` and `/model`: these answer nobody and are not counted."""


@dataclass(frozen=True, slots=True)
class Context:
    """The size of a conversation's view in tokens.

    Attributes:
        source: reported: the model's last report and an estimate of what was added since;
            estimated: no report stands behind it.
    """

    tokens: int
    source: Literal["reported", "estimated"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What turns took, what they do in the background included.

    Attributes:
        compactions: How often the view was made smaller.
        saved_tokens: By how much, as estimated when it was done.
    """

    turns: int = 0
    tool_calls: int = 0
    spent: Spent = field(default_factory=Spent)
    compactions: int = 0
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What `/usage` tells about a conversation.

    Attributes:
        segment: The turns that ended or are running in the present segment, and the compaction
            that began it; not what is done in the background.
        whole: The whole conversation, but for what it has delegated.
        delegated: What the children of its turns took.
        models: What it took, by model.
        last_turn: The newest turn that asked a model.
        answers: The newest calls, in order.
    """

    segment: Figures
    whole: Figures
    models: tuple[Group, ...]
    last_turn: Spent
    answers: tuple[Answer, ...] = ()
    delegated: Figures = field(default_factory=Figures)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a conversation's view stands.

    Attributes:
        session_id: The present segment, and its `number` in the lineage.
        title: As that segment carries it ("Title #2"); empty for none.
        compactions: So far, in the whole conversation.
        answered_by: The model that last reported, as it is booked; None where none has.
    """

    session_id: int
    number: int
    title: str
    context: Context
    compactions: int
    answered_by: str | None = None


def view_tokens(conn: Connection, session_key: str, fixed_tokens: int) -> int | None:
    """Return the size of a conversation's view; None for a conversation that does not exist."""
    conversation_id = conn.scalar(*_of_key(session_key))
    if conversation_id is None:
        return None
    return standing(conn, conversation_id, fixed_tokens).context.tokens


def model_of(conn: Connection, session_key: str) -> str | None:
    """Return what `/model` has chosen for a conversation; None for nothing, or no conversation."""
    conversation_id = conn.scalar(*_of_key(session_key))
    return None if conversation_id is None else chosen_model(conn, conversation_id)


def chosen_model(conn: Connection, conversation_id: int) -> str | None:
    """Return the same by the conversation's id."""
    chosen: str | None = conn.scalar(*_chosen(conversation_id))
    return chosen


@built_once
def _chosen(conversation_id: int) -> Any:
    return select(conversation.c.model).where(conversation.c.id == conversation_id)


@built_once
def _of_key(session_key: str) -> Any:
    return select(alias.c.conversation).where(alias.c.session_key == session_key)


def standing(conn: Connection, conversation_id: int, fixed_tokens: int) -> Standing:
    """Return how a conversation's view stands.

    Args:
        conn: A reading connection.
        conversation_id: Which conversation.
        fixed_tokens: Estimate of system prompt and tool schemas, which every request begins with.
    """
    here = lineage.active(conn, conversation_id)
    title = conn.scalar(*_title(conversation_id)) or ""
    return Standing(
        session_id=here.id,
        number=here.number,
        title=lineage.titled(title, here.number) if title else "",
        context=_context(conn, here, fixed_tokens),
        compactions=_saved(conn, conversation_id, None).compactions,
        answered_by=here.report_model,
    )


@built_once
def _title(conversation_id: int) -> Any:
    return select(conversation.c.title).where(conversation.c.id == conversation_id)


def _context(conn: Connection, here: Session, fixed_tokens: int) -> Context:
    """Return the size of a segment's view: the best that is known, and what was added since."""
    if here.prompt_tokens is not None and here.prompt_upto_seq is not None:
        covered = here.prompt_tokens + (here.prompt_output_tokens or 0)
        added = _tokens_shown(conn, here, from_seq=here.prompt_upto_seq + 1)
        return Context(covered + _scaled(here, added), "reported")
    made = conn.execute(*_newest_compaction(here.conversation)).one_or_none()
    if made is None:
        shown = _tokens_shown(conn, here)
        return Context(_scaled(here, fixed_tokens + shown), "estimated")
    added = _tokens_shown(conn, here, from_session=made.child_session_id)
    return Context(made.tokens_after + _scaled(here, added), "estimated")


def _scaled(here: Session, tokens: int) -> int:
    return math.ceil(here.token_ratio * tokens)


@built_once
def _newest_compaction(conversation_id: int) -> Any:
    """Select the newest compaction of the present lineage."""
    root = (
        select(func.max(session.c.id))
        .where(session.c.conversation == conversation_id, session.c.parent_session_id.is_(None))
        .scalar_subquery()
    )
    return (
        select(compaction.c.tokens_after, compaction.c.child_session_id)
        .where(compaction.c.conversation == conversation_id, compaction.c.child_session_id > root)
        .order_by(compaction.c.id.desc())
        .limit(1)
    )


def _tokens_shown(
    conn: Connection, here: Session, *, from_seq: int = 1, from_session: int = 0
) -> int:
    """Return the estimates of the messages that a segment shows, summed up.

    Args:
        conn: A reading connection.
        here: The segment.
        from_seq: Only messages from there on.
        from_session: Only what was recorded in this segment or a later one.
    """
    spans = ((max(low, from_seq), high) for low, high in shown_ranges(here.plan))
    return sum(
        conn.scalar(*_tokens_within(here.conversation, low, high, from_session)) or 0
        for low, high in spans
        if low <= high
    )


@built_once
def _tokens_within(conversation_id: int, low: int, high: int, from_session: int) -> Any:
    return select(func.sum(message.c.tokens)).where(
        message.c.conversation == conversation_id,
        message.c.seq.between(low, high),
        message.c.session_id >= from_session,
    )


def report(conn: Connection, conversation_id: int, session_id: int) -> Report:
    """Return what a conversation took so far, what its running turn has done by now included.

    Args:
        conn: A reading connection.
        conversation_id: Which conversation.
        session_id: Its present segment.
    """
    models = costs.of_conversation(conn, conversation_id)
    in_segment = costs.of_segment(conn, conversation_id, session_id)
    return Report(
        segment=_figures(conn, conversation_id, session_id, in_segment),
        whole=_figures(conn, conversation_id, None, costs.total(models)),
        models=tuple(models),
        last_turn=costs.of_last_turn(conn, conversation_id),
        answers=tuple(prompts.recent_answers(conn, conversation_id)),
        delegated=_delegated(conn, conversation_id),
    )


def _delegated(conn: Connection, conversation_id: int) -> Figures:
    """Return what the children of a conversation's turns took; their compactions are not told."""
    done = conn.execute(*_children(conversation_id)).one()
    if not done.turns:
        return Figures()
    return Figures(done.turns, done.tool_calls, costs.of_children(conn, conversation_id))


@built_once
def _children(conversation_id: int) -> Any:
    return select(
        func.count(turn.c.id).label("turns"),
        func.coalesce(func.sum(turn.c.tool_calls), 0).label("tool_calls"),
    ).where(turn.c.conversation.in_(costs.children_of(conversation_id)))


def _figures(
    conn: Connection, conversation_id: int, session_id: int | None, spent: Spent
) -> Figures:
    done = conn.execute(_turns(conversation_id, session_id)).one()
    running = conn.scalar(_running_tools(conversation_id, session_id)) or 0
    saved = _saved(conn, conversation_id, session_id)
    return Figures(done.turns, done.tool_calls + running, spent, saved.compactions, saved.tokens)


_answers = func.coalesce(turn.c.outcome, "").not_in(HOUSEKEPT)


def _turns(conversation_id: int, session_id: int | None) -> Select[Any]:
    """Select the sums over turns; what a running one did stands in its journal only."""
    query = select(
        func.count(turn.c.id).filter(_answers).label("turns"),
        func.coalesce(func.sum(turn.c.tool_calls), 0).label("tool_calls"),
    ).where(turn.c.conversation == conversation_id)
    return query if session_id is None else query.where(turn.c.session_id == session_id)


def _running_tools(conversation_id: int, session_id: int | None) -> Select[Any]:
    query = (
        select(func.count())
        .select_from(turn)
        .join(step, step.c.turn_id == turn.c.id)
        .where(turn.c.conversation == conversation_id, is_running, step.c.kind == "tool")
    )
    return query if session_id is None else query.where(turn.c.session_id == session_id)


class Saved(NamedTuple):
    """Compactions, and how many tokens they took out of view.

    A repair is none: it mends a request that was refused, and saves nothing on purpose.
    """

    compactions: int
    tokens: int


def _saved(conn: Connection, conversation_id: int, session_id: int | None) -> Saved:
    saving = compaction.c.tokens_before - compaction.c.tokens_after
    query = select(func.count(), func.coalesce(func.sum(saving), 0)).where(
        compaction.c.conversation == conversation_id, compaction.c.trigger != "repair"
    )
    if session_id is not None:
        query = query.where(compaction.c.child_session_id == session_id)
    return Saved(*conn.execute(query).one())
