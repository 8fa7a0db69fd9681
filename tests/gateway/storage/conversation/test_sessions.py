"""Sessions: the segments of a conversation, one of them active.

Prompts and tools are stored once by content, and go with the last segment that has them.
In a replay, time passes for them.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agent.messages import Usage, assistant_message, user_message
from agent.models.base import Prefix
from agent.ports import ModelCall, PlannerState
from agent.prompt.system import LAYERS, OWN_LAYER, SEPARATOR, SystemPrompt
from agent.view.view import Summary, ViewPlan
from gateway.errors import LeaseLost
from gateway.storage.conversation import sessions, transcript, turn_journal
from gateway.storage.conversation.sessions import PromptBase, Session
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.queue.leases import Lease
from gateway.storage.schema import prompt_base, prompt_text, session
from gateway.storage.sqlite_file import empty_log
from tests.support.searching import feed
from tests.support.storage import (
    Store,
    admit,
    begin_anew,
    begin_turn,
    compact,
    fixed_base,
    forget,
    inbound,
    load_view,
    model_call,
    parts,
    turn_of,
)

USAGE = Usage(100, 20, 30, 4)
PROMPT = "Be brief. \u00e9\n"
BASE = fixed_base(PROMPT, '["look"]', instructions="0f", model="model-1")
OTHER = fixed_base("Another prompt.").write
PREFIX = Prefix("model-1", 3, "abcdef", 1_700_000_000.5, 134)
CALL = model_call(USAGE, ratio=1.25, prefix=PREFIX)


@pytest.fixture
def root(store: Store) -> Session:
    """The first segment of a conversation, with a system prompt."""
    conversation_id, _ = store.run(admit, inbound())
    active = store.run(sessions.active, conversation_id)
    return settle(store, active, BASE)


def settle(store: Store, segment: Session, base: PromptBase) -> Session:
    """Settle what requests begin with; what is returned is what is stored."""
    settled: Session = store.run(sessions.settle_base, segment, base)
    assert store.run(sessions.get, segment.id) == settled
    return settled


def report(store: Store, segment: Session, call: ModelCall = CALL, seq: int = 7) -> Session:
    """Note what a call told; returns the segment as it is then."""
    store.run(turn_journal.report_prompt, segment, call, seq)
    return store.run(sessions.get, segment.id)


def test_a_first_segment_shows_everything(store: Store, root: Session) -> None:
    """It has no parent, and its plan begins with the first message."""
    assert root.plan == ViewPlan()
    row = store.one(session)
    assert (row.parent_session_id, row.start_reason, row.ended_at) == (None, "first_message", None)
    assert root.prompt_tokens is None


def test_a_split_moves_the_conversation_on(store: Store, root: Session) -> None:
    """The parent ends, the child inherits the prompt byte for byte and becomes active."""
    plan = ViewPlan(1, ((2, 3),))
    child = store.run(sessions.split, root, "retry", plan)
    assert store.run(sessions.active, root.conversation) == child
    assert (child.plan, child.system_prompt) == (plan, root.system_prompt)
    parent_row, child_row = store.rows(session)
    assert (parent_row.end_reason, child_row.start_reason) == ("retry", "retry")
    assert (child_row.parent_session_id, child_row.ended_at) == (root.id, None)
    assert parent_row.ended_at is not None


def test_a_parent_has_one_child(store: Store, root: Session) -> None:
    """A second split of the same segment is refused, and nothing of it is stored."""
    child = store.run(sessions.split, root, "retry", root.plan)
    with pytest.raises(LeaseLost):
        store.run(sessions.split, root, "retry", root.plan)
    assert store.run(sessions.active, root.conversation) == child
    assert len(store.rows(session)) == 2


def test_the_first_end_counts(store: Store, root: Session) -> None:
    """Ending a segment twice keeps reason and time of the first end."""
    store.run(sessions.end, root.id, "new")
    first = store.one(session)
    store.run(sessions.end, root.id, "retry")
    assert store.one(session) == first


def test_new_begins_behind_the_newest_message(store: Store, root: Session) -> None:
    """`/new` hides everything before it and nothing after it."""
    place = MessagePlace(root.conversation, root.id, None)
    head = store.run(transcript.append, place, [user_message("old"), user_message("older")])
    store.run(sessions.end, root.id, "new")
    fresh = store.run(sessions.start_root, root.conversation, "new", first_seq=head + 1)
    store.run(transcript.append, place, [user_message("fresh")])
    view = store.run(load_view, root.conversation, fresh.plan)
    assert view == [user_message("fresh")]
    assert fresh.system_prompt is None


def test_exactly_one_segment_is_live(store: Store, root: Session) -> None:
    """After any splits the only segment without an end is the active one."""
    tip = root
    for n in range(5):
        tip = store.run(sessions.split, tip, "retry", tip.plan.hiding(n, n))
    live = [row.id for row in store.rows(session) if row.ended_at is None]
    assert live == [tip.id] == [store.conversation(root.conversation).active_session_id]


def test_a_base_is_stored_once(store: Store, root: Session) -> None:
    """Another prompt from the same inputs does not replace the bytes that a provider has cached."""
    assert (root.system_prompt, root.tools) == (PROMPT, BASE.tools)
    assert (root.prompt_inputs, root.moved) == (BASE.inputs, None)
    before = store.rows(session)
    assert settle(store, root, replace(BASE, write=OTHER)) == root
    assert store.rows(session) == before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tools": "[]"}, "tools"),
        ({"inputs": {"instructions": "1f", "model": "model-1"}}, "instructions"),
        ({"inputs": {"instructions": "0f", "model": "model-2"}}, "model"),
        (
            {"tools": "[]", "inputs": {"instructions": "1f", "model": "model-2"}},
            "tools+instructions+model",
        ),
    ],
)
def test_a_base_follows_its_inputs(
    store: Store, root: Session, changes: dict[str, object], reason: str
) -> None:
    """Whatever was set otherwise takes effect with the next request, and says that it did."""
    other = replace(BASE, write=OTHER, **changes)  # type: ignore[arg-type]
    settled = settle(store, root, other)
    assert settled.moved == reason
    assert (settled.system_prompt, settled.tools) == ("Another prompt.", other.tools)
    assert settle(store, settled, other) == settled


@pytest.mark.parametrize(
    "inputs", [{"instructions": "0f"}, {**BASE.inputs, "skills": "2f"}], ids=["fewer", "more"]
)
def test_inputs_of_another_version_move_nothing(
    store: Store, root: Session, inputs: dict[str, str]
) -> None:
    """What only one of two versions of Parley knows is no change."""
    assert settle(store, root, replace(BASE, inputs=inputs)) == root


def test_a_prompt_of_before_is_kept(store: Store, root: Session) -> None:
    """Version 0.2 has stored it without its inputs: they are taken over, and it stays."""
    of_before = prompt_base.update().values(digest=b"0.2", tools_id=None, inputs=None)
    store.run(lambda conn: conn.execute(of_before))
    old = store.run(sessions.get, root.id)
    assert (old.system_prompt, old.tools, old.prompt_inputs) == (PROMPT, None, None)
    settled = settle(store, old, replace(BASE, write=OTHER))
    assert settled == replace(root, base_id=settled.base_id)


def test_what_requests_begin_with_is_inherited(store: Store, root: Session) -> None:
    """Byte for byte, with the last request's fingerprint, and why the next one differs from it."""
    child = store.run(sessions.split, report(store, root), "compression", root.plan)
    assert store.run(sessions.get, child.id) == child
    assert (child.system_prompt, child.tools) == (root.system_prompt, root.tools)
    assert (child.prompt_inputs, child.prefix) == (root.prompt_inputs, PREFIX)
    assert (child.start_reason, child.moved) == ("compression", "compression")
    fresh = store.run(begin_anew, root.conversation)
    assert (fresh.tools, fresh.prompt_inputs, fresh.prefix, fresh.moved) == (None,) * 4
    assert fresh.start_reason == store.run(sessions.get, fresh.id).start_reason == "new"


