"""Turns: begun once, and resumed where their journal ends; nothing writes without the fence.

A turn that is taken out of the view stays on record.

A turn knows whose words its question holds.
"""

from dataclasses import replace

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from agent.messages import assistant_message, tool_message, user_message
from agent.models.base import Prefix
from agent.view.view import Summary, ViewPlan
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage.conversation import sessions, turn_journal, turns
from gateway.storage.conversation.sessions import PromptBase
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import dead_letters, inbox
from gateway.storage.queue.leases import Lease
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import message, session, turn
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin,
    begin_turn,
    claim_one,
    compact,
    find_running,
    fixed_base,
    inbound,
    load_view,
    model_call,
    parts,
    turn_of,
)
from tests.support.turns import ANSWERED, USAGE, ask, asked, crash, everything, resume, stop, view

NEWER = replace(BASE, write=fixed_base("Another prompt.").write)


def test_a_turn_freezes_what_waited(store: Store) -> None:
    """The entries are taken, and the user message is recorded as one."""
    current = store.run(turn_of, "one", "two")
    assert (current.first_seq, current.upto_seq, current.attempt) == (1, 2, 1)
    assert current.messages == (user_message("one\ntwo"),)
    assert (current.started_calls, current.preview_ref) == (frozenset(), None)
    assert current.reply_to == "ref-two"
    assert {row.state for row in store.rows(inbox_table)} == {"taken"}
    assert view(store, current) == [user_message("one\ntwo")]


def test_a_command_takes_a_turn_without_a_message(store: Store) -> None:
    """It is no message of the transcript; a resumed turn knows it, and `/retry` passes it over."""
    answered = store.run(turn_of, "hello")
    store.run(turn_journal.commit, answered, [assistant_message("hi")], [], ANSWERED)
    store.run(admit, inbound("/compress trains"), kind="command")
    entries = store.run(inbox.queued, answered.lease.conversation)
    current = store.run(begin, answered.lease, entries, None, BASE)
    for each in (current, resume(store, current)):
        assert each.command is not None
        assert (each.entries, each.command.command) == ((), "compress")
        assert each.command.argument == "trains"
    store.run(turn_journal.commit, resume(store, current), [], [], TurnEnd("compressed"))
    assert store.run(turns.hide_newest, answered.lease.conversation) == "hello"


def test_what_arrives_later_belongs_to_the_next_turn(store: Store, current: Turn) -> None:
    """`upto_seq` does not move once a turn has begun."""
    store.run(admit, inbound("later"))
    assert resume(store, current).upto_seq == 1
    waiting = store.run(inbox.queued, current.lease.conversation)
    assert [entry.text for entry in waiting] == ["later"]


def answered_at(store: Store, current: Turn, seq: int) -> None:
    """End a turn that had waited for the entry `seq` of its inbox."""
    store.run(turn_journal.go_on_from, current.lease.conversation, seq)
    store.run(turn_journal.commit, current, [], [], ANSWERED)


def test_the_next_turn_speaks_below_the_one_before(store: Store, current: Turn) -> None:
    """Also where its messages are older than what that was answered, and again after a crash."""
    store.run(admit, inbound("queued meanwhile"))
    answered_at(store, current, 5)
    following = store.run(begin_turn, current.lease)
    assert (following.first_seq, following.upto_seq) == (2, 5)
    resumed = resume(store, following)
    assert (resumed.first_seq, resumed.upto_seq, resumed.reply_to) == (2, 5, following.reply_to)


def test_what_is_asked_again_is_answered_where_it_stands(store: Store, current: Turn) -> None:
    """Turns about newer messages do not move it."""
    store.run(turn_journal.bury, current, [], TurnEnd("gave_up"))
    store.run(admit, inbound("newer"))
    newer = store.run(begin_turn, current.lease)
    answered_at(store, newer, 5)
    store.run(dead_letters.retry, f"t{current.id}")
    assert store.run(begin_turn, current.lease).upto_seq == 1


def test_a_turn_belongs_to_the_active_session(store: Store, current: Turn) -> None:
    """The first turn gives the session its system prompt, for good."""
    store.run(turn_journal.commit, current, [], [], ANSWERED)
    store.run(admit, inbound("again"))
    entries = store.run(inbox.queued, current.lease.conversation)
    second = store.run(begin, current.lease, entries, "again", NEWER)
    assert second.session.id == current.session.id
    assert second.session.system_prompt == "You are a test."


def test_a_turn_tells_whose_it_is(store: Store) -> None:
    """Whoever wrote the newest entry, also after a restart."""
    for who in ("ada", "bob"):
        chat, _ = store.run(admit, inbound("hello", sender=who))
    current = store.run(begin_turn, store.run(claim_one, chat))
    assert current.sender == resume(store, current).sender == "telegram:bob"


