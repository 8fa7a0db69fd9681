"""What calls took and cost: sums over the ledger by day, sender, conversation, model, outcome."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, update

from agent.messages import Usage, assistant_message, tool_message
from agent.models.catalog import FREE, ModelFacts, Prices
from agent.money.cache_simulator import CacheRules
from agent.money.costs import cost_usd
from agent.ports import ModelCall
from agent.view.view import Summary
from gateway.storage import maintenance
from gateway.storage.conversation import compactions, turn_journal
from gateway.storage.conversation.turn_journal import Totals, TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import leases
from gateway.storage.reports import spending, usage
from gateway.storage.reports.spending import (
    RECENT_CALLS,
    TOKENS,
    By,
    CachePrices,
    Call,
    KnownRates,
    Spent,
    Where,
)
from gateway.storage.schema import ledger, step, turn
from gateway.storage.schema import ledger as table
from tests.support.least_bill import least_after
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    Store,
    admit,
    begin_turn,
    compact,
    forget,
    inbound,
    model_call,
    outdated_copy,
    parts,
    turn_of,
)

ADA = "telegram:42"
RATES = {
    "claude": CachePrices(CacheRules(1024), Prices(3, 3.75, 6, 0.3, 0)),
    "gpt": CachePrices(CacheRules(4096, marked=False, bills_writes=False), Prices(2, 2, 2, 0.2, 0)),
    "unknown": None,
}
_numbers = itertools.count()
CALLS = st.lists(
    st.fixed_dictionaries({
        "chat": st.sampled_from("ab"),
        "model": st.sampled_from(sorted(RATES)),
        "usage": st.none()
        | st.builds(
            Usage,
            st.integers(0, 6000),
            st.integers(0, 50),
            st.sampled_from([0, 0, 500, 1024, 5000]),
            st.integers(0, 4000),
            st.integers(0, 100),
        ),
        "cost_usd": st.none() | st.floats(0, 10),
        "estimated": st.booleans(),
        "purpose": st.sampled_from(["answer", "answer", "summary", "lost"]),
        "at": st.integers(0, 40).map(lambda n: n * 450.0),
        "gone": st.booleans(),
    }),
    max_size=14,
)
PRICES = Prices(1.0, 1.25, 2.0, 0.1, 5.0)
CLAUDE = ModelFacts("claude-test", prices=PRICES)
OTHER = ModelFacts("other", prices=PRICES)
WRITTEN = Usage(cache_write_5m_tokens=10_000)
READ = Usage(cache_read_tokens=10_000)


def rates(model: str) -> CachePrices | None:
    return RATES[model]


def book_slots(store: Store, current: Turn, at: float | None = None, **call: Any) -> int:
    """Book a call of a turn, at a time of its own; returns its row."""
    made = model_call(call.pop("usage", Usage(100, 20, 300, 40, 5)), **call)
    store.run(spending.book, current.lease.conversation, current.id, current.sender, [made])
    newest = max(row.id for row in store.rows(table))
    if at is not None:
        store.run(lambda conn: conn.execute(table.update().where(table.c.id == newest), {"at": at}))
    return newest


def page(store: Store, by: By, limit: int, after: str | None = None) -> dict[str, Spent]:
    return store.run(spending.spent, by, Where(), limit=limit, after=after)


def compared(store: Store, where: Where, known: KnownRates) -> Spent:
    rates = store.run(spending.rates_of, where, known)
    return store.run(spending.total, where, rates)


@pytest.mark.thorough
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(made=CALLS)
def test_prompts_are_compared_by_sums_as_call_by_call(
    store: Store, made: list[dict[str, Any]]
) -> None:
    """In all, and since a moment; what was erased is not compared."""
    turns = {chat: store.run(turn_of, "hi", chat=f"{chat}-{next(_numbers)}") for chat in "ab"}
    for each in made:
        call = {name: each[name] for name in ("model", "usage", "cost_usd", "estimated", "purpose")}
        row = book_slots(store, turns[each["chat"]], each["at"], **call)
        if each["gone"]:
            store.run(lambda conn, row=row: conn.execute(table.delete().where(table.c.id == row)))
    for since in (0.0, 9 * 900.0):
        spent = compared(store, Where(since), rates)
        assert spent.calls == len([row for row in store.rows(table) if row.at >= since])
        found = (spent.compared_calls, spent.billed_usd, spent.least_usd)
        assert found == pytest.approx(fully_compared(store, since))
    for current in turns.values():
        store.run(forget, current.lease.conversation)


def fully_compared(store: Store, since: float) -> tuple[int, float, float]:
    """Compare call by call what `total` compares by sums."""
    answers = [
        (row, Usage(*(getattr(row, name) for name in TOKENS)))
        for row in store.rows(table)
        if row.at >= since and row.purpose == "answer" and not row.estimated
    ]
    cached = {row.model for row, used in answers if used.prompt_tokens > used.input_tokens}
    calls, billed_usd, least_usd = 0, 0.0, 0.0
    for row, used in answers:
        known = rates(row.model)
        if known and (known.rules.marked or row.model in cached):
            least = least_after(row.before_tokens, used, known.rules)
            calls += 1
            billed_usd += cost_usd(used, known.prices) or 0.0
            least_usd += cost_usd(least, known.prices) or 0.0
    return calls, billed_usd, least_usd


def test_the_prompt_before_is_that_of_the_same_cache(store: Store, current: Turn) -> None:
    """Of the same conversation and model; estimates and summaries are none."""
    for model, tokens in (("a", 100), ("b", 700), ("a", 200)):
        book_slots(store, current, model=model, usage=Usage(tokens))
    book_slots(store, current, model="a", usage=Usage(9_000), estimated=True)
    book_slots(store, current, model="a", usage=Usage(9_000), purpose="summary")
    book_slots(store, current, model="a", usage=Usage(300))
    assert [row.before_tokens for row in store.rows(table)] == [0, 0, 100, 200, 200, 200]


def test_an_entry_is_one_statement(store: Store, current: Turn) -> None:
    """The call before is found by index."""
    book_slots(store, current)
    here = (current.lease.conversation, current.id, current.sender)
    assert store.statements(spending.append, *here, [model_call()]) == ["INSERT ledger"]


def test_days_do_not_overlap(store: Store, current: Turn) -> None:
    """Their end is not part of them."""
    for at in (900.0, 1799.0, 1800.0):
        book_slots(store, current, at=at)
    days = [Where(0, 900), Where(900, 1800), Where(1800, 2700), Where(2700, 9000)]
    assert [store.run(spending.total, day).calls for day in days] == [0, 2, 1, 0]
    assert store.run(spending.first_call_at) == 900.0


@pytest.mark.parametrize(
    ("by", "named"), [("sender", ["telegram:43", ADA]), ("conversation", ["2", "1"])]
)
def test_sums_are_named(store: Store, current: Turn, by: By, named: list[str]) -> None:
    """The dearest first."""
    book_slots(store, current)
    book_slots(store, current, cost_usd=None)
    book_slots(store, store.run(turn_of, "hi", chat="43"), cost_usd=2.0)
    assert list(store.run(spending.spent, by, Where())) == named


def test_models_of_old_have_no_provider(store: Store, current: Turn) -> None:
    """Then the name stands alone; the dearest first."""
    book_slots(store, current, model="claude")
    book_slots(store, current, provider="", model="model-of-old", cost_usd=None)
    found = store.run(spending.spent, "provider_model", Where())
    assert list(found) == ["anthropic/claude", "model-of-old"]


def test_sums_begin_at_a_point_in_time(store: Store, current: Turn) -> None:
    """What was before is not in them."""
    book_slots(store, current, at=100)
    book_slots(store, current, at=1000)
    found = store.run(spending.spent, "sender", Where(900.0))
    assert [each.calls for each in found.values()] == [1]


def test_an_unknown_sender_is_a_question_mark(store: Store, current: Turn) -> None:
    """Such as work in the background of a conversation that nobody has written in."""
    here = current.lease.conversation
    store.run(spending.book, here, None, "", [model_call(Usage(1))])
    assert list(page(store, "sender", 5)) == ["?"]
    assert page(store, "sender", 5, "?") == {}


@pytest.mark.parametrize("by", ["sender", "conversation"])
def test_pages_follow_each_other(store: Store, by: By) -> None:
    """The dearest first; among equals by name."""
    for n in range(7):
        current = store.run(turn_of, "hi", chat=f"{n}")
        book_slots(store, current, cost_usd=float(n // 3))
    whole = list(page(store, by, 50))
    after, seen = None, list[str]()
    while found := page(store, by, 2, after):
        seen += found
        after = seen[-1]
    assert seen == whole
    assert len(seen) == 7


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
def test_older_ledgers_learn_the_prompts_before(store: Store, tmp_path: Path) -> None:
    """By the migration: they are what they would have been."""
    for chat in ("a", "b", "a2"):
        current = store.run(turn_of, "hi", chat=chat)
        for n in range(5):
            book_slots(store, current, n * 700.0, usage=Usage(900 * n), cost_usd=0.1 * n)
            book_slots(store, current, model="other", usage=None, purpose="summary")
    old = outdated_copy(store.path, tmp_path / "old.db", "0005")
    maintenance.upgrade(old)
    migrated = Store(old)
    assert migrated.rows(table) == store.rows(table)
    assert maintenance.check(old) == []
    migrated.close()


def test_nothing_is_spent_in_an_empty_ledger(store: Store) -> None:
    """No name, and a sum of nothing."""
    assert store.run(spending.spent, "sender", Where()) == {}
    assert store.run(spending.total, Where()) == Spent()
    assert store.run(spending.first_call_at) is None


USAGE = Usage(100, 20, 300, 40, 5)


def book(store: Store, current: Turn, at: float | None = None, **call: Any) -> None:
    """Book a call of a turn, at a time of its own."""
    made = model_call(call.pop("usage", USAGE), **call)
    store.run(spending.book, current.lease.conversation, current.id, current.sender, [made])
    if at is not None:
        newest = max(row.id for row in store.rows(table))
        store.run(lambda conn: conn.execute(table.update().where(table.c.id == newest), {"at": at}))


def finish(store: Store, current: Turn, outcome: str) -> None:
    end = TurnEnd(outcome, model_call(USAGE))
    store.run(turn_journal.commit, current, [assistant_message("ok")], parts(current), end)


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn of telegram:42 that has not asked a model yet."""
    return store.run(turn_of, "What is it?")


