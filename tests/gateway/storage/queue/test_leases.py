"""Leases and fencing: one owner at a time, and a stale token writes nothing."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from sqlalchemy import Connection, select, update
from typing_extensions import override

from adapters.messages import Address, Attachment
from gateway.errors import LeaseLost
from gateway.storage.conversation import attachments
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.queue import inbox, leases
from gateway.storage.queue.inbox import InboxState
from gateway.storage.queue.leases import LEASE_S, LONGEST_BACKOFF_S, Lease
from gateway.storage.schema import conversation, now_s, outbox, replica, turn
from gateway.storage.schema import inbox as inbox_table
from tests.support.storage import ACCOUNTS, Store, admit, claim_one, copy_database, inbound, turn_of
from tests.support.thorough import run_machine

CHATS = ("a", "b", "c")


def retitle(conn: Connection, lease: Lease, title: str) -> None:
    """Write something the way every fenced write does."""
    leases.fence(conn, lease)
    conn.execute(
        update(conversation).where(conversation.c.id == lease.conversation).values(title=title)
    )


def finish_all(conn: Connection, lease: Lease) -> None:
    leases.fence(conn, lease)
    conn.execute(
        update(inbox_table)
        .where(inbox_table.c.conversation == lease.conversation)
        .values(state="done")
    )


def end_a_turn(
    conn: Connection, lease: Lease, wanted: tuple[int, int] = (0, 0)
) -> tuple[Conversation, bool, int] | None:
    """Begin a turn that answers nothing of what waits, and end it; see `leases.take_seqs`."""
    root = conn.scalar(
        select(conversation.c.active_session_id).where(conversation.c.id == lease.conversation)
    )
    values = {"conversation": lease.conversation, "session_id": root, "first_seq": 1}
    values |= {"upto_seq": 1, "state": "running", "epoch": lease.epoch, "attempt": 1}
    begun = turn.insert().values(**values, started_at=now_s()).returning(turn.c.id)
    turn_id = conn.execute(begun).scalar_one()
    taken = leases.take_seqs(conn, lease, (turn_id, 1), wanted, releases=True)
    conn.execute(update(turn).where(turn.c.id == turn_id).values(state="done"))
    return taken


def test_a_claim_takes_what_is_ready(store: Store) -> None:
    """A claimed conversation carries its address and a new epoch."""
    conversation_id, _ = store.run(admit, inbound(chat="7", thread="3"))
    me = store.run(leases.register, "me")
    (lease,) = store.run(leases.claim, me, 10, ACCOUNTS)
    assert lease == Lease(conversation_id, me, 1, Address("telegram", "default", "7", "3"), False)


def test_a_claim_is_idempotent(store: Store) -> None:
    """A claim whose answer was lost is repeated without taking more or raising the epoch."""
    store.run(admit, inbound())
    me = store.run(leases.register, "me")
    first = store.run(leases.claim, me, 10, ACCOUNTS)
    assert store.run(leases.claim, me, 10, ACCOUNTS) == first


@pytest.mark.usefixtures("sqlite_alone")
def test_a_claim_looks_only_at_what_is_ready(store: Store) -> None:
    """However many conversations there are: one is made every second."""
    store.run(admit, inbound())
    me = store.run(leases.register, "me")
    plans = store.plans(leases.claim, me, 10, ACCOUNTS)
    assert not any(plan.startswith("SCAN conversation") for plan in plans)


def test_a_claim_is_two_statements(store: Store) -> None:
    """One takes what is ready, the other returns what is owned."""
    store.run(admit, inbound())
    me = store.run(leases.register, "me")
    asked = store.statements(leases.claim, me, 10, ACCOUNTS)
    assert asked == ["UPDATE conversation", "SELECT conversation"]


def test_a_claim_takes_no_more_than_asked(store: Store) -> None:
    """Ready conversations are taken in the order in which they became ready."""
    ids = [store.run(admit, inbound(chat=chat))[0] for chat in ("c", "a", "b")]
    me = store.run(leases.register, "me")
    held = store.run(leases.claim, me, 2, ACCOUNTS)
    assert [lease.conversation for lease in held] == ids[:2]


def test_a_claim_leaves_other_accounts_alone(store: Store) -> None:
    """A replica takes only what its own adapters can answer."""
    store.run(admit, inbound())
    me = store.run(leases.register, "me")
    assert store.run(leases.claim, me, 10, [("telegram", "second"), ("web", "default")]) == []


def test_one_conversation_is_taken_past_the_line(store: Store) -> None:
    """With a new epoch, and with what goes on in it and not in others, in one statement."""
    store.run(turn_of, "hello", chat="first")
    conversation_id, _ = store.run(admit, inbound(chat="7", thread="3"))
    me = store.run(leases.register, "me")
    lease = Lease(conversation_id, me, 1, Address("telegram", "default", "7", "3"), False)
    held = store.run(leases.take, me, conversation_id, ACCOUNTS)
    assert held == store.run(leases.look, lease) == leases.Held(lease, 0, None, False, False, False)
    again = store.statements(leases.take, me, conversation_id, ACCOUNTS)
    assert again == ["UPDATE conversation"]


def test_what_is_taken_was_ready(store: Store) -> None:
    """Not owned, not held back, and with something that waits."""
    conversation_id, _ = store.run(admit, inbound())
    me = store.run(leases.register, "me")
    held = store.run(leases.take, me, conversation_id, ACCOUNTS)
    assert held is not None
    assert store.run(leases.take, me, conversation_id, ACCOUNTS) is None
    store.run(leases.release, held.lease, not_before_s=30.0)
    assert store.run(leases.take, me, conversation_id, ACCOUNTS) is None
    store.run(leases.release, store.run(claim_at_once, me))
    newer = store.run(leases.take, me, conversation_id, ACCOUNTS)
    assert newer is not None
    assert newer.lease.epoch == held.lease.epoch + 2
    store.run(finish_all, newer.lease)
    store.run(leases.release, newer.lease)
    assert store.run(leases.take, me, conversation_id, ACCOUNTS) is None


def claim_at_once(conn: Connection, replica: int) -> Lease:
    """Claim the only conversation, whatever holds it back."""
    conn.execute(update(conversation).values(turn_not_before=0.0))
    (lease,) = leases.claim(conn, replica, 1, ACCOUNTS)
    return lease


def test_what_is_taken_is_of_a_given_account(store: Store) -> None:
    """One of another account stays in the line."""
    conversation_id, _ = store.run(admit, inbound())
    me = store.run(leases.register, "me")
    assert store.run(leases.take, me, conversation_id, [("web", "default")]) is None
    assert store.run(leases.take, me, conversation_id, ACCOUNTS) is not None


def test_what_has_no_work_is_given_back(store: Store) -> None:
    """What has some is kept, and so is what another has by now."""
    conversation_id, _ = store.run(admit, inbound())
    lease = store.run(claim_one, conversation_id)
    _, released, _ = store.run(end_a_turn, lease)
    assert not released
    assert store.conversation(conversation_id).owner == lease.replica
    store.run(finish_all, lease)
    assert store.run(end_a_turn, replace(lease, epoch=lease.epoch - 1)) is None
    _, released, _ = store.run(end_a_turn, lease)
    assert released
    row = store.conversation(conversation_id)
    assert (row.owner, row.ready_no, row.epoch) == (None, None, lease.epoch)


def test_the_end_of_a_turn_takes_its_seqs(store: Store) -> None:
    """Those of its messages and of its rows, in one statement; nothing where it does not run."""
    conversation_id, _ = store.run(admit, inbound())
    lease = store.run(claim_one, conversation_id)
    place, _, _ = store.run(end_a_turn, lease, (2, 3))
    assert (place.message_head, place.outbox_head) == (2, 3)
    assert store.run(leases.take_seqs, lease, (4711, 1), (2, 3), releases=True) is None
    assert store.run(leases.fence, lease) == place


def test_what_is_owned_is_not_claimed_by_another(store: Store) -> None:
    """Two replicas never own the same conversation."""
    store.run(admit, inbound())
    one, two = store.run(leases.register, "one"), store.run(leases.register, "two")
    store.run(leases.claim, one, 10, ACCOUNTS)
    assert store.run(leases.claim, two, 10, ACCOUNTS) == []


def test_a_stale_token_writes_nothing(store: Store) -> None:
    """After a reclaim by another replica the old token is refused, whatever it wants."""
    conversation_id, _ = store.run(admit, inbound("original"))
    stale = store.run(claim_one, conversation_id)
    heir = store.run(leases.register, "heir")
    store.run(leases.reap_others, heir)
    for fenced in (lambda c: retitle(c, stale, "stolen"), lambda c: leases.release(c, stale)):
        with pytest.raises(LeaseLost):
            store.run(fenced)
    assert store.conversation(conversation_id).title == "original"


def test_the_same_replica_needs_the_newest_epoch(store: Store) -> None:
    """A lease from before a release is stale although its owner is the same."""
    conversation_id, _ = store.run(admit, inbound())
    old = store.run(claim_one, conversation_id)
    store.run(leases.release, old)
    new = store.run(claim_one, conversation_id, old.replica)
    assert new.epoch > old.epoch
    with pytest.raises(LeaseLost):
        store.run(leases.fence, old)
    assert store.run(leases.fence, new).id == conversation_id


def test_a_lease_ends_with_its_release(store: Store) -> None:
    """Also as long as nobody else has claimed the conversation."""
    conversation_id, _ = store.run(admit, inbound("original"))
    lease = store.run(claim_one, conversation_id)
    store.run(leases.release, lease)
    with pytest.raises(LeaseLost):
        store.run(retitle, lease, "late")
    assert store.conversation(conversation_id).title == "original"


def test_a_reaped_replica_learns_it_from_its_heartbeat(store: Store) -> None:
    """A heartbeat without a row tells a replica to take a new identity."""
    one, two = store.run(leases.register, "one"), store.run(leases.register, "two")
    assert store.run(leases.heartbeat, one)
    store.run(leases.reap_others, two)
    assert not store.run(leases.heartbeat, one)
    assert store.run(leases.heartbeat, two)


def test_a_heartbeat_renews_for_a_whole_lease(store: Store) -> None:
    """The end of the lease moves on with every heartbeat, by the database's clock."""
    me = store.run(leases.register, "me")
    store.run(lambda conn: conn.execute(update(replica).values(heartbeat_until=0)))
    store.run(leases.heartbeat, me)
    now = store.run(lambda conn: conn.execute(select(now_s())).scalar_one())
    assert abs(store.one(replica, id=me).heartbeat_until - now - LEASE_S) < LEASE_S / 2


