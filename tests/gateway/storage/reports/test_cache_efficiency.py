"""How close bills came to the least possible, from real rows of the ledger."""

from typing import Any

import pytest

from agent.models.catalog import ModelFacts
from agent.money.cache_simulator import CacheRules
from agent.usage import FREE, Prices, Usage
from gateway.storage.conversation.turns import Turn
from gateway.storage.reports import cache_efficiency, ledger
from gateway.storage.reports.cache_efficiency import RECENT_CALLS, BilledAnswer, CachePrices
from gateway.storage.reports.ledger import Compared
from tests.support.storage import Store, model_call, turn_of

PRICES = Prices(1.0, 1.25, 2.0, 0.1, 5.0)
CLAUDE = ModelFacts("claude-test", prices=PRICES)
OTHER = ModelFacts("other", prices=PRICES)
WRITTEN = Usage(cache_write_5m_tokens=10_000)
READ = Usage(cache_read_tokens=10_000)


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that has not asked a model yet."""
    return store.run(turn_of, "What is it?")


def book(store: Store, current: Turn, *usages: Usage | None, **call: Any) -> None:
    """Book calls of a turn."""
    calls = [model_call(usage, **call) for usage in usages]
    store.run(ledger.book, current.lease.conversation, current.id, current.sender, calls)


def recent(store: Store, current: Turn) -> list[BilledAnswer]:
    return store.run(cache_efficiency.recent_answers, current.lease.conversation)


def before(answers: list[BilledAnswer]) -> list[int]:
    return [answer.before_tokens for answer in answers]


def compared(store: Store, current: Turn, facts: ModelFacts = CLAUDE) -> Compared:
    return cache_efficiency.compare(recent(store, current), lambda _: CachePrices.of(facts))


def test_answers_have_the_prompt_before_them(store: Store, current: Turn) -> None:
    """All kinds of tokens but output; the first has none."""
    book(store, current, Usage(100, 20, 300, 40, 5), Usage(500), Usage(700))
    assert before(recent(store, current)) == [0, 445, 500]


def test_each_model_has_a_cache_of_its_own(store: Store, current: Turn) -> None:
    """A fallback reads nothing of what the main model wrote; nor does another provider's."""
    for provider, model in (("a", "m"), ("a", "n"), ("b", "m"), ("a", "m")):
        book(store, current, Usage(500), provider=provider, model=model)
    assert before(recent(store, current)) == [0, 0, 0, 500]


def test_only_reported_answers_count(store: Store, current: Turn) -> None:
    """Summaries have prompts of their own; sizes that Parley counted prove nothing."""
    book(store, current, Usage(500))
    book(store, current, Usage(1), purpose="summary")
    book(store, current, Usage(2), purpose="lost")
    book(store, current, Usage(3), estimated=True)
    book(store, current, None)
    book(store, current, Usage(600))
    assert before(recent(store, current)) == [0, 500]


def test_conversations_share_no_prompt(store: Store, current: Turn) -> None:
    """What another one has sent stands before nothing here."""
    other = store.run(turn_of, "hi", chat="43")
    book(store, current, Usage(500))
    book(store, other, Usage(900))
    book(store, current, Usage(600))
    assert before(recent(store, current)) == [0, 500]


def test_the_newest_calls_are_enough(store: Store, current: Turn) -> None:
    """In order; the one before the oldest of them is known."""
    book(store, current, *(Usage(n) for n in range(1, RECENT_CALLS + 3)))
    found = recent(store, current)
    assert [answer.usage.input_tokens for answer in found] == list(range(3, RECENT_CALLS + 3))
    assert found[0].before_tokens == 2


def test_a_conversation_that_reads_what_it_wrote_pays_the_least(
    store: Store, current: Turn
) -> None:
    """Answers are not part of it."""
    book(store, current, WRITTEN, READ + Usage(output_tokens=900, cache_write_5m_tokens=100))
    found = compared(store, current)
    assert found.calls == 2
    assert found.billed_usd == found.least_usd == pytest.approx(0.013625)


def test_nothing_is_billed_below_the_least(store: Store, current: Turn) -> None:
    """A single call is cheaper where nothing of it is written."""
    book(store, current, Usage(10_000))
    found = compared(store, current)
    assert found.billed_usd < found.least_usd
    assert found.ratio == 1.0


def test_what_was_written_again_is_above_the_least(store: Store, current: Turn) -> None:
    """A cache that has died, or whose prefix has moved."""
    book(store, current, WRITTEN, WRITTEN)
    assert compared(store, current).ratio == pytest.approx(2.5 / 1.35)


def test_a_claude_without_cache_figures_is_compared(store: Store, current: Turn) -> None:
    """It takes breakpoints; another model may have no cache at all."""
    book(store, current, Usage(10_000), Usage(10_000))
    assert compared(store, current).ratio == pytest.approx(2.0 / 1.35)
    assert compared(store, current, OTHER) == Compared()
    book(store, current, READ)
    assert compared(store, current, OTHER).ratio == pytest.approx(2.1 / 1.2)


def test_free_and_unknown_models_are_left_out(store: Store, current: Turn) -> None:
    """There is no least of nothing."""
    book(store, current, WRITTEN, WRITTEN)
    assert compared(store, current, ModelFacts("claude-x", prices=FREE)) == Compared()
    assert compared(store, current, ModelFacts("claude-x")) == Compared()
    assert Compared().ratio is None


def test_the_minimum_prefix_is_that_of_the_model(store: Store, current: Turn) -> None:
    """Nothing below it could have been cached."""
    book(store, current, Usage(10_000), Usage(10_000))
    rates = CachePrices(CacheRules(min_tokens=10_001), PRICES)
    assert cache_efficiency.compare(recent(store, current), lambda _: rates).ratio == 1.0