def test_sums_add_up_every_kind_of_token(store: Store, current: Turn) -> None:
    """Calls without a report count as calls of unknown cost."""
    book(store, current, cost_usd=0.25)
    book(store, current, cost_usd=0.5, purpose="summary")
    book(store, current, usage=None)
    here = (current.lease.conversation, current.session.id)
    assert store.run(usage.report, *here).last_turn == Spent(
        3, USAGE + USAGE, 0.75, unknown_calls=1
    )


def test_a_sum_is_estimated_if_any_part_of_it_is(store: Store, current: Turn) -> None:
    """What has no price makes no amount an estimate."""
    book(store, current, cost_usd=0.25)
    book(store, current, cost_usd=None, estimated=True)
    assert store.run(spending.total, Where()).estimated_calls == 0
    book(store, current, cost_usd=0.25, estimated=True, purpose="lost")
    found = store.run(spending.total, Where())
    assert (found.usd, found.unknown_calls, found.estimated_calls) == (0.5, 1, 1)
    assert found.cost == "~$0.50 + 1 call of unknown price"


def test_the_hit_ratio_is_the_share_that_was_read_from_the_cache() -> None:
    """Of all that was read; nothing read is no ratio, not 0."""
    assert Spent(1, USAGE).hit_ratio == 300 / 445
    assert Spent(1, Usage(output_tokens=9)).hit_ratio is None


