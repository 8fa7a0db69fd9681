"""Turns: begun once, resumed where their journal ends, and ended in exactly one way."""

from dataclasses import replace

import orjson
import pytest
from sqlalchemy import Connection, update
from sqlalchemy.exc import IntegrityError

from agent.messages import (
    ChatMessage,
    ToolCall,
    assistant_message,
    decode,
    tool_message,
    user_message,
)
from agent.models.base import Usage
from agent.models.scripted import tool_call
from agent.ports import Effect
from agent.prefix import Prefix
from agent.view import Summary, ViewPlan
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage import inbox, leases, lineage, outbox, transcript, turns
from gateway.storage.leases import Lease
from gateway.storage.lineage import PromptBase
from gateway.storage.models import blob, conversation, ledger, message, session, step, turn
from gateway.storage.models import inbox as inbox_table
from gateway.storage.models import outbox as outbox_table
from gateway.storage.turns import Turn, TurnEnd
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin_turn,
    claim_one,
    compact,
    inbound,
    model_call,
    parts,
    seqs,
    turn_of,
)

USAGE = Usage(100, 20, 30, 4, 5)
ANSWERED = TurnEnd("final_text", model_call(USAGE, reported_name="model-1-2026"))
NEWER = replace(BASE, system="Another prompt.")


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that answers "hello"."""
    return store.run(turn_of, "hello")


def asked(*calls: ToolCall, text: str | None = None) -> ChatMessage:
    return ChatMessage(role="assistant", content=text, tool_calls=list(calls))


def ask(store: Store, current: Turn, *ids: str, effect: Effect = "read") -> list[ToolCall]:
    """Record an assistant message with these calls, and start them."""
    calls = [tool_call("look", {}, call_id) for call_id in ids]
    store.run(turns.record_message, current, asked(*calls), model_call(USAGE))
    for call in calls:
        store.run(turns.start_tool, current, call, effect)
    return calls


def crash(store: Store, lease: Lease) -> Lease:
    """Claim the conversation as a process does that starts after a crash."""
    heir = store.run(leases.register, "heir")
    store.run(leases.reap_others, heir)
    return store.run(claim_one, lease.conversation, heir)


def resume(store: Store, current: Turn) -> Turn:
    found = store.run(turns.find_running, crash(store, current.lease), BASE)
    assert found is not None
    return found


def stop(conn: Connection, current: Turn) -> None:
    """Do what `/stop` does to the turn."""
    conn.execute(
        update(conversation)
        .where(conversation.c.id == current.lease.conversation)
        .values(cancel_upto_seq=current.upto_seq)
    )


def view(store: Store, current: Turn) -> list[ChatMessage]:
    return [decode(body) for body in store.bodies(current.lease.conversation)]


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
    store.run(turns.commit, answered, [assistant_message("hi")], [], ANSWERED)
    store.run(admit, inbound("/compress trains"), kind="command")
    entries = store.run(inbox.queued, answered.lease.conversation)
    current = store.run(turns.begin, answered.lease, entries, None, BASE)
    assert (current.entries, current.command) == ((), "/compress trains")
    assert resume(store, current).command == "/compress trains"
    store.run(turns.commit, resume(store, current), [], [], TurnEnd("compressed"))
    assert store.run(turns.hide_newest, answered.lease.conversation) == "hello"


def test_what_arrives_later_belongs_to_the_next_turn(store: Store, current: Turn) -> None:
    """`upto_seq` does not move once a turn has begun."""
    store.run(admit, inbound("later"))
    assert resume(store, current).upto_seq == 1
    waiting = store.run(inbox.queued, current.lease.conversation)
    assert [entry.text for entry in waiting] == ["later"]


def test_a_turn_belongs_to_the_active_session(store: Store, current: Turn) -> None:
    """The first turn gives the session its system prompt, for good."""
    store.run(turns.commit, current, [], [], ANSWERED)
    store.run(admit, inbound("again"))
    entries = store.run(inbox.queued, current.lease.conversation)
    second = store.run(turns.begin, current.lease, entries, "again", NEWER)
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
    store.run(turns.commit, current, [], [], ANSWERED)
    store.run(admit, inbound("again"))
    entries = store.run(inbox.queued, current.lease.conversation)
    second = store.run(turns.begin, current.lease, entries, "again", changed)
    assert (second.session.system_prompt, second.session.moved) == (
        "Another prompt.",
        "instructions",
    )
    lease = crash(store, second.lease)
    resumed = store.run(turns.find_running, lease, changed)
    assert resumed is not None
    assert resumed.session.moved == "instructions"
    call = model_call(USAGE, prefix=Prefix("model-1", 3, "ab", 1.0))
    store.run(turns.record_message, resumed, assistant_message("part"), call)
    assert resume_with(store, resumed, changed).session.moved is None


def resume_with(store: Store, current: Turn, base: PromptBase) -> Turn:
    found = store.run(turns.find_running, crash(store, current.lease), base)
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
    store.run(turns.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert store.run(turns.find_running, crash_with_work(store, current), BASE) is None


def crash_with_work(store: Store, current: Turn) -> Lease:
    store.run(admit, inbound("next"))
    return crash(store, current.lease)


def test_a_resumed_turn_knows_what_was_recorded(store: Store, current: Turn) -> None:
    """Messages, open side effects and the preview are read from the books."""
    calls = ask(store, current, "a", "b", effect="side_effect")
    store.run(turns.record_result, current, tool_message("a", "look", "seen"), "ok")
    store.run(turns.set_preview, current, "preview-7")
    resumed = resume(store, current)
    assert resumed.messages == (
        user_message("hello"),
        asked(*calls),
        tool_message("a", "look", "seen"),
    )
    assert resumed.started_calls == {"b"}
    assert (resumed.preview_ref, resumed.reply_to) == ("preview-7", "ref-hello")
    assert resumed.session.id == current.session.id


def test_what_is_recorded_has_a_seq(store: Store, current: Turn) -> None:
    """Messages and results return theirs; a turn knows its own, when it is resumed too."""
    assert [entry.seq for entry in current.entries] == [1]
    call = tool_call("look", {}, "a")
    assert store.run(turns.record_message, current, asked(call), model_call(USAGE)) == 2
    store.run(turns.start_tool, current, call, "read")
    assert store.run(turns.record_result, current, tool_message("a", "look", "x"), "ok") == 3
    assert [entry.seq for entry in resume(store, current).entries] == [1, 2, 3]


def test_a_step_tells_what_the_meter_learned(store: Store, current: Turn) -> None:
    """Ratio and model stand in the session; a step without a call changes neither."""
    learned = model_call(USAGE, model="model-2", ratio=1.5)
    store.run(turns.record_message, current, assistant_message("part"), learned)
    store.run(turns.record_message, current, assistant_message("part"))
    known = store.run(lineage.active, current.lease.conversation)
    assert (known.token_ratio, known.report_model) == (1.5, "model-2")
    assert (known.prompt_output_tokens, known.prompt_upto_seq) == (USAGE.output_tokens, 2)


def test_a_commit_tells_what_the_meter_learned(store: Store, current: Turn) -> None:
    """The last call of a turn counts like the others."""
    end = TurnEnd("final_text", model_call(USAGE, model="model-2", ratio=0.75))
    store.run(turns.commit, current, [assistant_message("hi")], [], end)
    known = store.run(lineage.active, current.lease.conversation)
    assert (known.token_ratio, known.report_model) == (0.75, "model-2")


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_harmless_calls_may_run_again(store: Store, current: Turn, effect: Effect) -> None:
    """Only side effects are of unknown outcome after a crash."""
    ask(store, current, "a", effect=effect)
    assert resume(store, current).started_calls == frozenset()


def test_a_call_that_was_not_started_has_no_unknown_outcome(store: Store, current: Turn) -> None:
    """A crash between the model's answer and the first tool leaves nothing in doubt."""
    call = tool_call("send", {}, "a")
    store.run(turns.record_message, current, asked(call), model_call(USAGE))
    assert resume(store, current).started_calls == frozenset()


