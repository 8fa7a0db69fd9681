"""The ledger: every call of a model is booked once, and sums tell what is not known."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from agent.messages import assistant_message, tool_message
from agent.ports import ModelCall
from agent.usage import Usage
from agent.view.view import Summary
from gateway.storage.conversation import compactions, turn_journal
from gateway.storage.conversation.turn_journal import Totals, TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import leases
from gateway.storage.reports import ledger as books
from gateway.storage.reports import spending
from gateway.storage.reports.spending import Where
from gateway.storage.schema import ledger, step, turn
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    Store,
    admit,
    begin_turn,
    compact,
    forget,
    inbound,
    model_call,
    parts,
)

USAGE = Usage(100, 20, 30, 4, 5)
LOST = model_call(USAGE, purpose="lost", estimated=True, cost_usd=0.25)
SUMMARY = model_call(USAGE, purpose="summary", model="small", cost_usd=0.125)


def book(store: Store, current: Turn, *calls: ModelCall) -> None:
    store.run(books.book, current.lease.conversation, current.id, current.sender, calls)


def think(store: Store, current: Turn, call: ModelCall) -> None:
    store.run(turn_journal.record_message, current, assistant_message("part"), call)


def finish(store: Store, current: Turn, call: ModelCall | None) -> Totals:
    end = TurnEnd("final_text", call)
    said = [assistant_message("hi")]
    return store.run(turn_journal.commit, current, said, parts(current), end)


def purposes(store: Store) -> list[str]:
    return [row.purpose for row in store.rows(ledger)]


def test_an_entry_holds_everything_about_a_call(store: Store, current: Turn) -> None:
    """Whose it was, who answered, what was read and written, and what it cost."""
    book(store, current, model_call(USAGE, reported_name="model-1-2026"))
    row = store.one(ledger)
    assert (row.conversation, row.turn_id) == (current.lease.conversation, current.id)
    assert (row.sender, row.purpose) == ("telegram:42", "answer")
    assert (row.provider, row.model) == ("anthropic", "model-1")
    assert (row.input_tokens, row.output_tokens, row.cache_read_tokens) == (100, 20, 30)
    assert (row.cache_write_5m_tokens, row.cache_write_1h_tokens) == (4, 5)
    assert (row.estimated, row.usd) == (False, 0.5)
    assert row.at >= store.one(turn).started_at


def test_an_estimate_is_marked(store: Store, current: Turn) -> None:
    """Each entry says whether the provider reported it."""
    book(store, current, LOST, SUMMARY)
    assert [row.estimated for row in store.rows(ledger)] == [True, False]
    assert purposes(store) == ["lost", "summary"]


def test_a_call_of_unknown_usage_is_of_unknown_cost(store: Store, current: Turn) -> None:
    """It has an entry, without tokens and without a price: never 0 dollars."""
    book(store, current, model_call(None, cost_usd=0.0))
    row = store.one(ledger)
    assert (row.input_tokens, row.output_tokens, row.estimated, row.usd) == (0, 0, True, None)


def test_an_unknown_price_is_no_price(store: Store, current: Turn) -> None:
    """Tokens are on record all the same."""
    book(store, current, model_call(USAGE, cost_usd=None))
    row = store.one(ledger)
    assert (row.input_tokens, row.estimated, row.usd) == (100, False, None)


def test_no_calls_no_entries(store: Store, current: Turn) -> None:
    """Nothing is written."""
    book(store, current)
    assert store.rows(ledger) == []


def test_what_was_spent_is_booked_without_a_lease(store: Store, current: Turn) -> None:
    """Another process has the conversation; the money is gone all the same."""
    store.run(leases.reap_others, store.run(leases.register, "heir"))
    book(store, current, LOST)
    assert purposes(store) == ["lost"]


def test_what_was_spent_is_booked_once(store: Store, current: Turn) -> None:
    """A write whose answer was lost is repeated, with what has come since."""
    first, second = model_call(Usage(10)), model_call(Usage(20))
    book(store, current, first)
    book(store, current, first, second)
    assert [row.input_tokens for row in store.rows(ledger)] == [10, 20]


def test_an_erased_conversation_is_booked_no_more(store: Store, current: Turn) -> None:
    """Its calls end after `parley forget`: there is nothing left that they belong to."""
    think(store, current, model_call(USAGE))
    store.run(forget, current.lease.conversation)
    book(store, current, LOST)
    assert store.rows(ledger) == []


def spend(store: Store, current: Turn, at: float, sender: str, usd: float | None) -> None:
    """Book a call of a certain moment."""
    before = {row.id for row in store.rows(ledger)}
    calls = [model_call(USAGE, cost_usd=usd)]
    store.run(books.book, current.lease.conversation, current.id, sender, calls)
    (fresh,) = {row.id for row in store.rows(ledger)} - before
    store.run(lambda conn: conn.execute(update(ledger).where(ledger.c.id == fresh).values(at=at)))


def test_what_was_spent_is_summed_up(store: Store, current: Turn) -> None:
    """Since a moment, of all or of one sender; an unknown price counts for nothing."""
    for at, sender, usd in (
        (1, "a:1", 1.0),
        (2, "a:1", 2.0),
        (3, "b:1", 4.0),
        (4, "a:1", 8.0),
        (5, "a:1", None),
    ):
        spend(store, current, at, sender, usd)
    assert store.run(spending.spent_usd, 0) == 15
    assert store.run(spending.spent_usd, 2) == 14
    assert store.run(spending.spent_usd, 2, "a:1") == 10
    assert store.run(spending.spent_usd, 5) == 0
    assert store.run(spending.spent_usd, 0, "nobody:1") == 0


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize("sender", [None, "a:1"])
def test_a_budget_is_checked_within_an_index(store: Store, sender: str | None) -> None:
    """It is asked for before every call: no row of the ledger is read."""
    (plan,) = store.plans(spending.spent_usd, 5.0, sender)
    assert plan.startswith("SEARCH ledger USING COVERING INDEX")


def test_a_step_is_booked_with_its_message(store: Store, current: Turn) -> None:
    """Both or none: a step that was stopped is booked by whoever ends the turn."""
    think(store, current, model_call(USAGE))
    assert (purposes(store), len(store.rows(step))) == (["answer"], 1)


def test_parleys_own_messages_cost_nothing(store: Store, current: Turn) -> None:
    """There was no call."""
    store.run(turn_journal.record_message, current, assistant_message("I was interrupted."))
    assert store.rows(ledger) == []


def test_a_turn_costs_what_its_calls_cost(store: Store, current: Turn) -> None:
    """Answers, summaries and lost calls; only answers are steps of it."""
    call = tool_call("look", {}, "a")
    store.run(turn_journal.start_tool, current, call, "read")
    store.run(turn_journal.record_result, current, tool_message("a", "look", "x"), "ok")
    think(store, current, model_call(USAGE))
    book(store, current, LOST, SUMMARY)
    totals = finish(store, current, model_call(USAGE))
    assert (totals.iterations, totals.tool_calls) == (2, 1)
    assert (totals.input_tokens, totals.output_tokens) == (400, 80)
    assert (totals.cache_read_tokens, totals.cache_write_tokens) == (120, 36)
    assert (totals.usd, totals.estimated) == (1.375, True)
    row = store.one(turn)
    assert (row.usd, row.iterations, row.input_tokens) == (1.375, 2, 400)
    assert row.cache_write_tokens == 36


def test_a_turn_of_one_unknown_price_is_of_unknown_cost(store: Store, current: Turn) -> None:
    """A sum that leaves something out would be a wrong one."""
    think(store, current, model_call(USAGE, cost_usd=None))
    totals = finish(store, current, model_call(USAGE))
    assert (totals.usd, totals.estimated) == (None, False)
    assert store.one(turn).usd is None


def test_a_turn_without_calls_costs_nothing(store: Store, current: Turn) -> None:
    """That is known, unlike the price of a call."""
    totals = store.run(turn_journal.commit, current, [], [], TurnEnd("spend_limit"))
    assert totals == Totals(0, 0, 0, 0, 0, 0, 0.0, estimated=False)
    assert (store.one(turn).usd, store.one(turn).model) == (0.0, "")


@pytest.mark.usefixtures("sqlite_alone")
def test_a_turn_is_summed_up_within_an_index(store: Store, current: Turn) -> None:
    """Its end takes no longer in a conversation that had thousands of turns."""
    where = Where(conversation=current.lease.conversation, turn=current.id)
    plan = store.plans(spending.total, where)
    assert any("USING INDEX ix_ledger_conversation_turn_id" in step for step in plan), plan
    assert not any("SCAN ledger" in step for step in plan), plan


def test_each_turn_has_its_own_sum(store: Store, current: Turn) -> None:
    """Those of the same conversation are not counted."""
    finish(store, current, model_call(USAGE))
    store.run(admit, inbound("again"))
    second = store.run(begin_turn, current.lease)
    assert finish(store, second, LOST).usd == 0.25


def test_the_newest_turn_that_a_model_answered(store: Store, current: Turn) -> None:
    """A lost call, a summary or another model's answer is none; a choice counts for all models."""

    def newest() -> int:
        place = current.lease.conversation
        return store.run(books.chosen_or_answered, place, "anthropic", "model-1")

    book(store, current, LOST, SUMMARY, model_call(USAGE, model="other"))
    assert newest() == 0
    finish(store, current, model_call(USAGE))
    assert newest() == current.id
    store.run(admit, inbound("again"))
    second = store.run(begin_turn, current.lease)
    store.run(turn_journal.commit, second, [], parts(second), TurnEnd("model_chosen"))
    assert newest() == second.id


