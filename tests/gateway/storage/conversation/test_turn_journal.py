"""What a running turn writes: messages and journal together, each call noted before it runs.

A turn ends in exactly one way, and all that it touches ends with it.
"""

from dataclasses import replace

import orjson
import pytest

from agent.messages import assistant_message, tool_message, user_message
from agent.ports import Decision, Effect
from gateway.errors import LeaseLost, TurnCancelled
from gateway.storage.conversation import attachments, sessions, transcript, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import sending
from gateway.storage.schema import blob, conversation, ledger, message, session, step, turn
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import outbox as outbox_table
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin_turn,
    find_running,
    inbound,
    model_call,
    parts,
    seqs,
)
from tests.support.turns import ANSWERED, USAGE, ask, asked, everything, resume, stop, view


def test_what_is_recorded_has_a_seq(store: Store, current: Turn) -> None:
    """Messages and results return theirs; a turn knows its own, when it is resumed too."""
    assert [entry.seq for entry in current.entries] == [1]
    call = tool_call("look", {}, "a")
    assert store.run(turn_journal.record_message, current, asked(call), model_call(USAGE)) == 2
    store.run(turn_journal.start_tool, current, call, "read")
    assert store.run(turn_journal.record_result, current, tool_message("a", "look", "x"), "ok") == 3
    assert [entry.seq for entry in resume(store, current).entries] == [1, 2, 3]


def test_a_step_tells_what_the_meter_learned(store: Store, current: Turn) -> None:
    """Ratio and model stand in the session; a step without a call changes neither."""
    learned = model_call(USAGE, model="model-2", ratio=1.5)
    store.run(turn_journal.record_message, current, assistant_message("part"), learned)
    store.run(turn_journal.record_message, current, assistant_message("part"))
    known = store.run(sessions.active, current.lease.conversation)
    assert (known.token_ratio, known.report_model) == (1.5, "model-2")
    assert (known.prompt_output_tokens, known.prompt_upto_seq) == (USAGE.output_tokens, 2)


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_harmless_calls_may_run_again(store: Store, current: Turn, effect: Effect) -> None:
    """Only side effects are of unknown outcome after a crash."""
    ask(store, current, "a", effect=effect)
    assert resume(store, current).started_calls == frozenset()


def test_a_call_that_was_not_started_has_no_unknown_outcome(store: Store, current: Turn) -> None:
    """A crash between the model's answer and the first tool leaves nothing in doubt."""
    call = tool_call("send", {}, "a")
    store.run(turn_journal.record_message, current, asked(call), model_call(USAGE))
    assert resume(store, current).started_calls == frozenset()


def test_a_call_id_that_comes_again_is_journaled_again(store: Store, current: Turn) -> None:
    """Providers number their calls per answer: the second "a" is another side effect."""
    ask(store, current, "a", effect="side_effect")
    store.run(turn_journal.record_result, current, tool_message("a", "look", "first"), "ok")
    ask(store, current, "a", effect="side_effect")
    assert resume(store, current).started_calls == {"a"}
    assert store.rows(step, kind="tool")[0].state == "done"


def test_starting_a_call_twice_changes_nothing(store: Store, current: Turn) -> None:
    """A call that is run again after a crash has one journal entry."""
    (call,) = ask(store, current, "a")
    before = store.rows(step)
    store.run(turn_journal.start_tool, resume(store, current), call, "read")
    assert store.rows(step) == before


def test_noting_an_intent_takes_three_statements(store: Store, current: Turn) -> None:
    """One more puts on record what was decided about it."""
    start = turn_journal.start_tool
    intent = ["SELECT conversation", "UPDATE turn", "INSERT step"]
    call = tool_call("look", {}, "a")
    assert store.statements(start, current, call, "read") == intent
    decided = Decision("allow", "default.talk", "digest", ("owner",), tainted=False)
    call = tool_call("send", {}, "b")
    recorded = ["INSERT audit_row"]
    assert store.statements(start, current, call, "side_effect", decided) == [*intent, *recorded]