def test_a_sender_is_counted_in_all_conversations(store: Store, current: Turn) -> None:
    """From a moment on; nobody else is."""
    book(store, current, at=900)
    book(store, current, at=1800)
    book(store, store.run(turn_of, "hi", chat="43"), at=1800)
    assert store.run(spending.total, Where(900.0, sender=ADA)).calls == 2
    assert store.run(spending.total, Where(1800.0, sender=ADA)).calls == 1
    assert store.run(spending.total, Where(sender="telegram:44")) == Spent()


def test_a_conversation_is_told_by_model(store: Store, current: Turn) -> None:
    """The dearest first, since a point in time."""
    book(store, current, at=100, model="old", cost_usd=9.0)
    book(store, current, at=200, model="small", cost_usd=0.1)
    book(store, current, at=200, model="large", cost_usd=1.0)
    book(store, store.run(turn_of, "hi", chat="43"), at=200, model="other")
    here = (current.lease.conversation, current.session.id)
    found = store.run(usage.insights, here[0], 150.0, ())
    assert [(name, spent.usd) for name, spent in found.models.items()] == [
        ("large", 1.0),
        ("small", 0.1),
    ]
    assert len(store.run(usage.report, *here).models) == 3


def test_turns_are_told_by_how_they_ended(store: Store, current: Turn) -> None:
    """The most frequent first, with what they took; a turn that runs is one that is running."""
    for outcome in ("final_text", "partial", "final_text"):
        book(store, current)
        finish(store, current, outcome)
        store.run(admit, inbound("And then?"))
        current = store.run(begin_turn, current.lease)
    assert ended(store, 0.0) == [("final_text", 2, 4), ("partial", 1, 2), ("running", 1, 0)]


