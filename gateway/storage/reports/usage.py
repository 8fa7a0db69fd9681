"""Conversations' usage and window fill.

`/status`, `/usage` and `/insights` are answered during admission, so these functions read only
sums, figures of the newest calls, and command names.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import Connection, func, select

from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.sessions import Session
from gateway.storage.conversation.transcript import tokens_shown
from gateway.storage.reports import spending
from gateway.storage.reports.spending import BACKGROUND, KnownRates, Spent, Where
from gateway.storage.schema import compaction, inbox, is_running, ledger, session, step, turn

HOUSEKEPT = (
    "compressed",
    "nothing_to_compress",
    "model_listed",
    "model_chosen",
    "model_unknown",
    "model_refused",
)
"""Outcomes of `/compress` and `/model` turns, which do not count as answers."""
Source = Literal["reported", "estimated"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Usage of turns with background work; `saved_tokens` is estimated by compactions."""

    turns: int = 0
    tool_calls: int = 0
    spent: Spent = field(default_factory=Spent)
    compactions: int = 0
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The data of `/usage`.

    Attributes:
        segment: The turns of the active segment and the compaction that began it, without
            background work.
        whole: The whole conversation without delegated children.
        delegated: The delegated children.
        last_turn: The newest turn with a model call.
        compared: The newest answers, compared with the lowest possible prompt cost.
    """

    segment: Figures
    whole: Figures
    models: Mapping[str, Spent]
    last_turn: Spent
    compared: Spent = field(default_factory=Spent)
    delegated: Figures = field(default_factory=Figures)


@dataclass(frozen=True, slots=True)
class ContextFill:
    """The state of a conversation's view.

    Attributes:
        messages: Number of recorded messages, in view or not.
        session_id: The active segment; `number` is its position in the lineage.
        title: The segment's title ("Title #2"); may be empty.
        tokens: Size of the view.
        source: "reported": the model's last report plus an estimate of newer messages; "estimated":
            without a report.
        compactions: Number of compactions in the whole conversation.
        answered_by: Ledger name of the model that last reported, if any.
    """

    conversation: int
    messages: int
    session_id: int
    number: int
    title: str
    tokens: int
    source: Source
    compactions: int
    answered_by: str | None = None


def standing(conn: Connection, conversation_id: int, fixed_tokens: int) -> ContextFill:
    """Return the state of a conversation's view.

    `fixed_tokens` estimates the system prompt and tool schemas of every request.
    """
    here = sessions.active(conn, conversation_id)
    place = conversations.get(conn, conversation_id)
    tokens, source = _context(conn, here, fixed_tokens)
    return ContextFill(
        conversation=conversation_id,
        messages=place.message_head,
        session_id=here.id,
        number=here.number,
        title=sessions.titled(place.title, here.number) if place.title else "",
        tokens=tokens,
        source=source,
        compactions=_saved(conn, conversation_id, None)[0],
        answered_by=here.report_model,
    )


def newest_outcome(conn: Connection, conversation_id: int) -> str | None:
    """Return the newest turn's outcome or "running"; None without turns."""
    ended = select(func.coalesce(turn.c.outcome, turn.c.state))
    newest = ended.where(turn.c.conversation == conversation_id).order_by(turn.c.id.desc())
    outcome: str | None = conn.scalar(newest.limit(1))
    return outcome


def _context(conn: Connection, here: Session, fixed_tokens: int) -> tuple[int, Source]:
    if here.prompt_tokens is not None and here.prompt_upto_seq is not None:
        covered = here.prompt_tokens + (here.prompt_output_tokens or 0)
        added = tokens_shown(conn, here.conversation, here.plan, from_seq=here.prompt_upto_seq + 1)
        return covered + _scaled(here, added), "reported"
    # Ignore compactions before the newest root.
    roots = (session.c.conversation == here.conversation, session.c.parent_session_id.is_(None))
    root = select(func.max(session.c.id)).where(*roots).scalar_subquery()
    columns = (compaction.c.tokens_after, compaction.c.child_session_id)
    its = (compaction.c.conversation == here.conversation, compaction.c.child_session_id > root)
    query = select(*columns).where(*its).order_by(compaction.c.id.desc()).limit(1)
    made = conn.execute(query).one_or_none()
    if made is None:
        shown = tokens_shown(conn, here.conversation, here.plan)
        return _scaled(here, fixed_tokens + shown), "estimated"
    added = tokens_shown(conn, here.conversation, here.plan, from_session=made.child_session_id)
    return made.tokens_after + _scaled(here, added), "estimated"


def _scaled(here: Session, tokens: int) -> int:
    return math.ceil(here.token_ratio * tokens)


def report(
    conn: Connection, conversation_id: int, session_id: int, known: KnownRates | None = None
) -> UsageReport:
    """Return a conversation's usage, including its running turn.

    Without the rates in `known` nothing is compared.
    """
    here = Where(conversation=conversation_id)
    models = spending.spent(conn, "model", here)
    in_segment = spending.total(conn, here._replace(session=session_id))
    newest = select(func.max(ledger.c.turn_id)).where(ledger.c.conversation == conversation_id)
    last = conn.scalar(newest)
    answers = here._replace(newest=spending.RECENT_CALLS)
    rates = spending.rates_of(conn, answers, known) if known else {}
    return UsageReport(
        segment=_figures(conn, conversation_id, session_id, in_segment),
        whole=_figures(conn, conversation_id, None, sum(models.values(), Spent())),
        models=models,
        last_turn=Spent() if last is None else spending.total(conn, here._replace(turn=last)),
        compared=spending.total(conn, answers, rates) if rates else Spent(),
        delegated=_delegated(conn, conversation_id),
    )