def test_a_fingerprint_ends_what_was_moved(store: Store, root: Session) -> None:
    """From the first answered request on, the next one must begin with its bytes."""
    child = store.run(sessions.split, root, "retry", root.plan)
    nameless = report(store, child, replace(CALL, prefix=None))
    assert (nameless.prefix, nameless.moved) == (None, "retry")
    told = report(store, child)
    assert (told.prefix, told.moved) == (PREFIX, None)
    assert report(store, child, replace(CALL, prefix=None)).prefix == PREFIX


def test_a_call_without_usage_tells_nothing(store: Store, root: Session) -> None:
    """What is known about the view stays as it is."""
    known = report(store, root)
    assert report(store, root, model_call(None, ratio=2.0), 9) == known


def test_the_report_of_the_model_belongs_to_a_segment(store: Store, root: Session) -> None:
    """A child begins without a report: its view has another size."""
    reported = report(store, root)
    assert (reported.prompt_tokens, reported.prompt_output_tokens) == (134, 20)
    assert (reported.prompt_upto_seq, reported.report_model) == (7, "model-1")
    child = store.run(sessions.split, reported, "retry", root.plan)
    assert (child.prompt_tokens, child.prompt_output_tokens, child.prompt_upto_seq) == (None,) * 3
    assert store.run(sessions.get, child.id) == child


