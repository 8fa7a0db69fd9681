"""Blame: how a process death is charged to the turns that ran in it, and which one caused it.

The rows show which turns ran: they are running under the lease that their conversation still has.
So the message path writes nothing for this.

A death not known to be caused by a turn costs no attempt during `GIVE_UP_AFTER_S`. A turn that ran
at two such deaths without progress in between is a suspect. It is tried together with all others,
but only after the process has lived for `quiet_s` without it, and trials never overlap. A trial
lasts a quarter of that time. Only a death in that quarter is blamed on it: an outside cause hits it
much more rarely than the quiet time before. A turn blamed twice is given up: after at most four
deaths, at the last two of which it was the only suspect.

The same causes and time budget apply to files being fetched: an attempt counts only at a death from
within, or once that time is used up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, and_, select, update

from gateway.storage.conversation import conversations
from gateway.storage.conversation.turns import MOST_BLAMED, progress_of
from gateway.storage.queue import leases
from gateway.storage.schema import (
    attachment,
    conversation,
    file_is_awaited,
    is_running,
    now_s,
    turn,
)

DeathCause = Literal[
    "stopped",
    "stop_cut_off",
    "machine_restarted",
    "out_of_memory",
    "fatal_signal",
    "exception",
    "killed",
]
"""stopped: ended on request. stop_cut_off: killed while ending on request. exception: ended by
itself with an exception. killed: by SIGKILL from outside, or unknown."""
GIVE_UP_AFTER_S = 3_600.0
"""Seconds during which deaths cost a turn no attempts unless it is known to be their cause."""
FREE: frozenset[DeathCause] = frozenset({"stopped", "stop_cut_off"})
"""Ends that never cost anything."""
NOBODYS: frozenset[DeathCause] = frozenset({"machine_restarted", "exception"})
"""Deaths with a known cause, which raise no suspicion unless they name a turn."""
INSIDE: frozenset[DeathCause] = frozenset({"out_of_memory", "fatal_signal"})
"""Deaths certainly caused from within."""

SUSPECT_AFTER = 2
"""Deaths without progress after which a turn is a suspect."""
QUIET_S = 10.0
"""Seconds that a process must live without a suspect before its first trial."""
LONGEST_QUIET_S = 0.8 * leases.LONGEST_BACKOFF_S
"""Below the longest back-off, beyond which a time means that the clock was set back."""
TRIAL_SHARE = 0.25
"""Length of a trial as a share of the quiet time before it."""
CHILD_GIVEN_UP = 1000
"""Attempt count of a delegated child that is given up; more than delegation.py allows."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended.

    Attributes:
        died_at: Latest possible time, in seconds since the epoch; None for now.
        turn: Id of the turn whose task was running, if known.
    """

    how: DeathCause = "killed"
    died_at: float | None = None
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class TurnDeaths:
    """A turn's record of deaths since its last progress.

    Attributes:
        attempt: Counted attempts.
        deaths: Process deaths that raised suspicion.
        blamed: Number of these blamed on it.
        quiet_s: Seconds that the process must live without it before its next trial.
        troubled_at: First resumption after a death, in seconds since the epoch.
    """

    turn: int
    began_at: float
    attempt: int
    deaths: int = 0
    blamed: int = 0
    quiet_s: float = 0.0
    troubled_at: float | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether it must be tried separately."""
        return self.deaths >= SUSPECT_AFTER


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The work that a new process takes over.

    Attributes:
        conversations: Number of conversations left by an earlier process.
        ran: Number of turns that were running at its end.
        trials: Length of each suspect's trial in seconds, by conversation.
    """

    conversations: int
    ran: int
    trials: dict[int, float]


def take_over(conn: Connection, replica_id: int, death: Death) -> Inheritance:
    """Charge the turns that ran when the earlier process ended, and take over its work."""
    # Before the leases are taken from it: they show which turns ran (decision 007).
    ran = _charge(conn, conversation.c.owner != replica_id, death)
    _forgive_files(conn, death)
    if not ran and death.how not in FREE | NOBODYS:
        # No turn killed the process, since suspects were held back when it died.
        suspects = (is_running, turn.c.deaths >= SUSPECT_AFTER, turn.c.blamed == 0)
        conn.execute(update(turn).where(*suspects).values(deaths=0, quiet_s=0.0))
    count = leases.reap_others(conn, replica_id)
    return Inheritance(count, len(ran), _hold_suspects(conn))


def take_over_from(conn: Connection, dead_id: int, death: Death) -> Inheritance:
    """Charge the turns that ran in a dead replica, and take over its work.

    Turns of other replicas continue. If nothing ran in it, waiting suspects are not cleared: with
    several processes, such a death says little about a turn that ran nowhere.

    `dead_id` is the replica, whose row the caller has locked (`replicas.reap`).
    """
    # It may still be alive and writing: wait for that, and prevent further writes.
    held = select(conversation.c.id).where(conversation.c.owner == dead_id)
    conn.execute(conversations.locking(held.order_by(conversation.c.id)))
    ran = _charge(conn, conversation.c.owner == dead_id, death)
    _forgive_files(conn, death)
    count = leases.reap(conn, dead_id)
    return Inheritance(count, len(ran), _hold_suspects(conn, turn.c.id.in_(ran)))


def trials(conn: Connection) -> dict[int, float]:
    """Return the length of each suspect's trial in seconds, by conversation."""
    suspects = conn.execute(select(turn.c.conversation, turn.c.quiet_s).where(*_IS_SUSPECT))
    return {row.conversation: TRIAL_SHARE * row.quiet_s for row in suspects}