def ended(store: Store, since: float) -> list[tuple[str, int, int]]:
    """Return how turns ended, how many, and how many calls they made."""
    found = store.run(usage.by_outcome, since)
    return [(name, turns, spent.calls) for name, (turns, spent) in found.items()]


def test_what_no_turn_has_done_is_told_last(store: Store, current: Turn) -> None:
    """So that sums are the same whatever calls are grouped by."""
    book(store, current, at=200)
    for call in (model_call(USAGE), model_call(USAGE)):
        store.run(spending.book, current.lease.conversation, None, ADA, [call])
    assert ended(store, 100.0) == [("running", 1, 1), (spending.BACKGROUND, 0, 2)]
    found = store.run(usage.by_outcome, 100.0).values()
    assert sum((spent for _, spent in found), Spent()) == store.run(spending.total, Where())


def test_a_turn_counts_with_its_calls_since(store: Store, current: Turn) -> None:
    """One that began before and went on is told by what it did then."""
    store.run(lambda conn: conn.execute(turn.update().values(started_at=100)))
    book(store, current, at=150)
    book(store, current, at=250)
    assert ended(store, 200.0) == [("running", 1, 1)]


def test_turns_of_before_and_since_count_once_each(store: Store, current: Turn) -> None:
    """However many calls they made; they share a line where they ended the same way."""
    store.run(lambda conn: conn.execute(turn.update().values(started_at=100)))
    for at in (250, 260):
        book(store, current, at=at)
    book(store, store.run(turn_of, "hi", chat="43"), at=270)
    assert ended(store, 200.0) == [("running", 2, 3)]


def test_outcomes_of_before_do_not_count(store: Store, current: Turn) -> None:
    """By when a turn began."""
    store.run(lambda conn: conn.execute(turn.update().values(started_at=100)))
    assert ended(store, 101.0) == []
    assert len(ended(store, 100.0)) == 1


def book_calls(store: Store, current: Turn, *usages: Usage | None, **call: Any) -> None:
    """Book calls of a turn."""
    calls = [model_call(usage, **call) for usage in usages]
    store.run(spending.book, current.lease.conversation, current.id, current.sender, calls)


def recent(store: Store, current: Turn) -> list[Call]:
    return store.run(spending.recent_answers, current.lease.conversation)


