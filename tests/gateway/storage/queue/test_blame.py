"""What the death of a process costs the turns that ran in it, and which of them is to blame."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from sqlalchemy import Connection, select, update

from agent.messages import assistant_message
from gateway.storage import schema
from gateway.storage.conversation import delegates, turn_journal, turns
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import blame, leases
from gateway.storage.queue.blame import (
    LONGEST_QUIET_S,
    QUIET_S,
    Death,
    DeathCause,
    Inheritance,
    TurnDeaths,
)
from gateway.storage.schema import attachment, conversation, now, turn
from tests.support.storage import BASE, Store, claim_one, find_running, model_call, turn_of
from tests.support.turns import USAGE, ask

NOW = 1000.0
KILLED = Death("killed", NOW)
INNOCENT = TurnDeaths(1, NOW - 3, attempt=1)
SUSPECT = TurnDeaths(2, NOW - 1, attempt=0, deaths=2, quiet_s=QUIET_S, troubled_at=NOW - 60)


def after(*ran: TurnDeaths, death: Death = KILLED, now: float = NOW) -> list[TurnDeaths]:
    """Return how turns stand after a death."""
    return blame.judged(ran, death, now)


def test_a_first_death_costs_nothing_and_is_noted() -> None:
    """The time budget begins with it."""
    [standing] = after(INNOCENT)
    assert (standing.attempt, standing.deaths, standing.troubled_at) == (0, 1, NOW)
    assert not standing.is_suspect


def test_a_second_death_makes_a_suspect() -> None:
    """It is held for four times as long as it had lived at that death."""
    [standing] = after(replace(INNOCENT, deaths=1, began_at=NOW - 8))
    assert standing.is_suspect
    assert (standing.blamed, standing.quiet_s) == (0, 32.0)
    [quick] = after(replace(INNOCENT, deaths=1))
    assert quick.quiet_s == max(12.0, QUIET_S)
    [slow] = after(replace(INNOCENT, deaths=1, began_at=NOW - 900))
    assert slow.quiet_s == LONGEST_QUIET_S


def test_a_death_on_trial_is_held_against_the_suspect_alone() -> None:
    """What ran beside it is cleared; its next trial is a harder one."""
    innocent, suspect = after(INNOCENT, SUSPECT)
    assert (innocent.deaths, innocent.attempt) == (0, 0)
    assert (suspect.blamed, suspect.deaths, suspect.quiet_s) == (1, 3, 2 * QUIET_S)


def test_a_death_after_the_trial_is_not_held_against_the_suspect() -> None:
    """It fell into a time in which one from outside is as likely: the next trial is longer."""
    suspect = replace(SUSPECT, began_at=NOW - QUIET_S / 4 - 2)
    innocent, suspect = after(INNOCENT, suspect)
    assert (innocent.deaths, suspect.deaths, suspect.blamed) == (1, 3, 0)
    assert suspect.quiet_s == QUIET_S + 8


def test_of_two_suspects_the_one_on_trial_is_blamed() -> None:
    """The trial of the other was over before."""
    earlier = replace(SUSPECT, turn=3, began_at=NOW - 2)
    assert [each.blamed for each in after(earlier, SUSPECT)] == [0, 1]


@pytest.mark.parametrize("how", ["out_of_memory", "fatal_signal"])
def test_a_death_from_within_is_held_against_an_only_suspect(how: DeathCause) -> None:
    """However long it ran: nothing from outside can have been it."""
    late = replace(SUSPECT, began_at=NOW - 500)
    assert [each.blamed for each in after(INNOCENT, late, death=Death(how, NOW))] == [0, 1]
    two = after(late, replace(late, turn=3), death=Death(how, NOW))
    assert [each.blamed for each in two] == [0, 0]


def test_a_turn_that_is_named_is_to_blame_at_once() -> None:
    """No other is charged, not even a suspect on trial."""
    named, suspect = after(INNOCENT, SUSPECT, death=Death("fatal_signal", NOW, turn=1))
    assert (named.blamed, named.is_suspect) == (1, True)
    assert (suspect.blamed, suspect.deaths) == (0, 2)


def test_a_named_turn_that_has_ended_leaves_nobody_to_blame() -> None:
    """Its commit came first."""
    [innocent] = after(INNOCENT, death=Death("exception", NOW, turn=99))
    assert (innocent.deaths, innocent.blamed, innocent.attempt) == (0, 0, 0)


@pytest.mark.parametrize("how", ["stopped", "stop_cut_off", "machine_restarted", "exception"])
def test_a_death_that_is_no_turns_fault_raises_no_suspicion(how: DeathCause) -> None:
    """Not even of a suspect on trial."""
    stood = after(INNOCENT, SUSPECT, death=Death(how, NOW))
    assert [(each.deaths, each.blamed) for each in stood] == [(0, 0), (2, 0)]


def test_after_the_time_budget_a_death_costs_an_attempt() -> None:
    """An hour after the first one; a stop is free for ever."""
    long_ago = replace(INNOCENT, attempt=3, troubled_at=NOW - blame.GIVE_UP_AFTER_S - 1)
    assert [each.attempt for each in after(long_ago)] == [3]
    assert [each.attempt for each in after(long_ago, death=Death("stopped", NOW))] == [2]
    recent = replace(long_ago, troubled_at=NOW - blame.GIVE_UP_AFTER_S)
    assert [each.attempt for each in after(recent)] == [2]


def take_over(store: Store, death: Death | None = None) -> Inheritance:
    """Begin a process after such a death."""
    heir = store.run(leases.register, "heir")
    return store.run(blame.take_over, heir, death or Death())


def resume(store: Store, current: Turn) -> Turn:
    """Take a turn up in the newest process."""
    heir = max(row.id for row in store.rows(schema.replica))
    store.run(due, current)
    found = store.run(find_running, store.run(claim_one, current.lease.conversation, heir), BASE)
    assert found is not None
    return found


def due(conn: Connection, current: Turn) -> None:
    """Let the time pass for which a conversation is held."""
    here = conversation.c.id == current.lease.conversation
    conn.execute(update(conversation).where(here).values(turn_not_before=0.0))


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that runs."""
    return store.run(turn_of, "hello")