def test_a_reap_says_how_much_was_left_behind(store: Store) -> None:
    """What earlier processes owned is counted and ready again; their rows are gone."""
    for chat in CHATS:
        store.run(admit, inbound(chat=chat))
    old = store.run(leases.register, "old")
    store.run(leases.claim, old, 2, ACCOUNTS)
    me = store.run(leases.register, "me")
    assert store.run(leases.reap_others, me) == 2
    assert [row.id for row in store.rows(replica)] == [me]
    assert len(store.run(leases.claim, me, 10, ACCOUNTS)) == len(CHATS)


def test_a_reap_keeps_what_the_replica_owns_itself(store: Store) -> None:
    """Only others lose their leases."""
    conversation_id, _ = store.run(admit, inbound())
    mine = store.run(claim_one, conversation_id)
    assert store.run(leases.reap_others, mine.replica) == 0
    assert store.run(leases.fence, mine).id == conversation_id


def test_a_reap_doubts_every_send_that_was_in_progress(store: Store) -> None:
    """Nobody knows whether a row marked `sending` was shown; the doubt outlives later tries."""
    conversation_id, _ = store.run(admit, inbound())
    states = ("pending", "sending", "sent")
    values = {
        "conversation": conversation_id,
        "inbox_seq": 1,
        "payload": "",
        "markdown": "",
        "at": 0,
    }
    rows = [{**values, "seq": n, "source_key": s, "state": s} for n, s in enumerate(states)]
    store.run(lambda conn: conn.execute(outbox.insert(), rows))
    store.run(leases.reap_others, store.run(leases.register, "me"))
    found = [(row.state, row.doubt) for row in store.rows(outbox)]
    assert found == [("pending", False), ("unknown", True), ("sent", False)]