def before(store: Store, current: Turn) -> list[int]:
    """Return the prompts before the answers that count."""
    here = current.lease.conversation
    return [
        row.before_tokens
        for row in store.rows(table)
        if row.conversation == here and row.purpose == "answer" and not row.estimated
    ]


def least(store: Store, current: Turn, facts: ModelFacts = CLAUDE) -> Spent:
    """Compare the newest answers of a conversation."""
    where = Where(conversation=current.lease.conversation, newest=RECENT_CALLS)
    return compared(store, where, lambda _: CachePrices.of(facts))


def test_answers_have_the_prompt_before_them(store: Store, current: Turn) -> None:
    """All kinds of tokens but output; the first has none."""
    book_calls(store, current, Usage(100, 20, 300, 40, 5), Usage(500), Usage(700))
    assert before(store, current) == [0, 445, 500]


def test_each_model_has_a_cache_of_its_own(store: Store, current: Turn) -> None:
    """A fallback reads nothing of what the main model wrote; nor does another provider's."""
    for provider, model in (("a", "m"), ("a", "n"), ("b", "m"), ("a", "m")):
        book_calls(store, current, Usage(500), provider=provider, model=model)
    assert before(store, current) == [0, 0, 0, 500]


def test_only_reported_answers_count(store: Store, current: Turn) -> None:
    """Summaries have prompts of their own; sizes that Parley counted prove nothing."""
    book_calls(store, current, Usage(500))
    book_calls(store, current, Usage(1), purpose="summary")
    book_calls(store, current, Usage(2), purpose="lost")
    book_calls(store, current, Usage(3), estimated=True)
    book_calls(store, current, None)
    book_calls(store, current, Usage(600))
    assert before(store, current) == [0, 500]


def test_conversations_share_no_prompt(store: Store, current: Turn) -> None:
    """What another one has sent stands before nothing here."""
    other = store.run(turn_of, "hi", chat="43")
    book_calls(store, current, Usage(500))
    book_calls(store, other, Usage(900))
    book_calls(store, current, Usage(600))
    assert before(store, current) == [0, 500]


def test_the_newest_calls_are_enough(store: Store, current: Turn) -> None:
    """In order; the one before the oldest of them is known."""
    book_calls(store, current, *(Usage(n) for n in range(1, RECENT_CALLS + 3)))
    found = recent(store, current)
    assert [answer.usage.input_tokens for answer in found] == list(range(3, RECENT_CALLS + 3))
    assert least(store, current).compared_calls == RECENT_CALLS


def test_a_conversation_that_reads_what_it_wrote_pays_the_least(
    store: Store, current: Turn
) -> None:
    """Answers are not part of it."""
    book_calls(store, current, WRITTEN, READ + Usage(output_tokens=900, cache_write_5m_tokens=100))
    found = least(store, current)
    assert found.compared_calls == 2
    assert found.billed_usd == found.least_usd == pytest.approx(0.013625)


def test_nothing_is_billed_below_the_least(store: Store, current: Turn) -> None:
    """A single call is cheaper where nothing of it is written."""
    book_calls(store, current, Usage(10_000))
    found = least(store, current)
    assert found.billed_usd < found.least_usd
    assert found.least_ratio == 1.0


def test_what_was_written_again_is_above_the_least(store: Store, current: Turn) -> None:
    """A cache that has died, or whose prefix has moved."""
    book_calls(store, current, WRITTEN, WRITTEN)
    assert least(store, current).least_ratio == pytest.approx(2.5 / 1.35)


def test_a_claude_without_cache_figures_is_compared(store: Store, current: Turn) -> None:
    """It takes breakpoints; another model may have no cache at all."""
    book_calls(store, current, Usage(10_000), Usage(10_000))
    assert least(store, current).least_ratio == pytest.approx(2.0 / 1.35)
    assert least(store, current, OTHER).compared_calls == 0
    book_calls(store, current, READ)
    assert least(store, current, OTHER).least_ratio == pytest.approx(2.1 / 1.2)


