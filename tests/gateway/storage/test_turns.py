"""Turns: begun once, and resumed where their journal ends; nothing writes without the fence."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from agent.messages import assistant_message, tool_message, user_message
from agent.models.scripted import tool_call
from agent.prefix import Prefix
from agent.view import ViewPlan
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage import deadletters, endings, hiding, inbox, steps, turns
from gateway.storage.endings import TurnEnd
from gateway.storage.leases import Lease
from gateway.storage.lineage import PromptBase
from gateway.storage.models import inbox as inbox_table
from gateway.storage.models import turn
from gateway.storage.turns import Turn
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
    store.run(endings.commit, answered, [assistant_message("hi")], [], ANSWERED)
    store.run(admit, inbound("/compress trains"), kind="command")
    entries = store.run(inbox.queued, answered.lease.conversation)
    current = store.run(begin, answered.lease, entries, None, BASE)
    assert (current.entries, current.command) == ((), "/compress trains")
    assert resume(store, current).command == "/compress trains"
    store.run(endings.commit, resume(store, current), [], [], TurnEnd("compressed"))
    assert store.run(hiding.hide_newest, answered.lease.conversation) == "hello"


def test_what_arrives_later_belongs_to_the_next_turn(store: Store, current: Turn) -> None:
    """`upto_seq` does not move once a turn has begun."""
    store.run(admit, inbound("later"))
    assert resume(store, current).upto_seq == 1
    waiting = store.run(inbox.queued, current.lease.conversation)
    assert [entry.text for entry in waiting] == ["later"]


def answered_at(store: Store, current: Turn, seq: int) -> None:
    """End a turn that had waited for the entry `seq` of its inbox."""
    store.run(steps.go_on_from, current.lease.conversation, seq)
    store.run(endings.commit, current, [], [], ANSWERED)


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
    store.run(endings.bury, current, [], TurnEnd("gave_up"))
    store.run(admit, inbound("newer"))
    newer = store.run(begin_turn, current.lease)
    answered_at(store, newer, 5)
    store.run(deadletters.retry, f"t{current.id}")
    assert store.run(begin_turn, current.lease).upto_seq == 1


def test_a_turn_belongs_to_the_active_session(store: Store, current: Turn) -> None:
    """The first turn gives the session its system prompt, for good."""
    store.run(endings.commit, current, [], [], ANSWERED)
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
    store.run(endings.commit, current, [], [], ANSWERED)
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
    store.run(steps.record_message, resumed, assistant_message("part"), call)
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
    store.run(endings.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert store.run(find_running, crash_with_work(store, current), BASE) is None


def crash_with_work(store: Store, current: Turn) -> Lease:
    store.run(admit, inbound("next"))
    return crash(store, current.lease)


def test_a_resumed_turn_knows_what_was_recorded(store: Store, current: Turn) -> None:
    """Messages, open side effects and the preview are read from the books."""
    calls = ask(store, current, "a", "b", effect="side_effect")
    store.run(steps.record_result, current, tool_message("a", "look", "seen"), "ok")
    store.run(steps.set_preview, current, "preview-7")
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
        store.run(steps.record_message, current, assistant_message("part"), model_call(USAGE))
        current = resume(store, current)
        assert current.attempt == 1


def test_a_synthetic_request_is_no_progress(store: Store, current: Turn) -> None:
    """What Parley writes itself does not keep a crashing turn alive."""
    request = user_message("go on", synthetic=True)
    store.run(steps.record_message, current, request)
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
        lambda c: steps.record_message(c, current, assistant_message("x"), model_call(USAGE)),
        lambda c: steps.start_tool(c, current, call, "read"),
        lambda c: steps.record_result(c, current, tool_message("a", "look", "x"), "ok"),
        lambda c: steps.store_output(c, current, "x"),
        lambda c: endings.commit(c, current, [assistant_message("x")], parts(current), ANSWERED),
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
    store.run(endings.bury, current, [], TurnEnd("gave_up"))
    store.run(deadletters.retry, f"t{current.id}")
    assert (again := store.run(turns.take_up, current.lease)) is not None
    assert not again.stopped


def test_every_write_of_a_turn_is_fenced(store: Store, current: Turn) -> None:
    """A worker that lost its lease writes nothing, whatever it does."""
    crash(store, current.lease)
    before = everything(store)
    call, text = tool_call("look", {}, "a"), assistant_message("x")
    for write in (
        lambda c: find_running(c, current.lease, BASE),
        lambda c: steps.record_message(c, current, text, model_call(USAGE)),
        lambda c: steps.start_tool(c, current, call, "read"),
        lambda c: steps.record_result(c, current, tool_message("a", "look", "x"), "ok"),
        lambda c: steps.store_output(c, current, "x"),
        lambda c: steps.notify(c, current, parts(current)),
        lambda c: steps.announce_preview(c, current, "n"),
        lambda c: steps.set_preview(c, current, "p"),
        lambda c: endings.commit(c, current, [text], parts(current), ANSWERED),
        lambda c: endings.cancel(c, current, "x", parts(current), ANSWERED),
        lambda c: endings.bury(c, current, parts(current), ANSWERED),
        lambda c: turns.forgive_attempt(c, current),
    ):
        with pytest.raises(LeaseLost):
            store.run(write)
    assert everything(store) == before


def test_a_stale_worker_cannot_begin_a_turn(store: Store) -> None:
    """The fence comes before the first write of a new turn."""
    conversation_id, _ = store.run(admit, inbound("hello"))
    stale = store.run(claim_one, conversation_id)
    crash(store, stale)
    with pytest.raises(LeaseLost):
        store.run(begin_turn, stale)
    assert store.rows(turn) == []
