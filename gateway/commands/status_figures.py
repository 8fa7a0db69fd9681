"""What `/status`, `/usage`, the page's gauge and the start say about a model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import structlog

from agent.context.meter import TokenMeter
from agent.context_engine import ContextEngine, Limits
from agent.messages import ChatMessage
from agent.models.factory import choices
from agent.turn.state import Agent
from gateway.commands.registry import StatusFacts, crowding_text
from gateway.context.prompts import Prompts
from gateway.context.window import ContextParts

log = structlog.get_logger()

KNOWN = 32
"""Models, each with a window that may shrink, whose figures are kept."""


def status_facts(
    agent: Agent, context: ContextParts, prompts: Prompts
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
        return replace(within(chosen, limits), chosen=chosen is not None)

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
    return tokens if isinstance(tokens, int) else None


def start_warnings(missing_guards: Sequence[str], model: StatusFacts) -> tuple[str, ...]:
    """Return what is said at the start about what does not work as it may have been meant.

    Args:
        missing_guards: Plugins that are not there and may have been there to forbid calls.
        model: Figures of the default model.
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