def test_a_commit_is_booked_once(store: Store, current: Turn) -> None:
    """Repeating it has no effect, and tells the same."""
    first = finish(store, current, model_call(USAGE))
    assert finish(store, current, model_call(USAGE)) == first
    assert purposes(store) == ["answer"]


def test_a_lost_call_is_no_step(store: Store, current: Turn) -> None:
    """A turn that failed in the middle of a stream has no answer, but a bill."""
    end = TurnEnd("provider_failed", LOST, error="cut off")
    totals = store.run(turn_journal.commit, current, [], parts(current), end)
    assert (totals.iterations, totals.usd, totals.input_tokens) == (0, 0.25, 100)
    assert (totals.cache_write_tokens, totals.output_tokens) == (9, 20)
    assert store.rows(step) == []


def test_a_lost_call_tells_nothing_about_the_view(store: Store, current: Turn) -> None:
    """What is known of a stream that was cut is no report, though its words are kept."""
    finish(store, current, LOST)
    store.run(admit, inbound("again"))
    assert store.run(begin_turn, current.lease).session.prompt_tokens is None


@pytest.mark.parametrize("ended", ["cancelled", "dead"])
def test_a_turn_that_is_cut_off_is_booked(store: Store, current: Turn, ended: str) -> None:
    """With the call that was under way; the turn is named after who was at work."""
    end = TurnEnd("interrupted", replace(LOST, model="model-2"))
    if ended == "cancelled":
        totals = store.run(turn_journal.cancel, current, "half", [], end)
    else:
        totals = store.run(turn_journal.bury, current, [], end)
    assert (totals.usd, totals.iterations, purposes(store)) == (0.25, 0, ["lost"])
    assert (store.one(turn).state, store.one(turn).model) == (ended, "model-2")