def test_free_and_unknown_models_are_left_out(store: Store, current: Turn) -> None:
    """There is no least of nothing."""
    book_calls(store, current, WRITTEN, WRITTEN)
    for facts in (ModelFacts("claude-x", prices=FREE), ModelFacts("claude-x")):
        found = least(store, current, facts)
        assert (found.compared_calls, found.least_ratio) == (0, None)


def test_the_minimum_prefix_is_that_of_the_model(store: Store, current: Turn) -> None:
    """Nothing below it could have been cached."""
    book_calls(store, current, Usage(10_000), Usage(10_000))
    rates = CachePrices(CacheRules(min_tokens=10_001), PRICES)
    where = Where(conversation=current.lease.conversation)
    assert compared(store, where, lambda _: rates).least_ratio == 1.0


def test_the_sums_of_days_by_model_and_of_senders_are_those_of_all(store: Store) -> None:
    """A day without calls has none; what counts for nobody has no name."""
    current = store.run(turn_of, "one", chat="a")
    here = current.lease.conversation
    for sender, model, usd, at in (
        ("telegram:1", "claude", 0.5, 1_000.0),
        ("slack:U:2", "gpt", 0.25, 1_000.0),
        ("", "claude", 0.125, 90_000.0),
    ):
        call = model_call(Usage(10, 5), model=model, cost_usd=usd, id=f"{sender}{at}")
        store.run(spending.append, here, None, sender, [call])
        store.run(_date, f"{sender}{at}", at)
    days = (Where(0.0, 86_400.0), Where(86_400.0, 172_800.0), Where(172_800.0, 2e5))
    found = [store.run(spending.spent, "provider_model", day) for day in days]
    assert [{name: spent.usd for name, spent in each.items()} for each in found] == [
        {"anthropic/claude": 0.5, "anthropic/gpt": 0.25},
        {"anthropic/claude": 0.125},
        {},
    ]
    senders = store.run(spending.spent, "sender", Where())
    assert {name: spent.usd for name, spent in senders.items()} == {
        "telegram:1": 0.5,
        "slack:U:2": 0.25,
        "?": 0.125,
    }
    assert sum(senders.values(), Spent()).usage == Usage(30, 15)


def _date(conn: Connection, call_id: str, at: float) -> None:
    conn.execute(table.update().where(table.c.call_id == call_id).values(at=at))


OF_CALL = Usage(100, 20, 30, 4, 5)
LOST = model_call(OF_CALL, purpose="lost", estimated=True, cost_usd=0.25)
SUMMARY = model_call(OF_CALL, purpose="summary", model="small", cost_usd=0.125)


def booked(store: Store, current: Turn, *calls: ModelCall) -> None:
    store.run(spending.book, current.lease.conversation, current.id, current.sender, calls)


def think(store: Store, current: Turn, call: ModelCall) -> None:
    store.run(turn_journal.record_message, current, assistant_message("part"), call)


def closed(store: Store, current: Turn, call: ModelCall | None) -> Totals:
    end = TurnEnd("final_text", call)
    said = [assistant_message("hi")]
    return store.run(turn_journal.commit, current, said, parts(current), end)


def purposes(store: Store) -> list[str]:
    return [row.purpose for row in store.rows(ledger)]


def test_an_entry_holds_everything_about_a_call(store: Store, current: Turn) -> None:
    """Whose it was, who answered, what was read and written, and what it cost."""
    booked(store, current, model_call(OF_CALL, reported_name="model-1-2026"))
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
    booked(store, current, LOST, SUMMARY)
    assert [row.estimated for row in store.rows(ledger)] == [True, False]
    assert purposes(store) == ["lost", "summary"]


def test_a_call_of_unknown_usage_is_of_unknown_cost(store: Store, current: Turn) -> None:
    """It has an entry, without tokens and without a price: never 0 dollars."""
    booked(store, current, model_call(None, cost_usd=0.0))
    row = store.one(ledger)
    assert (row.input_tokens, row.output_tokens, row.estimated, row.usd) == (0, 0, True, None)