def test_a_call_id_that_comes_again_is_journaled_again(store: Store, current: Turn) -> None:
    """Providers number their calls per answer: the second "a" is another side effect."""
    ask(store, current, "a", effect="side_effect")
    store.run(turns.record_result, current, tool_message("a", "look", "first"), "ok")
    ask(store, current, "a", effect="side_effect")
    assert resume(store, current).started_calls == {"a"}
    assert store.rows(step, kind="tool")[0].state == "done"


def test_starting_a_call_twice_changes_nothing(store: Store, current: Turn) -> None:
    """A call that is run again after a crash has one journal entry."""
    (call,) = ask(store, current, "a")
    before = store.rows(step)
    store.run(turns.start_tool, resume(store, current), call, "read")
    assert store.rows(step) == before


def test_the_journal_names_calls_and_hides_their_arguments(store: Store, current: Turn) -> None:
    """A tool's entry holds name, effect and a digest; its end holds the status."""
    call = tool_call("send", {"to": "somebody"}, "a")
    store.run(turns.start_tool, current, call, "side_effect")
    store.run(turns.record_result, current, tool_message("a", "send", "sent"), "ok")
    row = store.one(step)
    assert (row.n, row.kind, row.name, row.call_id) == (1, "tool", "send", "a")
    assert (row.effect, row.state, orjson.loads(row.result)) == (
        "side_effect",
        "done",
        {"status": "ok"},
    )
    assert len(row.request_hash) == 16
    assert "somebody" not in str(row)