def _charge(conn: Connection, its: ColumnElement[bool], death: Death) -> list[int]:
    rows = _ran(conn, its)
    if not rows:
        return []
    at = rows[0].looked_at
    died_at = at if death.died_at is None else min(death.died_at, at)
    before = [_standing(conn, row) for row in rows]
    after = judged(before, replace(death, died_at=died_at), at)
    for row, standing in zip(rows, after, strict=True):
        _note(conn, row, standing)
    return [row.id for row in rows]


def judged(ran: Sequence[TurnDeaths], death: Death, now: float) -> list[TurnDeaths]:
    """Return the record of each running turn after a process death at a known time."""
    if death.how in FREE:
        return [_forgiven(each) for each in ran]
    culprit = _culprit(ran, death)
    after = []
    for each in ran:
        troubled_at = now if each.troubled_at is None else each.troubled_at
        standing = replace(each, troubled_at=troubled_at)
        # Within the budget a death costs no attempt, since most running turns did not cause it.
        if now - troubled_at <= GIVE_UP_AFTER_S:
            standing = _forgiven(standing)
        if each is culprit:
            standing = _held_against(standing, death)
        elif culprit is None and death.how not in NOBODYS:
            quiet_s = max(standing.quiet_s, _quiet_s(standing, death))
            standing = replace(standing, deaths=standing.deaths + 1, quiet_s=quiet_s)
        after.append(standing)
    return after


def _forgive_files(conn: Connection, death: Death) -> None:
    """Uncount an attempt of each awaited file, unless a file may have killed the process.

    Running fetches are not recorded, so files that only waited get another try as well.
    """
    if death.how in INSIDE and death.turn is None:
        return
    tried = [file_is_awaited, attachment.c.failures > 0]
    if death.how not in FREE:
        tried.append(attachment.c.at >= now_s() - GIVE_UP_AFTER_S)
    conn.execute(update(attachment).where(*tried).values(failures=attachment.c.failures - 1))


def _forgiven(standing: TurnDeaths) -> TurnDeaths:
    return replace(standing, attempt=max(standing.attempt - 1, 0))


def _culprit(ran: Sequence[TurnDeaths], death: Death) -> TurnDeaths | None:
    """Return the turn to blame for a death, if any; all others are cleared."""
    if death.turn is not None:
        return next((each for each in ran if each.turn == death.turn), None)
    suspects = [each for each in ran if each.is_suspect]
    if not suspects or death.how in NOBODYS:
        return None
    # The cause was within the process, and there was no other suspect.
    if death.how in INSIDE and len(suspects) == 1:
        return suspects[0]
    # Suspects are tried one at a time, so the latest started one was on trial, if any.
    latest = max(suspects, key=lambda each: each.began_at)
    was_on_trial = _ran_s(latest, death) <= TRIAL_SHARE * latest.quiet_s
    return latest if was_on_trial else None


