"""A turn ends in exactly one way, and all that it touches ends with it."""

from dataclasses import replace

from agent.messages import assistant_message, tool_message, user_message
from gateway.storage import attachments, endings, lineage, outbox, steps
from gateway.storage.endings import TurnEnd
from gateway.storage.models import conversation, message, session, turn
from gateway.storage.models import inbox as inbox_table
from gateway.storage.models import outbox as outbox_table
from gateway.storage.turns import Turn
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin_turn,
    find_running,
    inbound,
    model_call,
    parts,
)
from tests.support.turns import ANSWERED, USAGE, ask, everything, stop, view


def test_a_commit_tells_what_the_meter_learned(store: Store, current: Turn) -> None:
    """The last call of a turn counts like the others."""
    end = TurnEnd("final_text", model_call(USAGE, model="model-2", ratio=0.75))
    store.run(endings.commit, current, [assistant_message("hi")], [], end)
    known = store.run(lineage.active, current.lease.conversation)
    assert (known.token_ratio, known.report_model) == (0.75, "model-2")


def test_a_commit_stores_answer_and_delivery_together(store: Store, current: Turn) -> None:
    """Transcript, outbox, inbox and counters change in one transaction."""
    ask(store, current, "a")
    store.run(steps.record_result, current, tool_message("a", "look", "seen"), "ok")
    final = assistant_message("Hi there.")
    totals = store.run(endings.commit, current, [final], parts(current), ANSWERED)
    assert view(store, current)[-1] == final
    assert store.one(inbox_table).state == "done"
    row = store.one(outbox_table)
    assert (row.state, row.inbox_seq, row.turn_id) == ("pending", 1, current.id)
    assert (totals.iterations, totals.tool_calls, totals.usage) == (2, 1, USAGE + USAGE)


def test_a_commit_shows_the_files_that_tools_have_made(store: Store, current: Turn) -> None:
    """Once each, in order, behind the answer."""
    ask(store, current, "a")
    for name in ("one.txt", "two.txt"):
        store.run(attachments.offer, current, name, "text/plain", name.encode(), 9)
    for _ in range(2):
        store.run(endings.commit, current, [assistant_message("Here.")], parts(current), ANSWERED)
    shown = [(row.payload, row.markdown, row.attachment) for row in store.rows(outbox_table)]
    assert shown == [
        ("an answer", None, None),
        ("", "(file: one.txt)", 1),
        ("", "(file: two.txt)", 2),
    ]