def test_only_models_steps_keep_a_usage(store: Store, current: Turn) -> None:
    """With the model's name; a synthetic request is a message and no step."""
    store.run(turns.record_message, current, assistant_message("part"), model_call(USAGE))
    store.run(turns.record_message, current, user_message("go on", synthetic=True))
    assert Usage(**orjson.loads(store.one(step).result)) == USAGE
    assert store.one(step).name == "model-1"
    assert [row.role for row in store.rows(message)] == ["user", "assistant", "user"]


def test_an_output_is_stored_with_its_turn(store: Store, current: Turn) -> None:
    """A long output can be read back by the id that was returned."""
    output_id = store.run(turns.store_output, current, "very long")
    assert store.run(transcript.read_blob, current.lease.conversation, output_id) == "very long"
    assert store.one(blob).turn_id == current.id


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
        store.run(turns.record_message, current, assistant_message("part"), model_call(USAGE))
        current = resume(store, current)
        assert current.attempt == 1


def test_a_synthetic_request_is_no_progress(store: Store, current: Turn) -> None:
    """What Parley writes itself does not keep a crashing turn alive."""
    request = user_message("go on", synthetic=True)
    store.run(turns.record_message, current, request)
    assert resume(store, current).attempt == 2


def test_a_graceful_stop_is_free(store: Store, current: Turn) -> None:
    """An attempt that was ended by a restart is taken back."""
    store.run(turns.forgive_attempt, current)
    resumed = resume(store, current)
    assert resumed.attempt == 1
    store.run(turns.forgive_attempt, resumed)
    store.run(turns.forgive_attempt, resumed)
    assert resume(store, resumed).attempt == 1


def test_a_commit_stores_answer_and_delivery_together(store: Store, current: Turn) -> None:
    """Transcript, outbox, inbox and counters change in one transaction."""
    ask(store, current, "a")
    store.run(turns.record_result, current, tool_message("a", "look", "seen"), "ok")
    final = assistant_message("Hi there.")
    totals = store.run(turns.commit, current, [final], parts(current), ANSWERED)
    assert view(store, current)[-1] == final
    assert store.one(inbox_table).state == "done"
    row = store.one(outbox_table)
    assert (row.state, row.inbox_seq, row.turn_id) == ("pending", 1, current.id)
    assert (totals.iterations, totals.tool_calls, totals.usage) == (2, 1, USAGE + USAGE)


def test_a_finished_turn_holds_its_figures(store: Store, current: Turn) -> None:
    """What the statistics need stands in the turn's row."""
    store.run(turns.commit, current, [assistant_message("hi")], [], ANSWERED)
    row = store.one(turn)
    assert (row.state, row.outcome, row.error) == ("done", "final_text", None)
    assert (row.model, row.usd) == ("model-1-2026", 0.5)
    assert (row.iterations, row.tool_calls) == (1, 0)
    assert (row.input_tokens, row.output_tokens) == (100, 20)
    assert (row.cache_read_tokens, row.cache_write_tokens) == (30, 9)
    assert row.finished_at >= row.started_at


def test_a_commit_notes_how_full_the_window_is(store: Store, current: Turn) -> None:
    """The session keeps what the model reported last, and for which message."""
    store.run(turns.commit, current, [assistant_message("hi")], [], ANSWERED)
    row = store.one(session)
    assert (row.prompt_tokens, row.prompt_upto_seq) == (USAGE.prompt_tokens, 2)