def test_what_the_meter_has_learned_is_inherited(store: Store, root: Session) -> None:
    """The ratio and the model that it was learned of, along the lineage; `/new` starts at 1."""
    child = store.run(sessions.split, report(store, root), "retry", root.plan)
    assert (child.token_ratio, child.report_model) == (1.25, "model-1")
    fresh = store.run(begin_anew, root.conversation)
    assert (fresh.token_ratio, fresh.report_model) == (1.0, None)


def test_a_report_without_ratio_keeps_what_is_known(store: Store, root: Session) -> None:
    """It is not forgotten; the sizes are the newest ones."""
    report(store, root)
    reported = report(store, root, model_call(USAGE + USAGE), 9)
    assert (reported.token_ratio, reported.report_model) == (1.25, "model-1")
    assert (reported.prompt_tokens, reported.prompt_upto_seq) == (268, 9)


def test_segments_are_numbered_along_their_lineage(store: Store, root: Session) -> None:
    """A root is number 1, also the one that `/new` begins."""
    second = store.run(sessions.split, root, "retry", root.plan)
    third = store.run(sessions.split, second, "retry", root.plan)
    fresh = store.run(begin_anew, root.conversation)
    assert [s.number for s in (root, second, third, fresh)] == [1, 2, 3, 1]
    assert [row.number for row in store.rows(session)] == [1, 2, 3, 1]


def test_a_title_is_carried_over() -> None:
    """The first segment has the plain title, the next ones a number behind it."""
    assert sessions.titled("Trip to Rome", 1) == "Trip to Rome"
    assert sessions.titled("Trip to Rome", 3) == "Trip to Rome #3"


def test_the_planner_remembers_over_splits(store: Store, root: Session) -> None:
    """The state is inherited, unless the split brings another one; `/new` begins without."""
    state = PlannerState(2, 90_000, 1_700_000_000.5)
    child = store.run(sessions.split, root, "compression", root.plan, state)
    second = store.run(sessions.split, child, "retry", root.plan)
    assert store.run(sessions.get, second.id).planner_state == state
    assert store.run(begin_anew, root.conversation).planner_state == PlannerState()


@pytest.mark.usefixtures("sqlite_alone")
def test_a_report_does_not_write_the_summaries_again(store: Store, root: Session) -> None:
    """Each call reports: it writes as much in a segment with a long summary as in a root."""
    call = replace(CALL, usage=Usage(70_000, 20), prefix=replace(PREFIX, model="another-model"))
    of_root = log_bytes(store, root, call)
    plan = ViewPlan(summaries=(Summary("What was said. " * 4_000, 1, 9, "user", "model"),))
    child = store.run(sessions.split, root, "compression", plan)
    assert log_bytes(store, child, call) == of_root


def log_bytes(store: Store, segment: Session, call: ModelCall) -> int:
    """Return what a report, behind a smaller one, writes into an empty log."""
    report(store, segment)
    raw = store.connection.connection.driver_connection
    assert raw is not None
    assert empty_log(raw)
    report(store, segment, call)
    return Path(f"{store.path}-wal").stat().st_size


def test_a_split_of_what_is_not_active_writes_nothing(store: Store, root: Session) -> None:
    """The pointer is moved by compare-and-set: from the parent, or not at all."""
    other = store.run(sessions.start_root, root.conversation, "new")
    before = store.rows(session)
    with pytest.raises(LeaseLost, match=f"is not in session {root.id}"):
        store.run(sessions.split, root, "retry", root.plan)
    assert store.rows(session) == before
    assert store.run(sessions.active, root.conversation) == other