@pytest.mark.usefixtures("sqlite_alone")
def test_a_start_reads_nothing_that_was_sent(store: Store) -> None:
    """What was being sent is found among what is unsent, however much there is on record."""
    found = store.plans(leases.reap_others, 1)
    assert [line for line in found if "outbox" in line] == [
        "SCAN outbox USING INDEX ix_outbox_unsent"
    ]


@pytest.mark.usefixtures("sqlite_alone")
def test_a_release_looks_only_at_what_waits(store: Store) -> None:
    """It ends every turn: entries that were answered are not read."""
    conversation_id, _ = store.run(admit, inbound())
    found = store.plans(leases.release, store.run(claim_one, conversation_id))
    looks = [line for line in found if re.search(r"\binbox\b", line)]
    assert looks == ["SEARCH inbox USING INDEX ix_inbox_pending (conversation=?)"]


def test_a_released_conversation_goes_to_the_end_of_the_line(store: Store) -> None:
    """A busy conversation does not keep others from their turn."""
    busy, _ = store.run(admit, inbound(chat="busy"))
    lease = store.run(claim_one, busy)
    other, _ = store.run(admit, inbound(chat="other"))
    store.run(leases.release, lease)
    (next_lease,) = store.run(leases.claim, store.run(leases.register, "me"), 1, ACCOUNTS)
    assert next_lease.conversation == other