def test_no_intent_is_noted_once_the_turn_was_stopped_or_has_ended(
    store: Store, current: Turn
) -> None:
    """Who stops a turn finds no call that began afterwards."""
    call = tool_call("send", {}, "a")
    store.run(stop, current)
    with pytest.raises(TurnCancelled):
        store.run(turn_journal.start_tool, current, call, "side_effect")
    store.run(turn_journal.cancel, current, "", [], TurnEnd("interrupted"))
    fresh = replace(current, upto_seq=current.upto_seq + 9)
    with pytest.raises(LeaseLost):
        store.run(turn_journal.start_tool, fresh, call, "side_effect")
    assert store.rows(step) == []


def test_the_journal_names_calls_and_hides_their_arguments(store: Store, current: Turn) -> None:
    """A tool's entry holds name, effect and a digest; its end holds the status."""
    call = tool_call("send", {"to": "somebody"}, "a")
    store.run(turn_journal.start_tool, current, call, "side_effect")
    store.run(turn_journal.record_result, current, tool_message("a", "send", "sent"), "ok")
    row = store.one(step)
    assert (row.n, row.kind, row.name, row.call_id) == (1, "tool", "send", "a")
    assert (row.effect, row.state, orjson.loads(row.result)) == (
        "side_effect",
        "done",
        {"status": "ok", "marks": []},
    )
    assert len(row.request_hash) == 16
    assert "somebody" not in str(row)


def test_only_models_steps_are_calls_of_the_ledger(store: Store, current: Turn) -> None:
    """With the model's name; a synthetic request is a message and no step."""
    store.run(turn_journal.record_message, current, assistant_message("part"), model_call(USAGE))
    store.run(turn_journal.record_message, current, user_message("go on", synthetic=True))
    row, booked = store.one(step), store.one(ledger)
    assert (row.name, row.result, row.call_id) == ("model-1", None, booked.call_id)
    assert booked.output_tokens == USAGE.output_tokens
    assert [row.role for row in store.rows(message)] == ["user", "assistant", "user"]


def test_an_output_is_stored_with_its_turn(store: Store, current: Turn) -> None:
    """A long output can be read back by the id that was returned."""
    output_id = store.run(turn_journal.store_output, current, "very long")
    assert store.run(transcript.read_blob, current.lease.conversation, output_id) == "very long"
    assert store.one(blob).turn_id == current.id


def test_a_notice_is_shown_once(store: Store, current: Turn) -> None:
    """A resumed turn does not repeat what its chat was told."""
    for _ in range(2):
        store.run(turn_journal.notify, current, parts(current, "please wait", "trouble"))
    assert len(store.rows(outbox_table)) == 1


def test_messages_are_numbered_without_gaps(store: Store, current: Turn) -> None:
    """Whatever a turn does, the transcript's seqs have no gaps."""
    ask(store, current, "a", "b")
    store.run(turn_journal.cancel, current, "half", [], TurnEnd("interrupted"))
    store.run(admit, inbound("next"))
    store.run(begin_turn, current.lease)
    numbers = seqs(store.rows(message))
    assert numbers == list(range(1, 7))
    assert store.one(conversation).message_head == 6


def test_a_preview_is_announced_before_its_id_is_known(store: Store, current: Turn) -> None:
    """Who resumes the turn knows that there may be one, until its id is stored."""
    store.run(turn_journal.announce_preview, current, "n1")
    resumed = resume(store, current)
    assert (resumed.preview_ref, resumed.preview_nonce) == (None, "n1")
    store.run(turn_journal.set_preview, resumed, "77")
    resumed = resume(store, resumed)
    assert (resumed.preview_ref, resumed.preview_nonce) == ("77", None)


def test_a_commit_tells_what_the_meter_learned(store: Store, current: Turn) -> None:
    """The last call of a turn counts like the others."""
    end = TurnEnd("final_text", model_call(USAGE, model="model-2", ratio=0.75))
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], end)
    known = store.run(sessions.active, current.lease.conversation)
    assert (known.token_ratio, known.report_model) == (0.75, "model-2")


def test_a_commit_stores_answer_and_delivery_together(store: Store, current: Turn) -> None:
    """Transcript, outbox, inbox and counters change in one transaction."""
    ask(store, current, "a")
    store.run(turn_journal.record_result, current, tool_message("a", "look", "seen"), "ok")
    final = assistant_message("Hi there.")
    totals = store.run(turn_journal.commit, current, [final], parts(current), ANSWERED)
    assert view(store, current)[-1] == final
    assert store.one(inbox_table).state == "done"
    row = store.one(outbox_table)
    assert (row.state, row.inbox_seq, row.turn_id) == ("pending", 1, current.id)
    assert (totals.iterations, totals.tool_calls) == (2, 1)
    assert totals.input_tokens == 2 * USAGE.input_tokens