def test_the_database_refuses_a_second_child(store: Store, root: Session) -> None:
    """What the code checks is an index too: parent_session_id is unique."""
    store.run(sessions.split, root, "retry", root.plan)
    row = {"conversation": root.conversation, "started_at": 0}
    double = session.insert().values(parent_session_id=root.id, start_reason="x", **row)
    with pytest.raises(IntegrityError):
        store.run(lambda conn: conn.execute(double))


SHARED = "You are a test. " * 300
TOOLS = '[{"name":"look"}]' * 200


def based(text: str, own: str, tools: str = TOOLS) -> PromptBase:
    """Return a base of which the end is a root's own."""
    layers = (("identity", len(text)), (OWN_LAYER, len(own)))
    return PromptBase(
        tools, {"model": "m"}, lambda *_: SystemPrompt(text + SEPARATOR + own, layers)
    )


def begun(store: Store, chat: str, text: str = SHARED, tools: str = TOOLS) -> Session:
    """Return the settled first segment of a chat."""
    conversation_id, _ = store.run(admit, inbound(chat=chat))
    root = store.run(sessions.active, conversation_id)
    return store.run(sessions.settle_base, root, based(text, f"session: {chat}", tools))


def texts(store: Store) -> list[str]:
    return [row.body for row in store.rows(prompt_text)]


def test_many_conversations_store_a_prompt_once(store: Store) -> None:
    """Each has its own end of it beside the reference, and reads the whole byte for byte."""
    for n in range(20):
        begun(store, f"chat-{n}")
    assert texts(store) == [SHARED, TOOLS]
    assert len(store.rows(prompt_base)) == 1
    for row in store.rows(session):
        found = store.run(sessions.get, row.id)
        chat = f"chat-{row.id - 1}"
        assert found.system_prompt == f"{SHARED}\n\nsession: {chat}"
        assert found.prompt.parts()[-1] == (OWN_LAYER, f"session: {chat}")
        assert found.tools == TOOLS


def test_a_conversation_costs_no_second_copy_of_its_prompt(store: Store) -> None:
    """A segment's row takes hundreds of bytes, not the thousands that prompt and tools have."""
    begun(store, "first")
    sizes = "SELECT sum(length(own_prompt)) FROM session"
    begun(store, "second")
    assert store.run(lambda conn: conn.exec_driver_sql(sizes).scalar_one()) < 1_000
    assert len(texts(store)) == 2


def test_children_and_equal_roots_refer_to_the_same_base(store: Store) -> None:
    """A split inherits it; a `/new` with the same prompt finds it again."""
    root = begun(store, "a")
    child = store.run(sessions.split, root, "compression", root.plan)
    assert child.base_id == root.base_id
    assert store.run(sessions.get, child.id) == child
    anew = store.run(begin_anew, root.conversation)
    assert anew.base_id is None
    settled = store.run(sessions.settle_base, anew, based(SHARED, "session: 9"))
    assert settled.base_id == root.base_id


def test_the_last_reference_takes_the_text_with_it(store: Store) -> None:
    """What two conversations share stays until the second one is forgotten, tools likewise."""
    one, two = begun(store, "a"), begun(store, "b")
    own = begun(store, "c", text="Knows that Ada likes tea.")
    store.run(forget, own.conversation)
    assert texts(store) == [SHARED, TOOLS]
    store.run(forget, one.conversation)
    assert texts(store) == [SHARED, TOOLS]
    store.run(forget, two.conversation)
    assert (texts(store), store.rows(prompt_base)) == ([], [])


def test_a_base_that_is_replaced_goes(store: Store) -> None:
    """Other tools make another base; the one before is nobody's then."""
    root = begun(store, "a")
    moved = store.run(sessions.settle_base, root, based("Another.", "session: a", "[]"))
    assert (moved.moved, moved.base_id) == ("tools", root.base_id + 1 if root.base_id else None)
    assert sorted(texts(store)) == ["Another.", "[]"]
    assert store.run(sessions.get, root.id) == moved


def test_the_same_text_as_prompt_and_tools_is_one_text(store: Store) -> None:
    """It goes once nobody refers to it in either place."""
    here = begun(store, "a", text="[]", tools="[]")
    assert texts(store) == ["[]"]
    store.run(forget, here.conversation)
    assert texts(store) == []


