"""Sessions: the segments of a conversation, one of them active."""

import pytest
from sqlalchemy.exc import IntegrityError

from agent.messages import user_message
from agent.view import ViewPlan
from gateway.storage import lineage, transcript
from gateway.storage.lineage import Session
from gateway.storage.models import session
from gateway.storage.transcript import Place
from tests.support.storage import Store, admit, inbound


@pytest.fixture
def root(store: Store) -> Session:
    """The first segment of a conversation, with a system prompt."""
    conversation_id, _ = store.run(admit, inbound())
    active = store.run(lineage.active, conversation_id)
    store.run(lineage.set_system_prompt, active.id, "Be brief. \u00e9\n")
    return store.run(lineage.get, active.id)


def test_a_first_segment_shows_everything(store: Store, root: Session) -> None:
    """It has no parent, and its plan begins with the first message."""
    assert root.plan == ViewPlan()
    row = store.one(session)
    assert (row.parent_session_id, row.start_reason, row.ended_at) == (None, "first_message", None)
    assert root.prompt_tokens is None


def test_a_split_moves_the_conversation_on(store: Store, root: Session) -> None:
    """The parent ends, the child inherits the prompt byte for byte and becomes active."""
    plan = ViewPlan(1, ((2, 3),))
    child = store.run(lineage.split, root, "retry", plan)
    assert store.run(lineage.active, root.conversation) == child
    assert (child.plan, child.system_prompt) == (plan, root.system_prompt)
    parent_row, child_row = store.rows(session)
    assert (parent_row.end_reason, child_row.start_reason) == ("retry", "retry")
    assert (child_row.parent_session_id, child_row.ended_at) == (root.id, None)
    assert parent_row.ended_at is not None


def test_a_parent_has_one_child(store: Store, root: Session) -> None:
    """A second split of the same segment is refused, and nothing of it is stored."""
    child = store.run(lineage.split, root, "retry", root.plan)
    with pytest.raises(IntegrityError):
        store.run(lineage.split, root, "retry", root.plan)
    assert store.run(lineage.active, root.conversation) == child
    assert len(store.rows(session)) == 2


def test_the_first_end_counts(store: Store, root: Session) -> None:
    """Ending a segment twice keeps reason and time of the first end."""
    store.run(lineage.end, root.id, "new")
    first = store.one(session)
    store.run(lineage.end, root.id, "retry")
    assert store.one(session) == first


def test_new_begins_behind_the_newest_message(store: Store, root: Session) -> None:
    """`/new` hides everything before it and nothing after it."""
    place = Place(root.conversation, root.id, None)
    head = store.run(transcript.append, place, [user_message("old"), user_message("older")])
    store.run(lineage.end, root.id, "new")
    fresh = store.run(lineage.start_root, root.conversation, "new", first_seq=head + 1)
    store.run(transcript.append, place, [user_message("fresh")])
    view = store.run(transcript.load_view, root.conversation, fresh.plan)
    assert view == [user_message("fresh")]
    assert fresh.system_prompt is None


def test_exactly_one_segment_is_live(store: Store, root: Session) -> None:
    """After any splits the only segment without an end is the active one."""
    tip = root
    for n in range(5):
        tip = store.run(lineage.split, tip, "retry", tip.plan.hiding(n, n))
    live = [row.id for row in store.rows(session) if row.ended_at is None]
    assert live == [tip.id] == [store.conversation(root.conversation).active_session_id]


def test_a_system_prompt_is_stored_once(store: Store, root: Session) -> None:
    """A later prompt does not replace the bytes that a provider has cached."""
    store.run(lineage.set_system_prompt, root.id, "Another prompt.")
    assert store.run(lineage.get, root.id).system_prompt == "Be brief. \u00e9\n"


def test_the_report_of_the_model_belongs_to_a_segment(store: Store, root: Session) -> None:
    """A child begins without a report: its view has another size."""
    store.run(lineage.report_prompt, root.id, 1234, 7)
    assert store.run(lineage.get, root.id).prompt_tokens == 1234
    child = store.run(lineage.split, root, "retry", root.plan)
    assert store.run(lineage.get, child.id).prompt_tokens is None