def test_a_commit_shows_the_files_that_tools_have_made(store: Store, current: Turn) -> None:
    """Once each, in order, behind the answer."""
    ask(store, current, "a")
    for name in ("one.txt", "two.txt"):
        store.run(attachments.offer, current, name, "text/plain", name.encode(), 9)
    for _ in range(2):
        store.run(
            turn_journal.commit, current, [assistant_message("Here.")], parts(current), ANSWERED
        )
    shown = [(row.payload, row.markdown, row.attachment) for row in store.rows(outbox_table)]
    assert shown == [
        ("an answer", None, None),
        ("", "(file: one.txt)", 1),
        ("", "(file: two.txt)", 2),
    ]


def test_a_turn_without_calls_is_not_asked_for_files(store: Store, current: Turn) -> None:
    """That is most of them."""
    asked = store.statements(turn_journal.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert not any("attachment" in statement for statement in asked)


def test_an_answer_is_committed_in_few_statements(store: Store, current: Turn) -> None:
    """One of the conversation fences it, takes all seqs, and gives the conversation back."""
    answer = (current, [assistant_message("hi")], parts(current), ANSWERED)
    assert store.statements(turn_journal.commit, *answer, releases=True) == [
        *store.locks,
        "UPDATE conversation",
        "INSERT message",
        "INSERT outbox",
        "INSERT step",
        "INSERT ledger",
        "UPDATE session",
        "UPDATE inbox",
        "UPDATE turn",
    ]


def test_a_conversation_with_more_to_do_is_not_given_back(store: Store, current: Turn) -> None:
    """Without anything behind it, it is."""
    store.run(admit, inbound("and?"))
    done = (current, [assistant_message("hi")], [], ANSWERED)
    assert not store.run(turn_journal.commit, *done, releases=True).released
    second = store.run(begin_turn, current.lease)
    done = (second, [assistant_message("hi")], [], ANSWERED)
    assert store.run(turn_journal.commit, *done, releases=True).released
    row = store.conversation(current.lease.conversation)
    assert (row.owner, row.ready_no, row.epoch) == (None, None, current.lease.epoch)


def test_a_finished_turn_holds_its_figures(store: Store, current: Turn) -> None:
    """What the statistics need stands in the turn's row."""
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], ANSWERED)
    row = store.one(turn)
    assert (row.state, row.outcome, row.error) == ("done", "final_text", None)
    assert (row.model, row.usd) == ("model-1-2026", 0.5)
    assert (row.iterations, row.tool_calls) == (1, 0)
    assert (row.input_tokens, row.output_tokens) == (100, 20)
    assert (row.cache_read_tokens, row.cache_write_tokens) == (30, 9)
    assert row.finished_at >= row.started_at


def test_a_commit_notes_how_full_the_window_is(store: Store, current: Turn) -> None:
    """The session keeps what the model reported last, and for which message."""
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], ANSWERED)
    row = store.one(session)
    assert (row.prompt_tokens, row.prompt_upto_seq) == (USAGE.prompt_tokens, 2)


def test_an_empty_last_answer_is_counted(store: Store, current: Turn) -> None:
    """A call that said nothing was paid for all the same."""
    done = store.run(
        turn_journal.commit, current, [], parts(current), TurnEnd("empty", model_call(USAGE))
    )
    assert (done.input_tokens, done.output_tokens) == (USAGE.input_tokens, USAGE.output_tokens)


def test_a_turn_without_an_answer_still_ends(store: Store, current: Turn) -> None:
    """Where no model answered, only the notice is stored."""
    end = TurnEnd("provider_failed", error="no route")
    store.run(turn_journal.commit, current, [], parts(current, kind="failed"), end)
    assert len(store.rows(message)) == 1
    assert (store.one(turn).outcome, store.one(turn).error) == ("provider_failed", "no route")
    assert store.one(inbox_table).state == "done"


