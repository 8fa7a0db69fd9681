"""What `/status`, `/usage`, the page's gauge and the start say about a model and its prices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf

import structlog

from agent.context.meter import TokenMeter
from agent.context_engine import ContextEngine, Limits
from agent.messages import ChatMessage
from agent.models.catalog import facts_of
from agent.models.factory import choices
from agent.money.cache_simulator import CacheRules
from agent.safety.redaction import printable
from agent.settings import FactsSettings
from agent.turn.state import Agent
from agent.usage import Prices
from gateway.context.prompts import Prompts
from gateway.context.window import ContextParts, standing, summaries_text
from gateway.storage.reports.spending import CachePrices, Spent
from gateway.storage.reports.usage import ContextFill

log = structlog.get_logger()

KNOWN = 32
"""Models, each with a window that may shrink, whose figures are kept."""


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """What `/status` and `/usage` say about the model and its context engine, as it is now.

    Attributes:
        window_tokens: Of the main model; a provider may turn out to give the account less of it.
        threshold_tokens: Where compression fires; None where it is switched off, or the engine
            does not tell.
        fixed_tokens: Estimate of system prompt and tool schemas.
        chosen: Whether it was chosen for the conversation, with `/model`.
        gone: What was chosen and is no longer configured; empty for nothing.
        compresses: Whether the view is compacted at all (`compression.enabled`).
        summaries: Who writes summaries, with their windows and whether they rest.
        tools_off: Why enabled tools are off; empty if none is.
    """

    name: str
    window_tokens: int
    threshold_tokens: int | None
    engine: str
    fixed_tokens: int
    chosen: bool = False
    gone: str = ""
    compresses: bool = True
    summaries: str = ""
    tools_off: str = ""


@dataclass(frozen=True, slots=True)
class MoneyRules:
    """What is known about money beside the ledger.

    Attributes:
        prices: Of the models in use, by the name under which their calls are booked.
        rules: Of their prompt caches, where those of the table do not hold.
        sender_daily_usd: What a sender may spend in a day; None for no limit.
        daily_usd: What all together may spend; that amount is not shown.
    """

    prices: Mapping[str, Prices] = field(default_factory=dict)
    rules: Mapping[str, CacheRules] = field(default_factory=dict)
    sender_daily_usd: float | None = None
    daily_usd: float | None = None
    timezone: str = "UTC"

    def rates(self, name: str) -> CachePrices | None:
        """Return what decides about the least that a model can cost; None for not known."""
        facts = replace(facts_of(name, FactsSettings()), prices=self.prices.get(name))
        known = CachePrices.of(facts)
        return known and known._replace(rules=self.rules.get(name, known.rules))


def status_facts(
    agent: Agent, context: ContextParts, prompts: Prompts, tools_off: str
) -> Callable[[str | None], StatusFacts]:
    """Return what tells the figures of a chosen model, None for the default, as they are now."""
    known = choices(agent.models)

    @lru_cache(maxsize=KNOWN)
    def within(chosen: str | None, limits: Limits) -> StatusFacts:
        return _facts(agent.preferring(chosen), context, prompts, limits)

    def facts(chosen: str | None) -> StatusFacts:
        if chosen is not None and chosen not in known:
            return replace(facts(None), gone=chosen)
        limits = context.limits_for(agent.preferring(chosen))
        summaries = summaries_text(standing(context.summariser))
        return replace(
            within(chosen, limits),
            chosen=chosen is not None,
            summaries=printable(summaries),
            tools_off=tools_off,
        )

    return facts


def _facts(agent: Agent, context: ContextParts, prompts: Prompts, limits: Limits) -> StatusFacts:
    model = agent.models[0]
    # What a conversation's own prompt adds, its first report tells.
    prompt = ChatMessage(role="system", content=prompts.typical(agent).text)
    engine = context.make_engine(limits)
    return StatusFacts(
        name=model.name,
        window_tokens=limits.context_length,
        threshold_tokens=_fires_at(engine) if context.enabled else None,
        engine=engine.name,
        fixed_tokens=TokenMeter(model.name, agent.tools.schemas).fixed_tokens(prompt),
        compresses=context.enabled,
    )


def _fires_at(engine: ContextEngine) -> int | None:
    """Return where an engine compresses, if it tells."""
    tokens = engine.get_status().get("threshold_tokens")
    if isinstance(tokens, int | float) and tokens is not True and 1 <= tokens < inf:
        return int(tokens)
    return None


def start_warnings(missing_guards: Sequence[str], model: StatusFacts) -> tuple[str, ...]:
    """Return what is said at the start about what does not work as it may have been meant.

    Args:
        missing_guards: Plugins that are not there and may have been there to forbid calls.
    """
    found = [
        f"The plugin {name} could not be loaded (`parley logs --event plugin_unavailable`): tools"
        " that touch the world are refused until it is, or is taken out of plugins.enabled"
        for name in missing_guards
    ]
    if crowded := crowding_text(model):
        log.warning(
            "prompt_leaves_little_room",
            model=model.name,
            fixed_tokens=model.fixed_tokens,
            window_tokens=model.window_tokens,
        )
        found.append(f"Prompt and tools: {crowded}; fewer tools or a larger window help")
    return tuple(found)


def context_text(standing: ContextFill, model: StatusFacts) -> str:
    """Return how full the window is."""
    tokens, source = standing.tokens, standing.source
    share = tokens / model.window_tokens
    return f"{tokens:,} of {model.window_tokens:,} tokens ({share:.0%}), {source}"


def crowding_text(model: StatusFacts) -> str | None:
    """Say that what every request begins with leaves little room; None where it leaves enough."""
    room_tokens = model.threshold_tokens or model.window_tokens
    if model.fixed_tokens * 2 <= room_tokens:
        return None
    return f"{model.fixed_tokens:,} of {room_tokens:,} tokens, which leaves little room"


def firing_text(model: StatusFacts) -> str:
    """Return from where on the view is compacted."""
    if not model.compresses:
        return f"switched off (engine {model.engine})"
    if model.threshold_tokens is None:
        return f"when the engine {model.engine} asks for it"
    return f"from {model.threshold_tokens:,} tokens on (engine {model.engine})"


def outcome_text(outcome: str) -> str:
    """Return how a turn ended, in words."""
    return _ENDINGS.get(outcome, outcome).replace("_", " ")


_ENDINGS = {
    "final_text": "answered",
    "provider_failed": "no model answered",
    "spend_limit": "budget used up",
}


def tokens_text(spent: Spent) -> str:
    """Return the tokens of calls, and how many of them came from the prompt cache."""
    usage = spent.usage
    written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
    kinds = [f"{usage.cache_read_tokens:,} from the cache ({spent.hit_ratio or 0:.0%})"]
    if written:
        kinds.append(f"{written:,} into it")
    return f"{usage.prompt_tokens:,} tokens in, {', '.join(kinds)}; {usage.output_tokens:,} out"