def test_a_turn_begins_with_what_is_set_now(store: Store, current: Turn) -> None:
    """Other instructions move the prefix; the reason holds until a request was answered."""
    changed = replace(NEWER, inputs={**BASE.inputs, "instructions": "1f"})
    store.run(turn_journal.commit, current, [], [], ANSWERED)
    store.run(admit, inbound("again"))
    entries = store.run(inbox.queued, current.lease.conversation)
    second = store.run(begin, current.lease, entries, "again", changed)
    assert (second.session.system_prompt, second.session.moved) == (
        "Another prompt.",
        "instructions",
    )
    lease = crash(store, second.lease)
    resumed = store.run(find_running, lease, changed)
    assert resumed is not None
    assert resumed.session.moved == "instructions"
    call = model_call(USAGE, prefix=Prefix("model-1", 3, "ab", 1.0))
    store.run(turn_journal.record_message, resumed, assistant_message("part"), call)
    assert resume_with(store, resumed, changed).session.moved is None


def resume_with(store: Store, current: Turn, base: PromptBase) -> Turn:
    found = store.run(find_running, crash(store, current.lease), base)
    assert found is not None
    return found


def test_a_resumed_turn_begins_with_what_is_set_now(store: Store, current: Turn) -> None:
    """A restart with other tools takes effect at once."""
    resumed = resume_with(store, current, replace(BASE, tools='["look"]'))
    assert (resumed.session.tools, resumed.session.moved) == ('["look"]', "tools")


def test_a_compaction_moves_the_prefix_until_the_next_report(store: Store, current: Turn) -> None:
    """A turn that was resumed right behind it knows why its request begins otherwise."""
    moved = store.run(compact, current, ViewPlan(tail_from=1))
    assert (current.session.moved, moved.session.moved) == (None, "compression")
    assert resume(store, moved).session.moved == "compression"


def test_a_conversation_has_one_running_turn(store: Store, current: Turn) -> None:
    """The database refuses a second one."""
    store.run(admit, inbound("later"))
    with pytest.raises(IntegrityError):
        store.run(begin_turn, current.lease)
    assert len(store.rows(turn)) == 1


def test_there_is_nothing_to_resume_after_the_end(store: Store, current: Turn) -> None:
    """A finished turn is never run again."""
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert store.run(find_running, crash_with_work(store, current), BASE) is None


def crash_with_work(store: Store, current: Turn) -> Lease:
    store.run(admit, inbound("next"))
    return crash(store, current.lease)


def test_a_resumed_turn_knows_what_was_recorded(store: Store, current: Turn) -> None:
    """Messages, open side effects and the preview are read from the books."""
    calls = ask(store, current, "a", "b", effect="side_effect")
    store.run(turn_journal.record_result, current, tool_message("a", "look", "seen"), "ok")
    store.run(turn_journal.set_preview, current, "preview-7")
    resumed = resume(store, current)
    assert resumed.messages == (
        user_message("hello"),
        asked(*calls),
        tool_message("a", "look", "seen"),
    )
    assert resumed.started_calls == {"b"}
    assert (resumed.preview_ref, resumed.reply_to) == ("preview-7", "ref-hello")
    assert resumed.session.id == current.session.id


def test_attempts_count_crashes_without_progress(store: Store, current: Turn) -> None:
    """Each resumption without a new step is one more attempt."""
    for expected in (2, 3, 4):
        current = resume(store, current)
        assert current.attempt == expected


def test_a_step_resets_the_attempts(store: Store, current: Turn) -> None:
    """A turn that gets on, however slowly, is not given up."""
    for _ in range(3):
        current = resume(store, resume(store, current))
        assert current.attempt > 1
        store.run(
            turn_journal.record_message, current, assistant_message("part"), model_call(USAGE)
        )
        current = resume(store, current)
        assert current.attempt == 1


def test_a_synthetic_request_is_no_progress(store: Store, current: Turn) -> None:
    """What Parley writes itself does not keep a crashing turn alive."""
    request = user_message("go on", synthetic=True)
    store.run(turn_journal.record_message, current, request)
    assert resume(store, current).attempt == 2


def test_a_graceful_stop_is_free(store: Store, current: Turn) -> None:
    """An attempt that was ended by a restart is taken back."""
    store.run(turns.forgive_attempt, current)
    resumed = resume(store, current)
    assert resumed.attempt == 1
    store.run(turns.forgive_attempt, resumed)
    store.run(turns.forgive_attempt, resumed)
    assert resume(store, resumed).attempt == 1