def _delegated(conn: Connection, conversation_id: int) -> Figures:
    query = select(
        func.count(turn.c.id).label("turns"),
        func.coalesce(func.sum(turn.c.tool_calls), 0).label("tool_calls"),
    ).where(turn.c.conversation.in_(conversations.children_of(conversation_id)))
    done = conn.execute(query).one()
    if not done.turns:
        return Figures()
    theirs = Where(conversation=conversation_id, children=True)
    return Figures(done.turns, done.tool_calls, spending.total(conn, theirs))


def _figures(
    conn: Connection, conversation_id: int, session_id: int | None, spent: Spent
) -> Figures:
    here = [turn.c.conversation == conversation_id]
    if session_id is not None:
        here.append(turn.c.session_id == session_id)
    answers = func.coalesce(turn.c.outcome, "").not_in(HOUSEKEPT)
    tools = func.coalesce(func.sum(turn.c.tool_calls), 0)
    turns, ended = conn.execute(
        select(func.count(turn.c.id).filter(answers), tools).where(*here)
    ).one()
    steps = select(func.count()).select_from(turn).join(step, step.c.turn_id == turn.c.id)
    running = conn.scalar(steps.where(*here, is_running, step.c.kind == "tool")) or 0
    return Figures(turns, ended + running, spent, *_saved(conn, conversation_id, session_id))


def _saved(conn: Connection, conversation_id: int, session_id: int | None) -> tuple[int, int]:
    """Return the number of compactions (without repairs) and the tokens they removed."""
    saving = compaction.c.tokens_before - compaction.c.tokens_after
    query = select(func.count(), func.coalesce(func.sum(saving), 0)).where(
        compaction.c.conversation == conversation_id, compaction.c.trigger != "repair"
    )
    if session_id is not None:
        query = query.where(compaction.c.child_session_id == session_id)
    count, tokens = conn.execute(query).one()
    return count, tokens


@dataclass(frozen=True, slots=True)
class Insights:
    """A conversation's turns since a time.

    Attributes:
        outcomes: Number of turns by outcome; unfinished ones are "running".
        models: Spending by model, highest first.
        durations_s: Durations of ended turns including waits, ascending.
    """

    outcomes: Counter[str]
    tools: Counter[str]
    models: Mapping[str, Spent]
    durations_s: Sequence[float]

    def duration_s(self, share: float) -> float | None:
        """Return the time within which this share of turns ended; None without turns."""
        # The nearest rank, so the time of an actual turn.
        rank = math.ceil(share * len(self.durations_s))
        return self.durations_s[max(rank, 1) - 1] if self.durations_s else None


def insights(
    conn: Connection, conversation_id: int, since: float, left_out: Collection[str]
) -> Insights:
    """Return the insights of turns since a time, except those of the commands `left_out`."""
    query = select(
        func.coalesce(turn.c.outcome, turn.c.state).label("outcome"),
        (
            select(inbox.c.command)
            .where(inbox.c.conversation == turn.c.conversation, inbox.c.seq == turn.c.first_seq)
            .scalar_subquery()
            .label("command")
        ),
        turn.c.started_at,
        turn.c.finished_at,
    ).where(turn.c.conversation == conversation_id, turn.c.started_at >= since)
    turns = [row for row in conn.execute(query) if row.command not in left_out]
    here = (turn.c.conversation == conversation_id, turn.c.started_at >= since)
    calls = select(step.c.name, func.count().label("calls"))
    its = calls.join(turn, turn.c.id == step.c.turn_id).where(*here, step.c.kind == "tool")
    tools = conn.execute(its.group_by(step.c.name)).all()
    ended = [row.finished_at - row.started_at for row in turns if row.finished_at is not None]
    return Insights(
        outcomes=Counter(row.outcome for row in turns),
        tools=Counter({row.name: row.calls for row in tools}),
        models=spending.spent(conn, "model", Where(since, conversation=conversation_id)),
        durations_s=sorted(ended),
    )


def by_outcome(conn: Connection, since: float) -> dict[str, tuple[int, Spent]]:
    """Return number and spending of turns by outcome, most frequent first.

    Includes turns that started or made calls since the time, so the sums equal those of other
    groupings. Unfinished turns are "running". `BACKGROUND`, if any, comes last.
    """
    ended = func.coalesce(turn.c.outcome, turn.c.state)
    called = select(ledger.c.turn_id).where(ledger.c.at >= since)
    recent = (turn.c.started_at >= since) | turn.c.id.in_(called)
    counted = select(ended, func.count()).where(recent).group_by(ended)
    turns: dict[str, int] = {row[0]: row[1] for row in conn.execute(counted)}
    spent = spending.spent(conn, "outcome", Where(since))
    names = turns.keys() | spent.keys()
    in_order = sorted(names, key=lambda name: (name == BACKGROUND, -turns.get(name, 0), name))
    return {name: (turns.get(name, 0), spent.get(name, Spent())) for name in in_order}