@pytest.mark.usefixtures("sqlite_alone")
def test_a_settled_segment_is_read_in_one_statement(store: Store) -> None:
    """The texts come with the segment's row: a turn asks the database no more often than before."""
    root = begun(store, "a")
    assert store.statements(sessions.active, root.conversation) == ["SELECT session"]
    plans = store.plans(sessions.active, root.conversation)
    assert not [plan for plan in plans if plan.startswith("SCAN")]


@pytest.mark.usefixtures("sqlite_alone")
def test_bases_are_released_by_index(store: Store) -> None:
    """Whether somebody still uses a base is one look-up, however many segments there are."""
    here = begun(store, "a")
    feed(store)
    plans = store.plans(forget, here.conversation)
    harmless = ("SCAN CONSTANT", "SCAN (", "SCAN search_index VIRTUAL")
    scans = [plan for plan in plans if plan.startswith("SCAN")]
    assert [plan for plan in scans if not plan.startswith(harmless)] == []


@given(st.lists(st.text(min_size=1), max_size=4), st.booleans())
def test_a_prompt_is_its_two_parts(written: list[str], has_own: bool) -> None:
    """Splitting and joining gives the same prompt, with or without an end of its own."""
    names = [f"layer-{n}" for n in range(len(written))]
    if has_own and written:
        names[-1] = OWN_LAYER
    layers = tuple((name, len(text)) for name, text in zip(names, written, strict=True))
    prompt = SystemPrompt(SEPARATOR.join(written), layers)
    shared, own = prompt.split()
    assert shared.with_own(own) == prompt
    assert bool(own) == (OWN_LAYER in names)


def test_only_the_last_layer_is_a_roots_own() -> None:
    """What is told apart at the end of a prompt is all that roots do not share."""
    own = [layer.name for layer in LAYERS if layer.stability == "session"]
    assert own == [OWN_LAYER] == [LAYERS[-1].name]


@pytest.mark.parametrize("text", ["", "Ä" * 10])
def test_an_empty_shared_part_is_a_part(store: Store, text: str) -> None:
    """A prompt that consists of its own end alone is read back as it was."""
    conversation_id, _ = store.run(admit, inbound())
    prompt = SystemPrompt(text, ((OWN_LAYER, len(text)),) if text else ())
    written = replace(based("", ""), write=lambda *_: prompt)
    root = store.run(sessions.active, conversation_id)
    settled = store.run(sessions.settle_base, root, written)
    assert store.run(sessions.get, root.id) == settled
    assert settled.prompt == prompt


SENT = Prefix("model-1", messages=3, digest="0f", at=1000.0, tokens=500)


def last_request(conn: Connection, conversation_id: int) -> Prefix | None:
    return sessions.active(conn, conversation_id).prefix


def answered(store: Store) -> Lease:
    """Return the lease of a conversation whose last request was made at 1000 s."""
    current = store.run(turn_of, "one")
    end = TurnEnd("final_text", model_call(Usage(500, 1), prefix=SENT))
    store.run(turn_journal.commit, current, [assistant_message("Yes.")], parts(current), end)
    return current.lease


def test_the_last_request_becomes_older(store: Store) -> None:
    """Nothing else about it changes."""
    conversation = answered(store).conversation
    store.run(sessions.age, conversation, 400.5)
    store.run(sessions.age, conversation, 100.0)
    found = store.run(last_request, conversation)
    assert found is not None
    assert found.at == pytest.approx(499.5)
    assert (found.digest, found.tokens, found.messages) == ("0f", 500, 3)


def test_a_compacted_view_remembers_it_too(store: Store) -> None:
    """It is the active segment's that counts."""
    lease = answered(store)
    store.run(admit, inbound("two"))
    store.run(compact, store.run(begin_turn, lease), ViewPlan())
    store.run(sessions.age, lease.conversation, 1.0)
    found = store.run(last_request, lease.conversation)
    assert found is not None
    assert found.at == pytest.approx(999.0)


def test_without_a_request_nothing_is_done(store: Store) -> None:
    """After `/new`, and where there is no conversation."""
    conversation = answered(store).conversation
    store.run(begin_anew, conversation)
    store.run(sessions.age, conversation, 400.0)
    store.run(sessions.age, 99, 400.0)
    assert store.run(last_request, conversation) is None
