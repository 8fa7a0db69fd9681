"""How close the bill for prompts came to the least possible, from the ledger alone.

`/usage` asks while a message is admitted; `parley usage` has sums
(gateway/storage/reports/costs.py). The sizes stand in the ledger, the rules in the billing
simulator.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from agent.models.catalog import ModelFacts
from agent.money.cache_simulator import CacheRules, least_after
from agent.money.costs import cost_usd
from agent.usage import Prices, Usage
from gateway.storage.reports.ledger import Compared, usage_in
from gateway.storage.schema import ledger
from gateway.storage.statements import built_once

RECENT_CALLS = 200
"""So many calls of a conversation `/usage` compares with the least they could have cost."""


class CachePrices(NamedTuple):
    """What decides about the least that the prompts of a model can cost; output is free here."""

    rules: CacheRules
    prices: Prices

    @classmethod
    def of(cls, facts: ModelFacts) -> "CachePrices | None":
        """Return those of a model; None where a prompt costs nothing or nobody knows what."""
        if facts.prices is None or not facts.prices.input:
            return None
        return cls(CacheRules.of(facts), replace(facts.prices, output=0.0))

    def compared(self, calls: int, billed: Usage, least: Usage) -> Compared:
        """Return what calls were billed and the least, both at this price list."""
        billed_usd, least_usd = (cost_usd(usage, self.prices) for usage in (billed, least))
        return Compared(calls, billed_usd or 0.0, least_usd or 0.0)


Rates = Callable[[str], CachePrices | None]
"""What is known of a model by its name."""


class BilledAnswer(NamedTuple):
    """A call for a step of a turn, as the provider reported it.

    Attributes:
        model: As booked; with `provider` it names a cache.
        before_tokens: The prompt of the call before it in that cache; 0 for none.
    """

    provider: str
    model: str
    usage: Usage
    before_tokens: int

    @property
    def cache(self) -> tuple[str, str]:
        """Whose cache it is, as far as there is one."""
        return self.provider, self.model


def recent_answers(conn: Connection, conversation_id: int) -> list[BilledAnswer]:
    """Return the newest calls of a conversation, `RECENT_CALLS` at most, in order."""
    rows = conn.execute(*_recent_answers(conversation_id))
    return [BilledAnswer(row.provider, row.model, usage_in(row), row.before_tokens) for row in rows]


@built_once
def _recent_answers(conversation_id: int) -> Any:
    newest = (
        select(ledger)
        .where(
            ledger.c.conversation == conversation_id,
            ledger.c.purpose == "answer",
            ledger.c.estimated.is_(False),
        )
        # In the order of an index, which ends at the limit: no other call is read.
        .order_by(ledger.c.turn_id.desc(), ledger.c.id.desc())
        .limit(RECENT_CALLS)
        .subquery("reported")
    )
    return select(newest).order_by(newest.c.id)


def compare(answers: Sequence[BilledAnswer], rates: Rates) -> Compared:
    """Return what the prompts were billed and the least, each at the price list of its model.

    Left out are models without rates, and those that take no breakpoints and have reported
    nothing of a cache: they may have none.

    Args:
        answers: In order.
        rates: What is known of a model by its name.
    """
    by_model = {name: rates(name) for name in {answer.model for answer in answers}}
    cached = {each.cache for each in answers if each.usage.prompt_tokens > each.usage.input_tokens}
    found = Compared()
    for answer in answers:
        known = by_model[answer.model]
        if known and (known.rules.marked or answer.cache in cached):
            least = least_after(answer.before_tokens, answer.usage, known.rules)
            found += known.compared(1, answer.usage, least)
    return found
