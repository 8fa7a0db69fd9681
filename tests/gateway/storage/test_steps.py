"""What a running turn writes: messages and journal together, each call noted before it runs."""

import orjson
import pytest

from agent.messages import assistant_message, tool_message, user_message
from agent.models.scripted import tool_call
from agent.ports import Effect
from gateway.storage import endings, lineage, steps, transcript
from gateway.storage.endings import TurnEnd
from gateway.storage.models import blob, conversation, ledger, message, step
from gateway.storage.models import outbox as outbox_table
from gateway.storage.turns import Turn
from tests.support.storage import Store, admit, begin_turn, inbound, model_call, parts, seqs
from tests.support.turns import USAGE, ask, asked, resume


def test_what_is_recorded_has_a_seq(store: Store, current: Turn) -> None:
    """Messages and results return theirs; a turn knows its own, when it is resumed too."""
    assert [entry.seq for entry in current.entries] == [1]
    call = tool_call("look", {}, "a")
    assert store.run(steps.record_message, current, asked(call), model_call(USAGE)) == 2
    store.run(steps.start_tool, current, call, "read")
    assert store.run(steps.record_result, current, tool_message("a", "look", "x"), "ok") == 3
    assert [entry.seq for entry in resume(store, current).entries] == [1, 2, 3]


def test_a_step_tells_what_the_meter_learned(store: Store, current: Turn) -> None:
    """Ratio and model stand in the session; a step without a call changes neither."""
    learned = model_call(USAGE, model="model-2", ratio=1.5)
    store.run(steps.record_message, current, assistant_message("part"), learned)
    store.run(steps.record_message, current, assistant_message("part"))
    known = store.run(lineage.active, current.lease.conversation)
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
    store.run(steps.record_message, current, asked(call), model_call(USAGE))
    assert resume(store, current).started_calls == frozenset()


def test_a_call_id_that_comes_again_is_journaled_again(store: Store, current: Turn) -> None:
    """Providers number their calls per answer: the second "a" is another side effect."""
    ask(store, current, "a", effect="side_effect")
    store.run(steps.record_result, current, tool_message("a", "look", "first"), "ok")
    ask(store, current, "a", effect="side_effect")
    assert resume(store, current).started_calls == {"a"}
    assert store.rows(step, kind="tool")[0].state == "done"


def test_starting_a_call_twice_changes_nothing(store: Store, current: Turn) -> None:
    """A call that is run again after a crash has one journal entry."""
    (call,) = ask(store, current, "a")
    before = store.rows(step)
    store.run(steps.start_tool, resume(store, current), call, "read")
    assert store.rows(step) == before


def test_the_journal_names_calls_and_hides_their_arguments(store: Store, current: Turn) -> None:
    """A tool's entry holds name, effect and a digest; its end holds the status."""
    call = tool_call("send", {"to": "somebody"}, "a")
    store.run(steps.start_tool, current, call, "side_effect")
    store.run(steps.record_result, current, tool_message("a", "send", "sent"), "ok")
    row = store.one(step)
    assert (row.n, row.kind, row.name, row.call_id) == (1, "tool", "send", "a")
    assert (row.effect, row.state, orjson.loads(row.result)) == (
        "side_effect",
        "done",
        {"status": "ok"},
    )
    assert len(row.request_hash) == 16
    assert "somebody" not in str(row)


def test_only_models_steps_are_calls_of_the_ledger(store: Store, current: Turn) -> None:
    """With the model's name; a synthetic request is a message and no step."""
    store.run(steps.record_message, current, assistant_message("part"), model_call(USAGE))
    store.run(steps.record_message, current, user_message("go on", synthetic=True))
    row, booked = store.one(step), store.one(ledger)
    assert (row.name, row.result, row.call_id) == ("model-1", None, booked.call_id)
    assert booked.output_tokens == USAGE.output_tokens
    assert [row.role for row in store.rows(message)] == ["user", "assistant", "user"]


def test_an_output_is_stored_with_its_turn(store: Store, current: Turn) -> None:
    """A long output can be read back by the id that was returned."""
    output_id = store.run(steps.store_output, current, "very long")
    assert store.run(transcript.read_blob, current.lease.conversation, output_id) == "very long"
    assert store.one(blob).turn_id == current.id


def test_a_notice_is_shown_once(store: Store, current: Turn) -> None:
    """A resumed turn does not repeat what its chat was told."""
    for _ in range(2):
        store.run(steps.notify, current, parts(current, "please wait", "trouble"))
    assert len(store.rows(outbox_table)) == 1


def test_messages_are_numbered_without_gaps(store: Store, current: Turn) -> None:
    """Whatever a turn does, the transcript's seqs have no gaps."""
    ask(store, current, "a", "b")
    store.run(endings.cancel, current, "half", [], TurnEnd("interrupted"))
    store.run(admit, inbound("next"))
    store.run(begin_turn, current.lease)
    numbers = seqs(store.rows(message))
    assert numbers == list(range(1, 7))
    assert store.one(conversation).message_head == 6


def test_a_preview_is_announced_in_one_statement(store: Store, current: Turn) -> None:
    """Who resumes the turn knows that there may be one, until its id is stored."""
    assert store.statements(steps.announce_preview, current, "n1") == ["UPDATE turn"]
    resumed = resume(store, current)
    assert (resumed.preview_ref, resumed.preview_nonce) == (None, "n1")
    store.run(steps.set_preview, resumed, "77")
    resumed = resume(store, resumed)
    assert (resumed.preview_ref, resumed.preview_nonce) == ("77", None)
