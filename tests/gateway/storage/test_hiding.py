"""A turn that is taken out of the view stays on record."""

import pytest

from agent.messages import assistant_message, tool_message, user_message
from agent.view import Summary, ViewPlan
from gateway.errors import LeaseLost
from gateway.storage import endings, hiding, lineage, steps
from gateway.storage.endings import TurnEnd
from gateway.storage.models import message, session
from gateway.storage.turns import Turn
from tests.support.storage import Store, admit, begin_turn, claim_one, compact, inbound, load_view
from tests.support.turns import ANSWERED, ask, resume


def test_the_newest_turn_can_be_taken_out_of_view(store: Store, current: Turn) -> None:
    """`/retry` splits the session; the model sees what was asked once."""
    store.run(endings.commit, current, [assistant_message("bad answer")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(hiding.hide_newest, chat) == "hello"
    active = store.run(lineage.active, chat)
    assert active.id != current.session.id
    assert active.system_prompt == "You are a test."
    assert store.run(load_view, chat, active.plan) == []
    assert len(store.rows(message)) == 2


def test_earlier_turns_stay_in_view(store: Store, current: Turn) -> None:
    """Only the newest turn is asked again."""
    store.run(endings.commit, current, [assistant_message("first answer")], [], ANSWERED)
    store.run(admit, inbound("second question"))
    second = store.run(begin_turn, current.lease)
    store.run(endings.commit, second, [assistant_message("second answer")], [], ANSWERED)
    assert store.run(hiding.hide_newest, current.lease.conversation) == "second question"
    plan = store.run(lineage.active, current.lease.conversation).plan
    shown = store.run(load_view, current.lease.conversation, plan)
    assert shown == [user_message("hello"), assistant_message("first answer")]


def test_a_turn_is_hidden_once(store: Store, current: Turn) -> None:
    """A second time nothing of it is in the view, and no split is made."""
    store.run(endings.commit, current, [assistant_message("hi")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(hiding.hide, chat, current.id)
    assert not store.run(hiding.hide, chat, current.id)
    assert store.run(hiding.hide_newest, chat) is None
    assert len(store.rows(session)) == 2


def test_a_turn_is_hidden_from_a_compacted_view(store: Store, current: Turn) -> None:
    """The turn is out with its pinned question, and the summary that told of nothing else."""
    calls = ask(store, current, "a", "b")
    for call in calls:
        store.run(steps.record_result, current, tool_message(call["id"], "look", "x"), "ok")
    plan = ViewPlan(summaries=(Summary("both were seen", 2, 4),), pinned=(1,), tail_from=5)
    moved = store.run(compact, current, plan)
    store.run(endings.commit, moved, [assistant_message("bad answer")], [], ANSWERED)
    assert store.run(hiding.hide_newest, current.lease.conversation) == "hello"
    hidden = store.run(lineage.active, current.lease.conversation)
    assert hidden.plan == plan.hiding(1, 5)
    view = store.run(load_view, current.lease.conversation, hidden.plan)
    assert view == []


def test_the_rest_of_a_summarised_turn_is_hidden(store: Store, current: Turn) -> None:
    """A turn of which only the end is in view is taken out all the same."""
    moved = store.run(compact, current, ViewPlan(summaries=(Summary("asked", 1, 1),), tail_from=2))
    store.run(endings.commit, moved, [assistant_message("bad answer")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(hiding.hide, chat, current.id)
    assert not store.run(hiding.hide, chat, current.id)
    assert not store.run(lineage.active, chat).plan.shows(2)


def test_a_running_turn_outlives_that_another_is_hidden(store: Store, current: Turn) -> None:
    """An operator retries a dead letter meanwhile: the turn is resumed in the new session."""
    store.run(endings.bury, current, [], TurnEnd("gave_up"))
    store.run(admit, inbound("next"))
    running = store.run(begin_turn, current.lease)
    store.run(hiding.hide, current.lease.conversation, current.id)
    with pytest.raises(LeaseLost):
        store.run(compact, running, running.session.plan)
    resumed = resume(store, running)
    assert resumed.session == store.run(lineage.active, current.lease.conversation)
    assert store.run(compact, resumed, resumed.session.plan).session.number == 3


def test_nothing_can_be_asked_again_in_a_new_conversation(store: Store) -> None:
    """Without a turn, and after `/new`, there is nothing to hide."""
    conversation_id, _ = store.run(admit, inbound())
    assert store.run(hiding.hide_newest, conversation_id) is None
    current = store.run(begin_turn, store.run(claim_one, conversation_id))
    store.run(endings.commit, current, [assistant_message("hi")], [], ANSWERED)
    store.run(lineage.start_root, conversation_id, "new", first_seq=3)
    assert store.run(hiding.hide_newest, conversation_id) is None