def test_a_conversation_without_work_is_not_ready(store: Store) -> None:
    """What was released with an empty inbox waits for the next message."""
    conversation_id, _ = store.run(admit, inbound())
    lease = store.run(claim_one, conversation_id)
    store.run(finish_all, lease)
    store.run(leases.release, lease)
    assert store.run(leases.claim, lease.replica, 10, ACCOUNTS) == []
    store.run(admit, inbound())
    assert len(store.run(leases.claim, lease.replica, 10, ACCOUNTS)) == 1


def test_a_back_off_holds_a_conversation_back(store: Store) -> None:
    """Until then it cannot be claimed, also when something new arrives."""
    conversation_id, _ = store.run(admit, inbound())
    lease = store.run(claim_one, conversation_id)
    store.run(leases.release, lease, not_before_s=LONGEST_BACKOFF_S / 2)
    store.run(admit, inbound())
    assert store.run(leases.claim, lease.replica, 10, ACCOUNTS) == []


def test_a_clock_set_back_stalls_nothing(store: Store) -> None:
    """A back-off that seems to lie further away than any back-off can is over."""
    conversation_id, _ = store.run(admit, inbound())
    lease = store.run(claim_one, conversation_id)
    store.run(leases.release, lease, not_before_s=10 * 24 * 3600)
    assert len(store.run(leases.claim, lease.replica, 10, ACCOUNTS)) == 1


def test_the_end_of_a_back_off_is_forgotten_with_the_next_release(store: Store) -> None:
    """A release without a back-off can be claimed at once."""
    conversation_id, _ = store.run(admit, inbound())
    store.run(lambda conn: conn.execute(update(conversation).values(turn_not_before=1.0)))
    lease = store.run(claim_one, conversation_id)
    store.run(leases.release, lease)
    assert store.conversation(conversation_id).turn_not_before == 0


