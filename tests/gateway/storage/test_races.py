"""Two transactions at once, on PostgreSQL: what one of them decides is still so when it commits.

Each race is played in the order in which it went wrong: one transaction changes something and does
not commit; the other one begins to wait for it; then the first one commits.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, select, update

from adapters.messages import Attachment
from agent.ports import Inquiry
from gateway.access import pairing
from gateway.errors import LeaseLost
from gateway.storage import maintenance, postgres
from gateway.storage.conversation import (
    attachments,
    conversations,
    questions,
    turn_journal,
    turns,
)
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import DatabaseServer
from gateway.storage.people import members
from gateway.storage.queue import inbox, leases
from gateway.storage.queue.leases import Held, Lease
from gateway.storage.schema import conversation, inquiry, step
from tests.support.pgbouncer import BOTH_WAYS, behind
from tests.support.postgres import server_at
from tests.support.storage import ACCOUNTS, admit, claim_one, inbound, turn_of

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"


class Race:
    """Two connections to one database, and one that looks at them.

    Args:
        url: Where the database is.
        server: The same, as the two are told of it.
    """

    def __init__(self, url: str, server: DatabaseServer) -> None:
        self._one = postgres.connect(server)
        self._other = postgres.connect(server)
        self._watch = psycopg.connect(url, autocommit=True)
        self._threads = ThreadPoolExecutor(1)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function in a transaction, with nobody beside it."""
        with _patient(self._one):
            return fn(self._one, *args, **kwargs)

    @contextmanager
    def first(self) -> Iterator[Connection]:
        """Have what is done meanwhile be committed at the end."""
        with _patient(self._one):
            yield self._one

    def begin(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin another transaction, which waits for the first one when this returns."""
        began: Future[int] = Future()

        def run() -> Any:
            with _patient(self._other):
                # Behind a pooler it is another one each time.
                mine = self._other.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
                began.set_result(mine)
                return fn(self._other, *args, **kwargs)

        running = self._threads.submit(run)
        pid = began.result()
        while self._watch.execute(WAITS, [pid]).fetchone() == (0,):
            assert not running.done(), running.exception() or "it did not wait"
        return running

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown()
        for each in (self._one, self._other):
            each.close()
        self._watch.close()


@contextmanager
def _patient(conn: Connection) -> Iterator[None]:
    """Begin a transaction that may stand still, as on a busy machine, longer than a replica's."""
    with conn.begin():
        conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


@pytest.fixture(params=BOTH_WAYS)
def race(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Race]:
    if request.param == "pooled":
        server = behind(request.getfixturevalue("pooler"), postgres_url)
    else:
        server = server_at(postgres_url)
    opened = Race(postgres_url, server)
    yield opened
    opened.close()


def claimed(conn: Connection) -> Lease:
    """Admit a message and claim its conversation."""
    return claim_one(conn, admit(conn, inbound("hello"))[0])


def row_of(conn: Connection, conversation_id: int) -> Any:
    """Return a conversation's row."""
    return conn.execute(select(conversation).where(conversation.c.id == conversation_id)).one()


def taken_away(conn: Connection, conversation_id: int) -> None:
    """Reap the owner of a conversation."""
    here = conversation.c.id == conversation_id
    conn.execute(
        update(conversation).where(here).values(owner=None, epoch=conversation.c.epoch + 1)
    )


def test_what_comes_during_a_release_is_work(race: Race) -> None:
    """Else it would wait for the sweeper: nobody has the conversation, and it is not in line."""
    lease = race.run(claimed)
    race.run(inbox.cancel_queued, lease.conversation)
    with race.first() as conn:
        admit(conn, inbound("one more"))
        released = race.begin(leases.release, lease)
    assert released.result() is True
    assert race.run(row_of, lease.conversation).ready_no is not None


def test_what_comes_during_an_answer_keeps_its_lease(race: Race) -> None:
    """The turn gives its conversation back only where nothing else waits."""
    current = race.run(turn_of, "hello")
    with race.first() as conn:
        admit(conn, inbound("one more"))
        answered = race.begin(
            turn_journal.commit, current, [], [], TurnEnd("completed"), releases=True
        )
    assert answered.result().released is False
    assert race.run(row_of, current.lease.conversation).owner == current.lease.replica


def test_an_answer_behind_a_lost_lease_writes_nothing(race: Race) -> None:
    """The lease was taken away while the answer waited for the row."""
    current = race.run(turn_of, "hello")
    with race.first() as conn:
        taken_away(conn, current.lease.conversation)
        answered = race.begin(turn_journal.commit, current, [], [], TurnEnd("completed"))
    assert isinstance(answered.exception(), LeaseLost)
    assert race.run(turns.has_running, current.lease.conversation)


def started(conn: Connection, current: Turn) -> None:
    """Note that a tool is about to run."""
    call: Any = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    turn_journal.start_tool(conn, current, call, "side_effect")


def test_a_lease_is_not_taken_away_between_a_fence_and_its_commit(race: Race) -> None:
    """Who resumes the turn sees that the tool was about to run, and does not run it again."""
    current = race.run(turn_of, "hello")
    with race.first() as conn:
        started(conn, current)
        taking = race.begin(taken_away, current.lease.conversation)
    taking.result()
    assert race.run(lambda conn: conn.scalars(select(step.c.call_id)).all()) == ["c1"]


def test_no_tool_starts_behind_a_lost_lease(race: Race) -> None:
    """The fence is asked once more when the row is free."""
    current = race.run(turn_of, "hello")
    with race.first() as conn:
        taken_away(conn, current.lease.conversation)
        starting = race.begin(started, current)
    assert isinstance(starting.exception(), LeaseLost)
    assert race.run(lambda conn: conn.scalars(select(step.c.call_id)).all()) == []


def test_a_turn_that_has_just_begun_is_seen(race: Race) -> None:
    """Who takes the conversation next goes on with it, and begins no second one."""
    lease = race.run(claimed)
    race.run(leases.release, lease)
    other = race.run(leases.register, "other")
    with race.first() as conn:
        begun = turn_of_ready(conn, lease)
        taking = race.begin(take_locked, other, lease.conversation)
        # Back in line with its turn, as after a restart.
        leases.release(conn, begun)
    held = taking.result()
    assert held is not None
    assert held.runs


def take_locked(conn: Connection, replica: int, conversation_id: int) -> Held | None:
    """Take a conversation as the beginning of a turn does."""
    conversations.hold(conn, conversation_id)
    return leases.take(conn, replica, conversation_id, ACCOUNTS)


def turn_of_ready(conn: Connection, before: Lease) -> Lease:
    """Take a conversation and enter a turn in it."""
    held = leases.take(conn, before.replica, before.conversation, ACCOUNTS)
    assert held is not None
    entries = inbox.queued(conn, before.conversation)
    seqs = (entries[0].seq, entries[-1].seq)
    turn_id, _ = turns.enter(conn, held.lease, seqs, 1, ["telegram:42"])
    inbox.take(conn, turn_id, entries)
    return held.lease


def asking(conn: Connection, current: Turn, call: str) -> int:
    """Ask something in a turn's conversation."""
    here, asked = current.lease.conversation, Inquiry("clarify", call, "clarify", "why?")
    return questions.enter(conn, here, current.id, call, asked, 600).id


def test_an_answer_during_a_release_is_work(race: Race) -> None:
    """The turn was being suspended when somebody answered what it asks."""
    current = race.run(turn_of, "hello")
    asked = race.run(asking, current, "c1")

    def answer(conn: Connection) -> None:
        assert questions.answer(conn, asked, "because", "telegram:42")
        conversations.make_ready(conn, current.lease.conversation)

    with race.first() as conn:
        leases.release(conn, current.lease)
        answering = race.begin(answer)
    answering.result()
    assert race.run(row_of, current.lease.conversation).ready_no is not None


def test_of_two_answers_at_once_the_later_one_is_the_last(race: Race) -> None:
    """Each of them would else see that the other one is still waited for."""
    current = race.run(turn_of, "hello")
    asked = [race.run(asking, current, call) for call in ("c1", "c2")]

    def answer(conn: Connection, which: int) -> bool:
        questions.answer(conn, asked[which], "because", "telegram:42")
        return questions.is_awaited(conn, current.lease.conversation)

    with race.first() as conn:
        assert answer(conn, 0)
        answering = race.begin(answer, 1)
    assert answering.result() is False
    assert race.run(lambda conn: conn.scalars(select(inquiry.c.state)).all()) == ["answered"] * 2


def test_of_two_files_at_once_the_later_one_is_the_last(race: Race) -> None:
    """Nobody would else make the conversation ready that waits for both."""

    def waiting(conn: Connection) -> int:
        here, seq = admit(conn, inbound("see"))
        files = [Attachment(name=f"{n}.png", kind="image", ref=str(n)) for n in range(2)]
        attachments.append(conn, here, seq, files, 1_000)
        leases.release(conn, claim_one(conn, here))
        return here

    here = race.run(waiting)
    assert race.run(row_of, here).ready_no is None
    with race.first() as conn:
        attachments.fail(conn, 1, "gone")
        failing = race.begin(attachments.fail, 2, "gone")
    failing.result()
    assert race.run(row_of, here).ready_no is not None


def test_a_message_to_a_conversation_that_is_being_erased_begins_another_one(race: Race) -> None:
    """It would else be taken, acknowledged, and erased with the rest."""
    first = inbound("hello")
    here, _ = race.run(admit, first)
    with race.first() as conn:
        maintenance.withdraw(conn, here)
        admitting = race.begin(admit, inbound("a new one"))
    there, seq = admitting.result()
    assert there != here
    assert seq == 1


def test_replicas_that_begin_at_once_agree_on_the_first_owners_code(race: Race) -> None:
    """The second one prints what the first one has just entered."""
    one, other = (race.run(leases.register, name) for name in "ab")
    with race.first() as conn:
        assert pairing.agree_on_code(conn, "ABCDEFGH", one) == "ABCDEFGH"
        printing = race.begin(pairing.agree_on_code, "IJKLMNOP", other)
    assert printing.result() == "ABCDEFGH"
    assert race.run(members.owner_code) == "ABCDEFGH"


def test_one_person_becomes_the_first_owner(race: Race) -> None:
    """Two send the code at the same moment."""
    race.run(members.set_owner_code, "ABCDEFGH")
    with race.first() as conn:
        assert members.take_owner_code(conn, "ABCDEFGH")
        taking = race.begin(members.take_owner_code, "ABCDEFGH")
    assert taking.result() is False
