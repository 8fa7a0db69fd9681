"""Compactions: one transaction that moves a running turn on to a smaller view.

Nodes are stored with the compaction that made them, or not at all.
"""

import hashlib
from dataclasses import replace

import pytest
from sqlalchemy import update

from agent.context_engine import Node
from agent.messages import Usage, assistant_message, user_message
from agent.ports import PlannerState
from agent.view.view import Edit, Summary, ViewPlan
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage.conversation import compactions, sessions, transcript, turn_journal
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import leases
from gateway.storage.schema import conversation, message, metadata, session, summary_candidate, turn
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin_anew,
    begin_turn,
    claim_one,
    compact,
    compaction,
    find_running,
    forget,
    inbound,
    load_view,
    model_call,
    turn_of,
)

USAGE = Usage(21_000, 20, 300, 45)
STATE = PlannerState(1, 0, 1_700_000_000.0)
PLAN = ViewPlan(
    head_upto=1,
    summaries=(Summary("What was done.", 2, 8, "assistant", "model"),),
    pinned=(5,),
    tail_from=9,
    edits=(Edit(9, "clip", 2_000),),
    thinking_from=9,
)
PREPARED = Summary("What was settled.", 2, 7, source="model", model="small")


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that has grown to twelve messages."""
    begun = store.run(turn_of, "hello")
    fill(store, begun, 11)
    return begun


def fill(store: Store, current: Turn, count: int) -> None:
    said = [assistant_message(f"step {n}") for n in range(count)]
    store.run(transcript.append, current.place, said)


def everything(store: Store) -> list[object]:
    return [store.rows(table) for table in metadata.sorted_tables]


def digest(store: Store) -> str:
    return hashlib.sha256(repr(store.rows(message)).encode()).hexdigest()


def of(store: Store, current: Turn) -> list[CompactionRow]:
    return store.run(compactions.of_conversation, current.lease.conversation)


def test_a_compaction_moves_everything_on_at_once(store: Store, current: Turn) -> None:
    """The parent ends, the child has the plan and is active, and the turn goes on in it."""
    child = store.run(compactions.compact, current, compaction(PLAN), STATE)
    assert (child.plan, child.planner_state, child.number) == (PLAN, STATE, 2)
    assert child.system_prompt == "You are a test."
    assert store.run(sessions.active, current.lease.conversation) == child
    assert store.one(session, id=current.session.id).end_reason == "compression"
    assert store.one(session, id=child.id).start_reason == "compression"
    assert store.one(turn).session_id == child.id


def test_a_compaction_is_on_record(store: Store, current: Turn) -> None:
    """Every figure that is reported stands in one row."""
    child = compact_once(store, current, summary_model="small", retained_share=0.95, failure="slow")
    (row,) = of(store, current)
    assert (row.parent_session_id, row.child_session_id) == (current.session.id, child.session.id)
    assert (row.trigger, row.engine, row.level) == ("threshold", "compressor", "summary")
    assert (row.messages_before, row.messages_after) == (400, 30)
    assert (row.tokens_before, row.tokens_after) == (100_000, 20_000)
    assert row.tokens_after_reported is None
    assert (row.summary_model, row.retained_share, row.failure) == ("small", 0.95, "slow")
    assert (row.duration_ms, row.cache_tokens_lost) == (1_200, 90_000)
    assert row.at >= store.one(turn).started_at


def compact_once(store: Store, current: Turn, plan: ViewPlan = PLAN, **changes: object) -> Turn:
    return store.run(compact, current, plan, **changes)


def test_the_transcript_is_not_touched(store: Store, current: Turn) -> None:
    """Its digest is the same after any number of compactions."""
    before = digest(store)
    for n in range(5):
        current = compact_once(store, current, replace(PLAN, tail_from=9 + n % 2))
        assert digest(store) == before


def test_a_resumed_turn_goes_on_in_the_child(store: Store, current: Turn) -> None:
    """After a crash the view is the compacted one, and new messages belong to the child."""
    moved = compact_once(store, current)
    heir = store.run(leases.register, "heir")
    store.run(leases.reap_others, heir)
    lease = store.run(claim_one, current.lease.conversation, heir)
    resumed = store.run(find_running, lease, BASE)
    assert resumed is not None
    assert resumed.session == moved.session
    seq = store.run(turn_journal.record_message, resumed, assistant_message("on"))
    assert store.one(message, seq=seq).session_id == moved.session.id


def test_a_plan_is_rendered_equally_after_a_restart(store: Store, current: Turn) -> None:
    """What was committed and what is read back show the same bytes."""
    moved = compact_once(store, current)
    chat = current.lease.conversation
    before = store.run(load_view, chat, moved.session.plan)
    stored = store.run(sessions.active, chat).plan
    assert store.run(load_view, chat, stored) == before
    assert [text for entry in before if (text := entry["content"])][1].endswith("What was done.")


def test_a_second_compaction_of_the_same_segment_writes_nothing(
    store: Store, current: Turn
) -> None:
    """Whoever comes later finds that the conversation has moved on."""
    compact_once(store, current)
    before = everything(store)
    with pytest.raises(LeaseLost, match=f"session {current.session.id} has ended"):
        compact_once(store, current)
    assert everything(store) == before


@pytest.mark.parametrize("reason", ["new", "daily", "idle"])
def test_a_reset_goes_before_a_compaction(store: Store, current: Turn, reason: str) -> None:
    """What was decided about a lineage that has ended is not stored."""
    store.run(begin_anew, current.lease.conversation, reason)
    before = everything(store)
    with pytest.raises(LeaseLost):
        compact_once(store, current)
    assert everything(store) == before


def test_a_stale_worker_compacts_nothing(store: Store, current: Turn) -> None:
    """The fence is the first statement."""
    store.run(leases.reap_others, store.run(leases.register, "heir"))
    before = everything(store)
    with pytest.raises(LeaseLost, match="another owner"):
        compact_once(store, current)
    assert everything(store) == before


def test_a_stopped_turn_is_not_compacted(store: Store, current: Turn) -> None:
    """A `/stop` whose signal was lost is noticed."""
    store.run(
        lambda conn: conn.execute(update(conversation).values(cancel_upto_seq=current.upto_seq))
    )
    before = everything(store)
    with pytest.raises(TurnCancelled):
        compact_once(store, current)
    assert everything(store) == before


def test_a_finished_turn_is_not_compacted(store: Store, current: Turn) -> None:
    """Only a running turn splits its session in this way."""
    store.run(turn_journal.commit, current, [], [], TurnEnd("final_text"))
    before = everything(store)
    with pytest.raises(LeaseLost, match=f"turn {current.id} has ended"):
        compact_once(store, current)
    assert everything(store) == before


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize("count", [20, 2_000])
def test_a_compaction_writes_few_rows(store: Store, current: Turn, count: int) -> None:
    """Child, its plan, parent, pointer, turn, report, candidate: however long the conversation."""
    store.without_sync()
    fill(store, current, count)
    put(store, current)
    changes = store.connection.connection.driver_connection
    assert changes is not None
    before = changes.total_changes
    compact_once(store, current, replace(PLAN, tail_from=count))
    assert changes.total_changes - before == 7


def test_the_first_report_tells_what_a_compaction_led_to(store: Store, current: Turn) -> None:
    """Later reports of the same segment are of a view that has grown since."""
    moved = compact_once(store, current)
    store.run(turn_journal.record_message, moved, assistant_message("a"), model_call(USAGE))
    assert of(store, current)[0].tokens_after_reported == USAGE.prompt_tokens
    store.run(turn_journal.record_message, moved, assistant_message("b"), model_call(USAGE + USAGE))
    assert of(store, current)[0].tokens_after_reported == USAGE.prompt_tokens


def test_each_compaction_gets_its_own_report(store: Store, current: Turn) -> None:
    """One that was followed by another before any call has none."""
    for usage in (Usage(1), None, Usage(3)):
        current = compact_once(store, current)
        if usage is not None:
            store.run(
                turn_journal.record_message, current, assistant_message("x"), model_call(usage)
            )
    reports = [row.tokens_after_reported for row in of(store, current)]
    assert reports == [1, None, 3]


def test_compactions_of_other_conversations_are_not_listed(store: Store, current: Turn) -> None:
    """Each conversation has its own list, oldest first."""
    other = store.run(turn_of, "hi", chat="7")
    compact_once(store, compact_once(store, current))
    compact_once(store, other)
    own = of(store, current)
    assert [row.child_session_id for row in own] == sorted(row.child_session_id for row in own)
    assert (len(own), len(of(store, other))) == (2, 1)


def put(store: Store, current: Turn, summary: Summary = PREPARED) -> None:
    chat = current.lease.conversation
    store.run(compactions.put_candidate, current.session.id, chat, summary)


def prepared(store: Store, current: Turn) -> Summary | None:
    return store.run(compactions.candidate, current.session.id)


def test_a_prepared_summary_is_kept(store: Store, current: Turn) -> None:
    """For its segment alone; nothing is prepared before."""
    assert prepared(store, current) is None
    put(store, current)
    assert prepared(store, current) == PREPARED
    assert store.one(summary_candidate).model == "small"


def test_a_later_candidate_replaces_an_earlier_one(store: Store, current: Turn) -> None:
    """There is one for a segment at most."""
    put(store, current)
    longer = replace(PREPARED, text="More was settled.", last_seq=9, source="extract")
    put(store, current, longer)
    assert prepared(store, current) == longer


def test_a_compaction_drops_what_was_prepared(store: Store, current: Turn) -> None:
    """The child has another view: its summary is to be prepared anew."""
    put(store, current)
    compact_once(store, current)
    assert store.rows(summary_candidate) == []


def test_a_reset_drops_what_was_prepared(store: Store, current: Turn) -> None:
    """No words of it stay behind."""
    put(store, current)
    store.run(begin_anew, current.lease.conversation)
    assert store.rows(summary_candidate) == []


def test_a_summary_that_comes_too_late_is_dropped(store: Store, current: Turn) -> None:
    """A segment that has ended takes none; nor does one that was erased."""
    compact_once(store, current)
    before = everything(store)
    put(store, current)
    store.run(compactions.put_candidate, 4711, current.lease.conversation, PREPARED)
    assert everything(store) == before


def test_the_next_turn_begins_in_the_child(store: Store, current: Turn) -> None:
    """Whatever was compacted in a turn stays so for the next one."""
    moved = compact_once(store, current)
    end = TurnEnd("final_text", model_call(USAGE))
    store.run(turn_journal.commit, moved, [assistant_message("done")], [], end)
    store.run(admit, inbound("next"))

    following = store.run(begin_turn, moved.lease)
    assert following.session.plan == PLAN
    assert following.session.prompt_tokens == USAGE.prompt_tokens
    assert following.messages == (user_message("next"),)


LEAF = Node(1, 0, 2, 8, "What was done.", "extract", 5, 90)
ROOT = Node(2, 1, 2, 12, "Much was done.", "model", 4, 9, children=(1,))
COMPACTED = ViewPlan(head_upto=1, summaries=(Summary("x", 2, 8, node=1),), tail_from=9)


def test_new_nodes_come_with_the_plan(store: Store) -> None:
    """In order of number; those of another conversation are not among them."""
    turn = store.run(turn_of, "hello")
    conversation = turn.lease.conversation
    moved = store.run(compact, turn, COMPACTED, nodes=(LEAF,))
    store.run(compact, moved, COMPACTED, nodes=(ROOT,))
    assert store.run(compactions.nodes_of, conversation) == [LEAF, ROOT]
    assert store.run(compactions.nodes_of, conversation + 1) == []
    store.run(forget, conversation)
    assert store.run(compactions.nodes_of, conversation) == []


def test_a_compaction_that_is_refused_leaves_no_node(store: Store) -> None:
    """Both are one transaction."""
    turn = store.run(turn_of, "hello")
    store.run(compact, turn, COMPACTED)
    with pytest.raises(LeaseLost):
        store.run(compactions.compact, turn, compaction(COMPACTED, nodes=(LEAF,)), PlannerState())
    assert store.run(compactions.nodes_of, turn.lease.conversation) == []