def test_a_stuck_conversation_is_found(store: Store) -> None:
    """Work without owner and without a place in the line gets one, and is counted."""
    conversation_id, _ = store.run(admit, inbound())
    store.run(lambda conn: conn.execute(update(conversation).values(ready_no=None)))
    assert store.run(leases.ready_stuck) == 1
    assert store.run(leases.ready_stuck) == 0
    assert store.run(claim_one, conversation_id)


@pytest.mark.parametrize("state", ["queued", "taken"])
def test_what_waits_for_a_file_is_no_work(store: Store, state: InboxState) -> None:
    """Nor what waits beside it; what is being answered is."""
    conversation_id, _ = store.run(admit, inbound(), state=state)
    _, seq = store.run(admit, inbound())
    file = Attachment(name="a", kind="file", ref="f")
    store.run(attachments.append, conversation_id, seq, [file], 9)
    store.run(lambda conn: conn.execute(update(conversation).values(ready_no=None)))
    is_work = state == "taken"
    assert store.run(leases.has_work, conversation_id) is is_work
    assert store.run(leases.ready_stuck) == int(is_work)
    store.run(attachments.fail, 1, "gone")
    assert store.run(leases.has_work, conversation_id)
    assert store.run(leases.ready_stuck) == 0


class Held(NamedTuple):
    """What the machine knows about a conversation."""

    owner: int | None
    epoch: int