def test_a_stopped_turn_cannot_go_on(store: Store, current: Turn) -> None:
    """A `/stop` whose signal was lost is noticed by the next write, which writes nothing."""
    call = tool_call("look", {}, "a")
    store.run(stop, current)
    before = everything(store)
    for write in (
        lambda c: turn_journal.record_message(
            c, current, assistant_message("x"), model_call(USAGE)
        ),
        lambda c: turn_journal.start_tool(c, current, call, "read"),
        lambda c: turn_journal.record_result(c, current, tool_message("a", "look", "x"), "ok"),
        lambda c: turn_journal.store_output(c, current, "x"),
        lambda c: turn_journal.commit(
            c, current, [assistant_message("x")], parts(current), ANSWERED
        ),
    ):
        with pytest.raises(TurnCancelled):
            store.run(write)
    assert everything(store) == before


def test_only_what_ran_when_it_was_stopped_is_given_up_as_stopped(
    store: Store, current: Turn
) -> None:
    """A `/stop` does not count for what an operator queues again after it."""
    store.run(stop, current)
    assert (stopped := store.run(turns.take_up, current.lease)) is not None
    assert stopped.stopped
    store.run(turn_journal.bury, current, [], TurnEnd("gave_up"))
    store.run(dead_letters.retry, f"t{current.id}")
    assert (again := store.run(turns.take_up, current.lease)) is not None
    assert not again.stopped


def test_a_stop_from_before_does_not_reach_a_new_turn(store: Store, current: Turn) -> None:
    """What an operator queues again is answered, also by a turn of just this entry."""
    store.run(stop, current)
    store.run(turn_journal.bury, current, [], TurnEnd("gave_up"))
    store.run(dead_letters.retry, f"t{current.id}")
    again = store.run(begin_turn, current.lease)
    assert (again.first_seq, again.upto_seq) == (current.upto_seq, current.upto_seq)
    assert store.run(turns.proceed, again).cancel_upto_seq < again.upto_seq


def test_every_write_of_a_turn_is_fenced(store: Store, current: Turn) -> None:
    """A worker that lost its lease writes nothing, whatever it does."""
    crash(store, current.lease)
    before = everything(store)
    call, text = tool_call("look", {}, "a"), assistant_message("x")
    for write in (
        lambda c: find_running(c, current.lease, BASE),
        lambda c: turn_journal.record_message(c, current, text, model_call(USAGE)),
        lambda c: turn_journal.start_tool(c, current, call, "read"),
        lambda c: turn_journal.record_result(c, current, tool_message("a", "look", "x"), "ok"),
        lambda c: turn_journal.store_output(c, current, "x"),
        lambda c: turn_journal.notify(c, current, parts(current)),
        lambda c: turn_journal.announce_preview(c, current, "n"),
        lambda c: turn_journal.set_preview(c, current, "p"),
        lambda c: turn_journal.commit(c, current, [text], parts(current), ANSWERED),
        lambda c: turn_journal.cancel(c, current, "x", parts(current), ANSWERED),
        lambda c: turn_journal.bury(c, current, parts(current), ANSWERED),
        lambda c: turns.forgive_attempt(c, current),
    ):
        with pytest.raises(LeaseLost):
            store.run(write)
    assert everything(store) == before


def test_a_turn_that_has_ended_announces_no_preview(store: Store, current: Turn) -> None:
    """It would be posted below the answer, and nobody would replace it."""
    store.run(turn_journal.commit, current, [assistant_message("x")], parts(current), ANSWERED)
    with pytest.raises(LeaseLost):
        store.run(turn_journal.announce_preview, current, "n")
    assert store.one(turn).preview_ref is None


def test_a_stale_worker_cannot_begin_a_turn(store: Store) -> None:
    """The fence comes before the first write of a new turn."""
    conversation_id, _ = store.run(admit, inbound("hello"))
    stale = store.run(claim_one, conversation_id)
    crash(store, stale)
    with pytest.raises(LeaseLost):
        store.run(begin_turn, stale)
    assert store.rows(turn) == []