@pytest.fixture
def suspect(store: Store, current: Turn) -> Turn:
    """One that ran at two deaths, on trial."""
    for _ in range(2):
        take_over(store)
        current = resume(store, current)
    return current


def test_deaths_from_outside_cost_no_attempt(store: Store, suspect: Turn) -> None:
    """It is as at its first attempt, but a suspect."""
    assert (suspect.attempt, suspect.deaths, suspect.blamed) == (1, 2, 0)


def test_a_suspect_is_held_in_the_database(store: Store, current: Turn) -> None:
    """No claim takes it before; the worker learns how long its trial is."""
    take_over(store)
    resume(store, current)
    inherited = take_over(store)
    chat = current.lease.conversation
    assert (inherited.conversations, inherited.ran) == (1, 1)
    assert inherited.trials == {chat: QUIET_S / 4}
    me = max(row.id for row in store.rows(schema.replica))
    assert store.run(leases.claim, me, 10, [("telegram", "default")]) == []
    now = store.run(lambda conn: conn.scalar(select(schema.now_s())))
    assert 0 < store.one(conversation).turn_not_before - now <= QUIET_S


def test_who_is_blamed_twice_is_tried_no_more(store: Store, suspect: Turn) -> None:
    """It is claimed at once, to be given up."""
    take_over(store)
    blamed = resume(store, suspect)
    assert blamed.blamed == 1
    assert take_over(store).trials == {}
    assert resume(store, blamed).blamed == turns.MOST_BLAMED


def test_progress_clears_a_suspect(store: Store, suspect: Turn) -> None:
    """It got past what it was suspected of; its time budget begins anew, too."""
    ask(store, suspect, "a")
    assert take_over(store).trials == {}
    row = store.one(turn)
    assert (row.deaths, row.blamed) == (1, 0)
    assert resume(store, suspect).attempt == 1


def test_a_failed_attempt_with_progress_clears_a_suspect(store: Store, suspect: Turn) -> None:
    """The same where the process lives on."""
    message = assistant_message("part")
    store.run(turn_journal.record_message, suspect, message, model_call(USAGE))
    store.run(leases.release, suspect.lease)
    resume(store, suspect)
    row = store.one(turn)
    assert (row.deaths, row.blamed, row.quiet_s, row.troubled_at) == (0, 0, 0.0, None)


def test_a_suspect_that_only_waits_is_not_charged(store: Store, suspect: Turn) -> None:
    """Nor cleared, as long as others run."""
    other = store.run(turn_of, "another", chat="43")
    take_over(store)
    [mine] = [row for row in store.rows(turn) if row.id == suspect.id]
    resume(store, other)
    inherited = take_over(store)
    [again] = [row for row in store.rows(turn) if row.id == suspect.id]
    assert inherited.ran == 1
    assert (again.deaths, again.blamed) == (mine.deaths, mine.blamed)