def test_an_empty_last_answer_is_counted(store: Store, current: Turn) -> None:
    """A call that said nothing was paid for all the same."""
    totals = store.run(
        turns.commit, current, [], parts(current), TurnEnd("empty", model_call(USAGE))
    )
    assert totals.usage == USAGE


def test_a_turn_without_an_answer_still_ends(store: Store, current: Turn) -> None:
    """Where no model answered, only the notice is stored."""
    end = TurnEnd("provider_failed", error="no route")
    store.run(turns.commit, current, [], parts(current, kind="failed"), end)
    assert len(store.rows(message)) == 1
    assert (store.one(turn).outcome, store.one(turn).error) == ("provider_failed", "no route")
    assert store.one(inbox_table).state == "done"


def test_a_second_commit_has_no_effect(store: Store, current: Turn) -> None:
    """A commit whose answer was lost is repeated without a second answer."""
    final = [assistant_message("hi")]
    first = store.run(turns.commit, current, final, parts(current), ANSWERED)
    before = everything(store)
    assert store.run(turns.commit, current, final, parts(current), ANSWERED) == first
    assert everything(store) == before


def everything(store: Store) -> list[object]:
    tables = (turn, step, message, session, outbox_table, inbox_table, ledger)
    return [store.rows(table) for table in tables]


def test_a_stopped_turn_cannot_go_on(store: Store, current: Turn) -> None:
    """A `/stop` whose signal was lost is noticed by the next write, which writes nothing."""
    call = tool_call("look", {}, "a")
    store.run(stop, current)
    before = everything(store)
    for write in (
        lambda c: turns.record_message(c, current, assistant_message("x"), model_call(USAGE)),
        lambda c: turns.start_tool(c, current, call, "read"),
        lambda c: turns.record_result(c, current, tool_message("a", "look", "x"), "ok"),
        lambda c: turns.store_output(c, current, "x"),
        lambda c: turns.commit(c, current, [assistant_message("x")], parts(current), ANSWERED),
    ):
        with pytest.raises(TurnCancelled):
            store.run(write)
    assert everything(store) == before