def test_the_newest_turn_can_be_taken_out_of_view(store: Store, current: Turn) -> None:
    """`/retry` splits the session; the model sees what was asked once."""
    store.run(turn_journal.commit, current, [assistant_message("bad answer")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(turns.hide_newest, chat) == "hello"
    active = store.run(sessions.active, chat)
    assert active.id != current.session.id
    assert active.system_prompt == "You are a test."
    assert store.run(load_view, chat, active.plan) == []
    assert len(store.rows(message)) == 2


def test_earlier_turns_stay_in_view(store: Store, current: Turn) -> None:
    """Only the newest turn is asked again."""
    store.run(turn_journal.commit, current, [assistant_message("first answer")], [], ANSWERED)
    store.run(admit, inbound("second question"))
    second = store.run(begin_turn, current.lease)
    store.run(turn_journal.commit, second, [assistant_message("second answer")], [], ANSWERED)
    assert store.run(turns.hide_newest, current.lease.conversation) == "second question"
    plan = store.run(sessions.active, current.lease.conversation).plan
    shown = store.run(load_view, current.lease.conversation, plan)
    assert shown == [user_message("hello"), assistant_message("first answer")]


def test_a_turn_is_hidden_once(store: Store, current: Turn) -> None:
    """A second time nothing of it is in the view, and no split is made."""
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(turns.hide, chat, current.id)
    assert not store.run(turns.hide, chat, current.id)
    assert store.run(turns.hide_newest, chat) is None
    assert len(store.rows(session)) == 2


def test_a_turn_is_hidden_from_a_compacted_view(store: Store, current: Turn) -> None:
    """The turn is out with its pinned question, and the summary that told of nothing else."""
    calls = ask(store, current, "a", "b")
    for call in calls:
        store.run(turn_journal.record_result, current, tool_message(call["id"], "look", "x"), "ok")
    plan = ViewPlan(summaries=(Summary("both were seen", 2, 4),), pinned=(1,), tail_from=5)
    moved = store.run(compact, current, plan)
    store.run(turn_journal.commit, moved, [assistant_message("bad answer")], [], ANSWERED)
    assert store.run(turns.hide_newest, current.lease.conversation) == "hello"
    hidden = store.run(sessions.active, current.lease.conversation)
    assert hidden.plan == plan.hiding(1, 5)
    view = store.run(load_view, current.lease.conversation, hidden.plan)
    assert view == []


def test_the_rest_of_a_summarised_turn_is_hidden(store: Store, current: Turn) -> None:
    """A turn of which only the end is in view is taken out all the same."""
    moved = store.run(compact, current, ViewPlan(summaries=(Summary("asked", 1, 1),), tail_from=2))
    store.run(turn_journal.commit, moved, [assistant_message("bad answer")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(turns.hide, chat, current.id)
    assert not store.run(turns.hide, chat, current.id)
    assert not store.run(sessions.active, chat).plan.shows(2)


def test_a_running_turn_outlives_that_another_is_hidden(store: Store, current: Turn) -> None:
    """An operator retries a dead letter meanwhile: the turn is resumed in the new session."""
    store.run(turn_journal.bury, current, [], TurnEnd("gave_up"))
    store.run(admit, inbound("next"))
    running = store.run(begin_turn, current.lease)
    store.run(turns.hide, current.lease.conversation, current.id)
    with pytest.raises(LeaseLost):
        store.run(compact, running, running.session.plan)
    resumed = resume(store, running)
    assert resumed.session == store.run(sessions.active, current.lease.conversation)
    assert store.run(compact, resumed, resumed.session.plan).session.number == 3


def test_nothing_can_be_asked_again_in_a_new_conversation(store: Store) -> None:
    """Without a turn, and after `/new`, there is nothing to hide."""
    conversation_id, _ = store.run(admit, inbound())
    assert store.run(turns.hide_newest, conversation_id) is None
    current = store.run(begin_turn, store.run(claim_one, conversation_id))
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], ANSWERED)
    store.run(sessions.start_root, conversation_id, "new", first_seq=3)
    assert store.run(turns.hide_newest, conversation_id) is None


def test_a_turn_knows_whose_words_it_holds(store: Store) -> None:
    """Its entries' senders and others; also when it is resumed, and asked again."""
    chat, _ = store.run(admit, inbound("one", sender="ann"))
    lease = store.run(claim_one, chat)
    waiting = store.run(inbox.queued, chat)
    current = store.run(begin, lease, waiting, "one", BASE, ["telegram:bo"])
    whose = ("telegram:ann", "telegram:bo")
    again = resume(store, current)
    assert (current.senders, again.senders) == (whose, whose)
    store.run(turn_journal.commit, again, [assistant_message("hi")], [], ANSWERED)
    assert store.run(turns.asked_newest, again.lease) == (whose, None)


def test_a_turn_of_an_older_version_holds_its_entries_words(store: Store, current: Turn) -> None:
    """It was written without senders, before the migration."""
    store.run(lambda conn: conn.execute(update(turn).values(senders=None)))
    assert resume(store, current).senders == current.senders != ()


def test_nobody_asked_what_cannot_be_asked_again(store: Store) -> None:
    """In a conversation without a turn."""
    chat, _ = store.run(admit, inbound())
    assert store.run(turns.asked_newest, store.run(claim_one, chat)) == ((), None)