def test_a_death_while_nothing_runs_clears_all_suspects(store: Store, current: Turn) -> None:
    """The process dies without them."""
    take_over(store)
    resume(store, current)
    assert len(take_over(store).trials) == 1
    inherited = take_over(store)
    assert (inherited.ran, inherited.trials) == (0, {})


def test_a_stop_while_nothing_runs_clears_nobody(store: Store, current: Turn) -> None:
    """It says nothing about them."""
    take_over(store)
    resume(store, current)
    take_over(store)
    assert len(take_over(store, Death("stopped")).trials) == 1


def test_a_suspect_whose_time_is_up_is_held_no_more(
    store: Store, current: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its last attempts at once."""
    take_over(store)
    resume(store, current)
    monkeypatch.setattr(blame, "GIVE_UP_AFTER_S", -1.0)
    inherited = take_over(store)
    assert list(inherited.trials.values()) == [QUIET_S / 4]
    assert store.one(conversation).turn_not_before == 0


def test_what_was_stopped_in_time_did_not_run(store: Store, current: Turn) -> None:
    """Its attempt is taken back once, however the process ended then."""
    store.run(turns.forgive_attempt, current)
    assert take_over(store).ran == 0
    assert store.one(turn).deaths == 0


def child_of(store: Store, current: Turn) -> Turn:
    """Begin a delegated child, or go on with it."""
    child = store.run(delegates.open_child, current, "a", "do it", BASE)
    assert isinstance(child, Turn)
    return child


def test_a_childs_attempts_are_forgiven_with_its_parents(store: Store, current: Turn) -> None:
    """A death from outside costs neither of them anything."""
    ask(store, current, "a", effect="idempotent")
    for _ in range(4):
        assert child_of(store, current).attempt == 1
        take_over(store, Death("machine_restarted"))
        current = resume(store, current)


def test_children_are_given_up_in_their_parents_stead(store: Store, suspect: Turn) -> None:
    """Where a turn would be given up for what its tasks do to the process."""
    ask(store, suspect, "a", effect="idempotent")
    current = suspect
    for _ in range(4):
        child_of(store, current)
        take_over(store)
        current = resume(store, current)
    assert current.blamed == turns.MOST_BLAMED - 1
    assert child_of(store, current).attempt > blame.CHILD_GIVEN_UP


JUDGED: list[tuple[DeathCause, bool, bool, bool]] = [
    # how, whether a turn is named, whether the time budget is over; whether the try is taken back
    ("stopped", False, False, True),
    ("stop_cut_off", False, False, True),
    ("machine_restarted", False, False, True),
    ("exception", False, False, True),
    ("killed", False, False, True),
    ("out_of_memory", False, False, False),
    ("fatal_signal", False, False, False),
    ("out_of_memory", True, False, True),
    ("fatal_signal", True, False, True),
    ("killed", True, False, True),
    ("exception", True, False, True),
    ("stopped", False, True, True),
    ("stop_cut_off", False, True, True),
    ("machine_restarted", False, True, False),
    ("exception", False, True, False),
    ("killed", False, True, False),
    ("out_of_memory", True, True, False),
    ("fatal_signal", False, True, False),
]


def entered(conn: Connection, current: Turn, failures: int, state: str = "pending") -> None:
    """Enter a file on its way."""
    values = {"name": "a", "kind": "file", "mime": "", "ref": "a", "at": now(conn), "inbox_seq": 1}
    here = current.lease.conversation
    conn.execute(
        attachment.insert().values(conversation=here, state=state, failures=failures, **values)
    )


@pytest.mark.parametrize(("how", "is_named", "is_late", "is_forgiven"), JUDGED)
def test_a_try_at_a_file_is_judged_as_one_at_a_turn(
    store: Store,
    current: Turn,
    monkeypatch: pytest.MonkeyPatch,
    how: DeathCause,
    *,
    is_named: bool,
    is_late: bool,
    is_forgiven: bool,
) -> None:
    """Only a death from within counts; what was never tried, or is settled, stays as it is."""
    for failures, state in ((3, "pending"), (0, "pending"), (2, "stored")):
        store.run(entered, current, failures, state)
    death = Death(how, turn=current.id if is_named else None)
    if is_late:
        monkeypatch.setattr(blame, "GIVE_UP_AFTER_S", -1.0)
    take_over(store, death)
    left = store.rows(attachment)
    assert [row.failures for row in left] == [2 if is_forgiven else 3, 0, 2]


def test_every_cause_of_death_is_judged() -> None:
    """In time and behind it."""
    judged = {(how, is_late) for how, _, is_late, _ in JUDGED}
    assert judged >= set(product(get_args(DeathCause), (False, True)))