def test_a_stop_does_not_touch_a_newer_turn(store: Store, current: Turn) -> None:
    """What was asked after the `/stop` is answered."""
    store.run(stop, replace(current, upto_seq=0))
    store.run(turns.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert store.one(turn).state == "done"


def test_every_write_of_a_turn_is_fenced(store: Store, current: Turn) -> None:
    """A worker that lost its lease writes nothing, whatever it does."""
    crash(store, current.lease)
    before = everything(store)
    call, text = tool_call("look", {}, "a"), assistant_message("x")
    for write in (
        lambda c: turns.find_running(c, current.lease, BASE),
        lambda c: turns.record_message(c, current, text, model_call(USAGE)),
        lambda c: turns.start_tool(c, current, call, "read"),
        lambda c: turns.record_result(c, current, tool_message("a", "look", "x"), "ok"),
        lambda c: turns.store_output(c, current, "x"),
        lambda c: turns.notify(c, current, parts(current)),
        lambda c: turns.set_preview(c, current, "p"),
        lambda c: turns.commit(c, current, [text], parts(current), ANSWERED),
        lambda c: turns.cancel(c, current, "x", parts(current), ANSWERED),
        lambda c: turns.bury(c, current, parts(current), ANSWERED),
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


def test_a_cancelled_turn_keeps_what_was_said(store: Store, current: Turn) -> None:
    """Open calls get a result, the partial answer stays, unsent rows are dropped."""
    ask(store, current, "a", "b")
    store.run(turns.record_result, current, tool_message("a", "look", "seen"), "ok")
    store.run(turns.notify, current, parts(current, "please wait", "trouble"))
    store.run(turns.cancel, current, "half an answer", parts(current, kind="stopped"), ANSWERED)
    assert view(store, current)[-2:] == [
        tool_message("b", "look", "Cancelled by the user."),
        assistant_message("half an answer"),
    ]
    assert [row.state for row in store.rows(outbox_table)] == ["dropped", "pending"]
    assert (store.one(turn).state, store.one(inbox_table).state) == ("cancelled", "cancelled")


def test_a_turn_cancelled_in_silence_leaves_no_answer(store: Store, current: Turn) -> None:
    """Where nothing was written, nothing is added to the transcript."""
    store.run(turns.cancel, current, "", [], TurnEnd("interrupted"))
    assert view(store, current) == [user_message("hello")]
    assert store.run(turns.find_running, current.lease, BASE) is None


def test_a_buried_turn_is_a_dead_letter_with_a_notice(store: Store, current: Turn) -> None:
    """Its entries are dead, its groups closed, and its chat is told."""
    ask(store, current, "a")
    end = TurnEnd("gave_up", error="crashed")
    store.run(turns.bury, current, parts(current, "I gave up.", "buried"), end)
    assert (store.one(turn).state, store.one(turn).error) == ("dead", "crashed")
    assert store.one(inbox_table).state == "dead"
    assert view(store, current)[-1]["role"] == "tool"
    assert store.one(outbox_table).payload == "I gave up."


def test_a_notice_is_shown_once(store: Store, current: Turn) -> None:
    """A resumed turn does not repeat what its chat was told."""
    for _ in range(2):
        store.run(turns.notify, current, parts(current, "please wait", "trouble"))
    assert len(store.rows(outbox_table)) == 1


def test_the_newest_turn_can_be_taken_out_of_view(store: Store, current: Turn) -> None:
    """`/retry` splits the session; the model sees what was asked once."""
    store.run(turns.commit, current, [assistant_message("bad answer")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(turns.hide_newest, chat) == "hello"
    active = store.run(lineage.active, chat)
    assert active.id != current.session.id
    assert active.system_prompt == "You are a test."
    assert store.run(transcript.load_view, chat, active.plan) == []
    assert len(store.rows(message)) == 2


def test_earlier_turns_stay_in_view(store: Store, current: Turn) -> None:
    """Only the newest turn is asked again."""
    store.run(turns.commit, current, [assistant_message("first answer")], [], ANSWERED)
    store.run(admit, inbound("second question"))
    second = store.run(begin_turn, current.lease)
    store.run(turns.commit, second, [assistant_message("second answer")], [], ANSWERED)
    assert store.run(turns.hide_newest, current.lease.conversation) == "second question"
    plan = store.run(lineage.active, current.lease.conversation).plan
    shown = store.run(transcript.load_view, current.lease.conversation, plan)
    assert shown == [user_message("hello"), assistant_message("first answer")]


def test_a_turn_is_hidden_once(store: Store, current: Turn) -> None:
    """A second time nothing of it is in the view, and no split is made."""
    store.run(turns.commit, current, [assistant_message("hi")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(turns.hide, chat, current.id)
    assert not store.run(turns.hide, chat, current.id)
    assert store.run(turns.hide_newest, chat) is None
    assert len(store.rows(session)) == 2


def test_a_turn_is_hidden_from_a_compacted_view(store: Store, current: Turn) -> None:
    """The turn is out with its pinned question, and the summary that told of nothing else."""
    calls = ask(store, current, "a", "b")
    for call in calls:
        store.run(turns.record_result, current, tool_message(call["id"], "look", "x"), "ok")
    plan = ViewPlan(summaries=(Summary("both were seen", 2, 4),), pinned=(1,), tail_from=5)
    moved = store.run(compact, current, plan)
    store.run(turns.commit, moved, [assistant_message("bad answer")], [], ANSWERED)
    assert store.run(turns.hide_newest, current.lease.conversation) == "hello"
    hidden = store.run(lineage.active, current.lease.conversation)
    assert hidden.plan == plan.hiding(1, 5)
    view = store.run(transcript.load_view, current.lease.conversation, hidden.plan)
    assert view == []


def test_the_rest_of_a_summarised_turn_is_hidden(store: Store, current: Turn) -> None:
    """A turn of which only the end is in view is taken out all the same."""
    moved = store.run(compact, current, ViewPlan(summaries=(Summary("asked", 1, 1),), tail_from=2))
    store.run(turns.commit, moved, [assistant_message("bad answer")], [], ANSWERED)
    chat = current.lease.conversation
    assert store.run(turns.hide, chat, current.id)
    assert not store.run(turns.hide, chat, current.id)
    assert not store.run(lineage.active, chat).plan.shows(2)


def test_a_running_turn_outlives_that_another_is_hidden(store: Store, current: Turn) -> None:
    """An operator retries a dead letter meanwhile: the turn is resumed in the new session."""
    store.run(turns.bury, current, [], TurnEnd("gave_up"))
    store.run(admit, inbound("next"))
    running = store.run(begin_turn, current.lease)
    store.run(turns.hide, current.lease.conversation, current.id)
    with pytest.raises(LeaseLost):
        store.run(compact, running, running.session.plan)
    resumed = resume(store, running)
    assert resumed.session == store.run(lineage.active, current.lease.conversation)
    assert store.run(compact, resumed, resumed.session.plan).session.number == 3


def test_nothing_can_be_asked_again_in_a_new_conversation(store: Store) -> None:
    """Without a turn, and after `/new`, there is nothing to hide."""
    conversation_id, _ = store.run(admit, inbound())
    assert store.run(turns.hide_newest, conversation_id) is None
    current = store.run(begin_turn, store.run(claim_one, conversation_id))
    store.run(turns.commit, current, [assistant_message("hi")], [], ANSWERED)
    store.run(lineage.start_root, conversation_id, "new", first_seq=3)
    assert store.run(turns.hide_newest, conversation_id) is None


def test_a_newer_message_can_replace_the_running_turn(store: Store, current: Turn) -> None:
    """In mode interrupt the running turn is stopped, and only that one."""
    store.run(admit, inbound("newer"))
    store.run(turns.cancel_running, current.lease.conversation)
    assert store.one(conversation).cancel_upto_seq == current.upto_seq
    store.run(turns.cancel, current, "", [], TurnEnd("interrupted"))
    newer = store.run(begin_turn, current.lease)
    store.run(turns.commit, newer, [assistant_message("hi")], [], ANSWERED)


def test_an_interrupt_without_a_running_turn_stops_nothing(store: Store) -> None:
    """There is no turn that a new message could replace."""
    conversation_id, _ = store.run(admit, inbound())
    store.run(turns.cancel_running, conversation_id)
    assert store.one(conversation).cancel_upto_seq == 0


def test_an_earlier_stop_is_not_taken_back(store: Store, current: Turn) -> None:
    """`cancel_upto_seq` only grows."""
    store.run(stop, replace(current, upto_seq=99))
    store.run(turns.cancel_running, current.lease.conversation)
    assert store.one(conversation).cancel_upto_seq == 99


def test_messages_are_numbered_without_gaps(store: Store, current: Turn) -> None:
    """Whatever a turn does, the transcript's seqs have no gaps."""
    ask(store, current, "a", "b")
    store.run(turns.cancel, current, "half", [], TurnEnd("interrupted"))
    store.run(admit, inbound("next"))
    store.run(begin_turn, current.lease)
    numbers = seqs(store.rows(message))
    assert numbers == list(range(1, 7))
    assert store.one(conversation).message_head == 6


def test_an_outbox_row_survives_the_end_of_its_turn(store: Store, current: Turn) -> None:
    """What was committed is sent, also after the next turn was stopped."""
    store.run(turns.commit, current, [assistant_message("hi")], parts(current), ANSWERED)
    store.run(admit, inbound("next"))
    second = store.run(begin_turn, current.lease)
    store.run(turns.cancel, second, "", [], TurnEnd("interrupted"))
    due = store.run(outbox.next_due, current.lease.conversation)
    assert due is not None
    assert due.message.payload == "an answer"


def test_a_turn_knows_whose_words_it_holds(store: Store) -> None:
    """Its entries' senders and others; also when it is resumed, and asked again."""
    chat, _ = store.run(admit, inbound("one", sender="ann"))
    lease = store.run(claim_one, chat)
    waiting = store.run(inbox.queued, chat)
    current = store.run(turns.begin, lease, waiting, "one", BASE, ["telegram:bo"])
    whose = ("telegram:ann", "telegram:bo")
    again = resume(store, current)
    assert (current.senders, again.senders) == (whose, whose)
    store.run(turns.commit, again, [assistant_message("hi")], [], ANSWERED)
    assert store.run(turns.newest_senders, again.lease) == whose


def test_a_turn_of_an_older_version_holds_its_entries_words(store: Store, current: Turn) -> None:
    """It was written without senders, before the migration."""
    store.run(lambda conn: conn.execute(update(turn).values(senders=None)))
    assert resume(store, current).senders == current.senders != ()


def test_nobody_asked_what_cannot_be_asked_again(store: Store) -> None:
    """In a conversation without a turn."""
    chat, _ = store.run(admit, inbound())
    assert store.run(turns.newest_senders, store.run(claim_one, chat)) == ()