def test_a_second_commit_has_no_effect(store: Store, current: Turn) -> None:
    """A commit whose answer was lost is repeated without a second answer."""
    final = [assistant_message("hi")]
    first = store.run(turn_journal.commit, current, final, parts(current), ANSWERED)
    before = everything(store)
    again = store.run(turn_journal.commit, current, final, parts(current), ANSWERED)
    assert (again, again.released) == (first, False)
    assert everything(store) == before


def test_a_stop_does_not_touch_a_newer_turn(store: Store, current: Turn) -> None:
    """What was asked after the `/stop` is answered."""
    store.run(stop, replace(current, upto_seq=0))
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert store.one(turn).state == "done"


def test_a_cancelled_turn_keeps_what_was_said(store: Store, current: Turn) -> None:
    """Open calls get a result, the partial answer stays, unsent rows are dropped."""
    ask(store, current, "a", "b")
    store.run(turn_journal.record_result, current, tool_message("a", "look", "seen"), "ok")
    store.run(turn_journal.notify, current, parts(current, "please wait", "trouble"))
    store.run(
        turn_journal.cancel, current, "half an answer", parts(current, kind="stopped"), ANSWERED
    )
    assert view(store, current)[-2:] == [
        tool_message("b", "look", "Cancelled by the user."),
        assistant_message("half an answer"),
    ]
    assert [row.state for row in store.rows(outbox_table)] == ["dropped", "pending"]
    assert (store.one(turn).state, store.one(inbox_table).state) == ("cancelled", "cancelled")


def test_a_turn_cancelled_in_silence_leaves_no_answer(store: Store, current: Turn) -> None:
    """Where nothing was written, nothing is added to the transcript."""
    store.run(turn_journal.cancel, current, "", [], TurnEnd("interrupted"))
    assert view(store, current) == [user_message("hello")]
    assert store.run(find_running, current.lease, BASE) is None


def test_a_buried_turn_is_a_dead_letter_with_a_notice(store: Store, current: Turn) -> None:
    """Its entries are dead, its groups closed, and its chat is told."""
    ask(store, current, "a")
    end = TurnEnd("gave_up", error="crashed")
    store.run(turn_journal.bury, current, parts(current, "I gave up.", "buried"), end)
    assert (store.one(turn).state, store.one(turn).error) == ("dead", "crashed")
    assert store.one(inbox_table).state == "dead"
    assert view(store, current)[-1]["role"] == "tool"
    assert store.one(outbox_table).payload == "I gave up."


def test_a_newer_message_can_replace_the_running_turn(store: Store, current: Turn) -> None:
    """In mode interrupt the running turn is stopped, and only that one."""
    store.run(admit, inbound("newer"))
    store.run(turn_journal.cancel_running, current.lease.conversation)
    assert store.one(conversation).cancel_upto_seq == current.upto_seq
    store.run(turn_journal.cancel, current, "", [], TurnEnd("interrupted"))
    newer = store.run(begin_turn, current.lease)
    store.run(turn_journal.commit, newer, [assistant_message("hi")], [], ANSWERED)


def test_an_interrupt_without_a_running_turn_stops_nothing(store: Store) -> None:
    """There is no turn that a new message could replace."""
    conversation_id, _ = store.run(admit, inbound())
    store.run(turn_journal.cancel_running, conversation_id)
    assert store.one(conversation).cancel_upto_seq == 0


def test_an_earlier_stop_is_not_taken_back(store: Store, current: Turn) -> None:
    """`cancel_upto_seq` only grows."""
    store.run(stop, replace(current, upto_seq=99))
    store.run(turn_journal.cancel_running, current.lease.conversation)
    assert store.one(conversation).cancel_upto_seq == 99


def test_an_outbox_row_survives_the_end_of_its_turn(store: Store, current: Turn) -> None:
    """What was committed is sent, also after the next turn was stopped."""
    store.run(turn_journal.commit, current, [assistant_message("hi")], parts(current), ANSWERED)
    store.run(admit, inbound("next"))
    second = store.run(begin_turn, current.lease)
    store.run(turn_journal.cancel, second, "", [], TurnEnd("interrupted"))
    due = store.run(sending.next_due, current.lease.conversation)
    assert due is not None
    assert due.message.payload == "an answer"