class LeaseMachine(RuleBasedStateMachine):
    """Several replicas, among them such as were taken for dead, on one real file."""

    template: Path
    replicas: Bundle[int] = Bundle("replicas")
    tokens: Bundle[Lease] = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(copy_database(self.template, Path(self.folder.name) / "parley.db"))
        self.store.without_sync()
        self.live: set[int] = set()
        self.held: dict[int, Held] = {}
        self.backed_off: set[int] = set()

    @override
    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def is_current(self, lease: Lease) -> bool:
        return self.held[lease.conversation] == (lease.replica, lease.epoch)

    @initialize(target=replicas)
    def start(self) -> MultipleResults[int]:
        return multiple(self.register(), self.register())

    @rule(target=replicas)
    def join(self) -> int:
        return self.register()

    def register(self) -> int:
        me = self.store.run(leases.register, "joined")
        self.live.add(me)
        return me

    @rule(target=replicas)
    def boot(self) -> int:
        """A process starts and takes over; those before it may not know that they are dead."""
        me = self.register()
        self.reap(me)
        return me

    def reap(self, me: int) -> None:
        lost = [c for c, held in self.held.items() if held.owner not in {None, me}]
        assert self.store.run(leases.reap_others, me) == len(lost)
        for conversation_id in lost:
            self.held[conversation_id] = Held(None, self.held[conversation_id].epoch + 1)
        self.live = {me}

    @rule(me=replicas)
    def heartbeat(self, me: int) -> None:
        assert self.store.run(leases.heartbeat, me) == (me in self.live)

    @rule(chat=st.sampled_from(CHATS))
    def receive(self, chat: str) -> None:
        conversation_id, _ = self.store.run(admit, inbound(chat=chat))
        self.held.setdefault(conversation_id, Held(None, 0))

    @rule(target=tokens, me=replicas, limit=st.integers(1, 3))
    def claim(self, me: int, limit: int) -> MultipleResults[Lease]:
        before = {c for c, held in self.held.items() if held.owner == me}
        owned = self.store.run(leases.claim, me, limit, ACCOUNTS)
        assert owned == [] or me in self.live
        assert before <= {lease.conversation for lease in owned}
        assert len(owned) <= len(before) + limit
        for lease in owned:
            if lease.conversation not in before:
                assert self.held[lease.conversation].owner is None
                assert lease.conversation not in self.backed_off
                assert lease.epoch > self.held[lease.conversation].epoch
                self.held[lease.conversation] = Held(me, lease.epoch)
            assert self.is_current(lease)
        return multiple(*owned)

    @rule(target=tokens, me=replicas, chat=st.sampled_from(CHATS))
    def take(self, me: int, chat: str) -> MultipleResults[Lease]:
        for row in self.store.rows(conversation, chat=chat):
            taken = self.store.run(leases.take, me, row.id, ACCOUNTS)
            is_ready = row.ready_no is not None and row.id not in self.backed_off
            assert (taken is not None) is (is_ready and me in self.live)
            if taken is not None:
                assert taken.lease.epoch == row.epoch + 1
                self.held[row.id] = Held(me, taken.lease.epoch)
                return multiple(taken.lease)
        return multiple()

    @rule(token=tokens)
    def end_turn(self, token: Lease) -> None:
        has_work = self.store.run(leases.has_work, token.conversation)
        ending = self.store.run(end_a_turn, token)
        assert (ending is not None) is self.is_current(token)
        assert ending is None or ending[1] is not has_work
        if ending is not None and ending[1]:
            self.held[token.conversation] = Held(None, token.epoch)
            self.backed_off.discard(token.conversation)

    @rule(token=tokens)
    def write(self, token: Lease) -> None:
        self._fenced(token, lambda conn: retitle(conn, token, "written"))

    @rule(token=tokens)
    def answer(self, token: Lease) -> None:
        self._fenced(token, lambda conn: finish_all(conn, token))

    @rule(token=consumes(tokens), back_off=st.sampled_from([0.0, 30.0]))
    def release(self, token: Lease, back_off: float) -> None:
        if self._fenced(token, lambda conn: leases.release(conn, token, not_before_s=back_off)):
            self.held[token.conversation] = Held(None, token.epoch)
            self.backed_off.discard(token.conversation)
            if back_off:
                self.backed_off.add(token.conversation)

    @rule()
    def set_the_clock_back(self) -> None:
        later = conversation.c.turn_not_before + 24 * 3600
        held_back = conversation.c.turn_not_before > 0
        self.store.run(
            lambda conn: conn.execute(
                update(conversation).where(held_back).values(turn_not_before=later)
            )
        )
        self.backed_off.clear()

    def _fenced(self, token: Lease, write: Callable[[Connection], None]) -> bool:
        if self.is_current(token):
            self.store.run(write)
            return True
        before = self.store.conversation(token.conversation)
        with pytest.raises(LeaseLost):
            self.store.run(write)
        assert self.store.conversation(token.conversation) == before
        return False

    @invariant()
    def rows_agree(self) -> None:
        """Owners and epochs are what the claims returned; an epoch never falls."""
        for row in self.store.rows(conversation):
            assert (row.owner, row.epoch) == self.held[row.id]

    @invariant()
    def nothing_is_stuck(self) -> None:
        """Everything with work is owned, or stands in the line."""
        for row in self.store.rows(conversation):
            has_work = self.store.run(leases.has_work, row.id)
            assert not has_work or row.owner is not None or row.ready_no is not None
        assert self.store.run(leases.ready_stuck) == 0


@pytest.mark.untraced
def test_any_history_of_replicas_keeps_the_rules(database_template: Path) -> None:
    """At most one owner, stale tokens never write, nothing with work is left behind."""
    LeaseMachine.template = database_template
    run_machine(LeaseMachine, examples=40)


def test_pending_counts_what_waits_and_what_is_answered(store: Store) -> None:
    """Work is everything in the inbox that has no final state."""
    conversation_id, _ = store.run(admit, inbound())
    assert store.run(leases.has_work, conversation_id)
    store.run(lambda conn: inbox.cancel_queued(conn, conversation_id))
    assert not store.run(leases.has_work, conversation_id)