def test_an_unknown_price_is_no_price(store: Store, current: Turn) -> None:
    """Tokens are on record all the same."""
    booked(store, current, model_call(OF_CALL, cost_usd=None))
    row = store.one(ledger)
    assert (row.input_tokens, row.estimated, row.usd) == (100, False, None)


def test_no_calls_no_entries(store: Store, current: Turn) -> None:
    """Nothing is written."""
    booked(store, current)
    assert store.rows(ledger) == []


def test_what_was_spent_is_booked_without_a_lease(store: Store, current: Turn) -> None:
    """Another process has the conversation; the money is gone all the same."""
    store.run(leases.reap_others, store.run(leases.register, "heir"))
    booked(store, current, LOST)
    assert purposes(store) == ["lost"]


def test_what_was_spent_is_booked_once(store: Store, current: Turn) -> None:
    """A write whose answer was lost is repeated, with what has come since."""
    first, second = model_call(Usage(10)), model_call(Usage(20))
    booked(store, current, first)
    booked(store, current, first, second)
    assert [row.input_tokens for row in store.rows(ledger)] == [10, 20]


def test_an_erased_conversation_is_booked_no_more(store: Store, current: Turn) -> None:
    """Its calls end after `parley forget`: there is nothing left that they belong to."""
    think(store, current, model_call(OF_CALL))
    store.run(forget, current.lease.conversation)
    booked(store, current, LOST)
    assert store.rows(ledger) == []


def spend(store: Store, current: Turn, at: float, sender: str, usd: float | None) -> None:
    """Book a call of a certain moment."""
    before = {row.id for row in store.rows(ledger)}
    calls = [model_call(OF_CALL, cost_usd=usd)]
    store.run(spending.book, current.lease.conversation, current.id, sender, calls)
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
    think(store, current, model_call(OF_CALL))
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
    think(store, current, model_call(OF_CALL))
    booked(store, current, LOST, SUMMARY)
    totals = closed(store, current, model_call(OF_CALL))
    assert (totals.iterations, totals.tool_calls) == (2, 1)
    assert (totals.input_tokens, totals.output_tokens) == (400, 80)
    assert (totals.cache_read_tokens, totals.cache_write_tokens) == (120, 36)
    assert (totals.usd, totals.estimated) == (1.375, True)
    row = store.one(turn)
    assert (row.usd, row.iterations, row.input_tokens) == (1.375, 2, 400)
    assert row.cache_write_tokens == 36


def test_a_turn_of_one_unknown_price_is_of_unknown_cost(store: Store, current: Turn) -> None:
    """A sum that leaves something out would be a wrong one."""
    think(store, current, model_call(OF_CALL, cost_usd=None))
    totals = closed(store, current, model_call(OF_CALL))
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
    closed(store, current, model_call(OF_CALL))
    store.run(admit, inbound("again"))
    second = store.run(begin_turn, current.lease)
    assert closed(store, second, LOST).usd == 0.25


def test_the_newest_turn_that_a_model_answered(store: Store, current: Turn) -> None:
    """A lost call, a summary or another model's answer is none; a choice counts for all models."""

    def newest() -> int:
        place = current.lease.conversation
        return store.run(spending.chosen_or_answered, place, "anthropic", "model-1")

    booked(store, current, LOST, SUMMARY, model_call(OF_CALL, model="other"))
    assert newest() == 0
    closed(store, current, model_call(OF_CALL))
    assert newest() == current.id
    store.run(admit, inbound("again"))
    second = store.run(begin_turn, current.lease)
    store.run(turn_journal.commit, second, [], parts(second), TurnEnd("model_chosen"))
    assert newest() == second.id


def test_a_commit_is_booked_once(store: Store, current: Turn) -> None:
    """Repeating it has no effect, and tells the same."""
    first = closed(store, current, model_call(OF_CALL))
    assert closed(store, current, model_call(OF_CALL)) == first
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
    closed(store, current, LOST)
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
    think(store, current, model_call(OF_CALL, model="first"))
    think(store, current, model_call(OF_CALL, model="then"))
    booked(store, current, SUMMARY)
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