def test_a_turn_without_calls_is_not_asked_for_files(store: Store, current: Turn) -> None:
    """That is most of them."""
    asked = store.statements(endings.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert not any("attachment" in statement for statement in asked)


def test_a_finished_turn_holds_its_figures(store: Store, current: Turn) -> None:
    """What the statistics need stands in the turn's row."""
    store.run(endings.commit, current, [assistant_message("hi")], [], ANSWERED)
    row = store.one(turn)
    assert (row.state, row.outcome, row.error) == ("done", "final_text", None)
    assert (row.model, row.usd) == ("model-1-2026", 0.5)
    assert (row.iterations, row.tool_calls) == (1, 0)
    assert (row.input_tokens, row.output_tokens) == (100, 20)
    assert (row.cache_read_tokens, row.cache_write_tokens) == (30, 9)
    assert row.finished_at >= row.started_at


def test_a_commit_notes_how_full_the_window_is(store: Store, current: Turn) -> None:
    """The session keeps what the model reported last, and for which message."""
    store.run(endings.commit, current, [assistant_message("hi")], [], ANSWERED)
    row = store.one(session)
    assert (row.prompt_tokens, row.prompt_upto_seq) == (USAGE.prompt_tokens, 2)


def test_an_empty_last_answer_is_counted(store: Store, current: Turn) -> None:
    """A call that said nothing was paid for all the same."""
    totals = store.run(
        endings.commit, current, [], parts(current), TurnEnd("empty", model_call(USAGE))
    )
    assert totals.usage == USAGE


def test_a_turn_without_an_answer_still_ends(store: Store, current: Turn) -> None:
    """Where no model answered, only the notice is stored."""
    end = TurnEnd("provider_failed", error="no route")
    store.run(endings.commit, current, [], parts(current, kind="failed"), end)
    assert len(store.rows(message)) == 1
    assert (store.one(turn).outcome, store.one(turn).error) == ("provider_failed", "no route")
    assert store.one(inbox_table).state == "done"


def test_a_second_commit_has_no_effect(store: Store, current: Turn) -> None:
    """A commit whose answer was lost is repeated without a second answer."""
    final = [assistant_message("hi")]
    first = store.run(endings.commit, current, final, parts(current), ANSWERED)
    before = everything(store)
    assert store.run(endings.commit, current, final, parts(current), ANSWERED) == first
    assert everything(store) == before


def test_a_stop_does_not_touch_a_newer_turn(store: Store, current: Turn) -> None:
    """What was asked after the `/stop` is answered."""
    store.run(stop, replace(current, upto_seq=0))
    store.run(endings.commit, current, [assistant_message("hi")], [], ANSWERED)
    assert store.one(turn).state == "done"


def test_a_cancelled_turn_keeps_what_was_said(store: Store, current: Turn) -> None:
    """Open calls get a result, the partial answer stays, unsent rows are dropped."""
    ask(store, current, "a", "b")
    store.run(steps.record_result, current, tool_message("a", "look", "seen"), "ok")
    store.run(steps.notify, current, parts(current, "please wait", "trouble"))
    store.run(endings.cancel, current, "half an answer", parts(current, kind="stopped"), ANSWERED)
    assert view(store, current)[-2:] == [
        tool_message("b", "look", "Cancelled by the user."),
        assistant_message("half an answer"),
    ]
    assert [row.state for row in store.rows(outbox_table)] == ["dropped", "pending"]
    assert (store.one(turn).state, store.one(inbox_table).state) == ("cancelled", "cancelled")


def test_a_turn_cancelled_in_silence_leaves_no_answer(store: Store, current: Turn) -> None:
    """Where nothing was written, nothing is added to the transcript."""
    store.run(endings.cancel, current, "", [], TurnEnd("interrupted"))
    assert view(store, current) == [user_message("hello")]
    assert store.run(find_running, current.lease, BASE) is None


def test_a_buried_turn_is_a_dead_letter_with_a_notice(store: Store, current: Turn) -> None:
    """Its entries are dead, its groups closed, and its chat is told."""
    ask(store, current, "a")
    end = TurnEnd("gave_up", error="crashed")
    store.run(endings.bury, current, parts(current, "I gave up.", "buried"), end)
    assert (store.one(turn).state, store.one(turn).error) == ("dead", "crashed")
    assert store.one(inbox_table).state == "dead"
    assert view(store, current)[-1]["role"] == "tool"
    assert store.one(outbox_table).payload == "I gave up."


def test_a_newer_message_can_replace_the_running_turn(store: Store, current: Turn) -> None:
    """In mode interrupt the running turn is stopped, and only that one."""
    store.run(admit, inbound("newer"))
    store.run(endings.cancel_running, current.lease.conversation)
    assert store.one(conversation).cancel_upto_seq == current.upto_seq
    store.run(endings.cancel, current, "", [], TurnEnd("interrupted"))
    newer = store.run(begin_turn, current.lease)
    store.run(endings.commit, newer, [assistant_message("hi")], [], ANSWERED)


def test_an_interrupt_without_a_running_turn_stops_nothing(store: Store) -> None:
    """There is no turn that a new message could replace."""
    conversation_id, _ = store.run(admit, inbound())
    store.run(endings.cancel_running, conversation_id)
    assert store.one(conversation).cancel_upto_seq == 0


def test_an_earlier_stop_is_not_taken_back(store: Store, current: Turn) -> None:
    """`cancel_upto_seq` only grows."""
    store.run(stop, replace(current, upto_seq=99))
    store.run(endings.cancel_running, current.lease.conversation)
    assert store.one(conversation).cancel_upto_seq == 99


def test_an_outbox_row_survives_the_end_of_its_turn(store: Store, current: Turn) -> None:
    """What was committed is sent, also after the next turn was stopped."""
    store.run(endings.commit, current, [assistant_message("hi")], parts(current), ANSWERED)
    store.run(admit, inbound("next"))
    second = store.run(begin_turn, current.lease)
    store.run(endings.cancel, second, "", [], TurnEnd("interrupted"))
    due = store.run(outbox.next_due, current.lease.conversation)
    assert due is not None
    assert due.message.payload == "an answer"