def _held_against(standing: TurnDeaths, death: Death) -> TurnDeaths:
    """Blame a turn, doubling the quiet time before its next trial."""
    quiet_s = max(2 * standing.quiet_s, _quiet_s(standing, death))
    return replace(
        standing,
        deaths=max(standing.deaths + 1, SUSPECT_AFTER),
        blamed=standing.blamed + 1,
        quiet_s=min(quiet_s, LONGEST_QUIET_S),
    )


def _quiet_s(standing: TurnDeaths, death: Death) -> float:
    """Return a quiet time after which a death this late would fall into the trial."""
    wanted = max(QUIET_S, _ran_s(standing, death) / TRIAL_SHARE)
    return min(wanted, LONGEST_QUIET_S)


def _ran_s(standing: TurnDeaths, death: Death) -> float:
    return max((death.died_at or 0.0) - standing.began_at, 0.0)


def _ran(conn: Connection, its: ColumnElement[bool]) -> Sequence[Row[Any]]:
    """Return the turns that ran in a dead process: started, not suspended, not stopped."""
    return conn.execute(
        select(turn, now_s().label("looked_at"))
        .join(
            conversation,
            and_(conversation.c.id == turn.c.conversation, conversation.c.epoch == turn.c.epoch),
        )
        .where(
            is_running,
            # A released conversation had no active turn, regardless of its rows.
            conversation.c.owner.is_not(None),
            its,
        )
        .order_by(turn.c.id)
    ).all()


def _standing(conn: Connection, row: Row[Any]) -> TurnDeaths:
    """Return a turn's earlier record, reset after progress since its last attempt."""
    began_at = row.started_at if row.attempt_at is None else row.attempt_at
    if progress_of(conn, row) > row.attempt_progress:
        return TurnDeaths(row.id, began_at, 1)
    return TurnDeaths(
        row.id, began_at, row.attempt, row.deaths, row.blamed, row.quiet_s, row.troubled_at
    )


def _note(conn: Connection, row: Row[Any], standing: TurnDeaths) -> None:
    blamed = standing.blamed
    children = conversations.children_of_turn(row.id)
    # The children that ran with it.
    ran = (turn.c.conversation.in_(children), is_running, turn.c.epoch == row.epoch)
    given_up = {"attempt": CHILD_GIVEN_UP, "attempt_progress": turn.c.progress}
    if blamed >= MOST_BLAMED and conn.execute(update(turn).where(*ran).values(given_up)).rowcount:
        # They are given up instead of it, and it continues without them.
        blamed = MOST_BLAMED - 1
    elif standing.attempt < row.attempt:
        forgiven = update(turn).where(*ran, turn.c.attempt > 0)
        conn.execute(forgiven.values(attempt=turn.c.attempt - 1))
    conn.execute(
        update(turn)
        .where(turn.c.id == row.id)
        .values(
            attempt=standing.attempt,
            attempt_progress=progress_of(conn, row),
            deaths=standing.deaths,
            blamed=blamed,
            quiet_s=standing.quiet_s,
            troubled_at=standing.troubled_at,
        )
    )


def _hold_suspects(conn: Connection, among: ColumnElement[bool] | None = None) -> dict[int, float]:
    """Delay suspects by their quiet time, or not at all once the time budget is used up.

    Return the length of their trials in seconds, by conversation.
    """
    suspects = select(turn, now_s().label("looked_at")).where(*_IS_SUSPECT).order_by(turn.c.id)
    rows = conn.execute(suspects if among is None else suspects.where(among)).all()
    held = {}
    for row in rows:
        over = row.troubled_at is not None and row.looked_at - row.troubled_at > GIVE_UP_AFTER_S
        held[row.conversation] = TRIAL_SHARE * row.quiet_s
        if not over:
            conversations.hold_until(conn, row.conversation, row.looked_at + row.quiet_s)
    return held


_IS_SUSPECT = (is_running, turn.c.deaths >= SUSPECT_AFTER, turn.c.blamed < MOST_BLAMED)