def test_a_turn_is_named_after_its_last_step(store: Store, current: Turn) -> None:
    """Where its end has no call of its own."""
    think(store, current, model_call(USAGE, model="first"))
    think(store, current, model_call(USAGE, model="then"))
    book(store, current, SUMMARY)
    store.run(turn_journal.cancel, current, "", [], TurnEnd("interrupted"))
    assert store.one(turn).model == "then"


PREPARED = Summary("What was settled.", 1, 1, source="model", model="small")


def put(store: Store, current: Turn, *calls: ModelCall) -> None:
    chat = current.lease.conversation
    store.run(compactions.put_candidate, current.session.id, chat, PREPARED, calls, current.sender)


def test_a_prepared_summary_is_booked_with_it(store: Store, current: Turn) -> None:
    """It belongs to no turn, but to the budget of whom it is for."""
    put(store, current, SUMMARY)
    row = store.one(ledger)
    assert (row.purpose, row.turn_id, row.sender) == ("summary", None, "telegram:42")
    assert store.run(compactions.candidate, current.session.id) == PREPARED


def test_a_summary_that_comes_too_late_is_paid_for(store: Store, current: Turn) -> None:
    """It is dropped, but its calls were made."""
    store.run(compact, current, current.session.plan)
    put(store, current, SUMMARY)
    assert store.run(compactions.candidate, current.session.id) is None
    assert purposes(store) == ["summary"]
