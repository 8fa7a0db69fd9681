"""Whether models answer, how much they hold, and what is left of the money."""

import math
from collections.abc import Iterator

from agent.context.summary_model import LEAST_WINDOW_TOKENS
from agent.errors import CredentialsRefused, CreditUsedUp, ModelNotFound
from agent.models.catalog import find_facts
from agent.models.openai.mode import PARSER_OFF, known_modes
from agent.models.recovery import Failing
from agent.money.costs import format_usd
from agent.network import in_words
from gateway.access.web_door import called
from gateway.agent_ports.budgets import BudgetUse
from gateway.findings.database import minutes
from gateway.findings.finding import Evidence, Finding, Level, Sight, Unsure

OFFLINE = "offline"
SMALL_TOKENS, SMALL_SHARE = 16_000, 0.25
"""A small window in tokens, and a small share of the model's maximum."""
LARGEST_OUTPUT_SHARE = 0.5
FAILING_S, LEAST_FAILURES = 300.0, 2


@Finding("model-real", page="setup")
def _real(facts: Evidence) -> Iterator[Sight]:
    """A real model answers.

    Why: The offline model is for trying Parley out; it understands nothing.
    Remedy: Set `model.provider` and its key, or ANTHROPIC_API_KEY or OPENAI_API_KEY.
    """
    if facts.line and facts.line[0].models[0].provider == OFFLINE:
        yield Sight("the offline model answers")


@Finding("key-refused", level="error", needs="answers", page="setup", told=True)
def _refused(facts: Evidence) -> Iterator[Sight | Unsure]:
    """Providers accept each key.

    Why: Otherwise turns fail, or cost what a fallback costs.
    Remedy: Put a valid key into parley.yaml, which is read again when it is saved; one that is kept
    elsewhere is read again by `parley config reload --secrets`.
    Text: the provider refuses the key of {subject}: {reason}; {instead}
    Over: the provider no longer refuses the key of {subject}
    """
    yield from _asked(facts, "refused")
    for each in _of_models(facts, "key-refused"):
        # A key that is accepted is not refused, whatever else its model lacks.
        if isinstance(each, Sight) or each.subject not in facts.gateway.models.accepted:
            yield each


@Finding("money-gone", level="error", needs="answers", page="setup", told=True)
def _broke(facts: Evidence) -> Iterator[Sight | Unsure]:
    """The account behind each key has credit.

    Why: Otherwise turns fail, or cost what a fallback costs.
    Remedy: Add credit at the provider, or put another key into the settings.
    Text: the account behind {subject} has no credit left: {reason}
    Over: {subject} is no longer refused for lack of credit
    """
    yield from _asked(facts, "no_credit")
    yield from _of_models(facts, "money-gone")


@Finding("model-failing", level="error", needs="answers", page="log?level=warning", told=True)
def _failing(facts: Evidence) -> Iterator[Sight | Unsure]:
    """Each model answers.

    Why: Otherwise turns fail, or cost what a fallback costs.
    Remedy: A model that is not found has another name, or its provider has withdrawn it: correct
    `model.name`, or the fallback's `name`. Where the reason names another setting, correct that.
    Else look at the provider's status page, and name another model below `fallbacks`.
    Text: {subject} has failed {lasting}: {reason}
    Over: {subject} answers again
    """
    yield from _asked(facts, "unreachable", "warning")
    yield from _of_models(facts, "model-failing")


def _asked(facts: Evidence, outcome: str, level: Level | None = None) -> Iterator[Sight]:
    for each in facts.keys:
        if each.outcome == outcome:
            yield Sight(each.subject, level=level, text=f"{each.subject}: {each.text}")


def _kind_of(failing: Failing) -> str:
    """Return the finding for a model's failure, or "" while it may be temporary."""
    match failing.failure:
        case CreditUsedUp():
            return "money-gone"
        case CredentialsRefused():
            return "key-refused"
        case ModelNotFound():
            return "model-failing"
    lasts = failing.times >= LEAST_FAILURES and failing.for_s >= FAILING_S
    return "model-failing" if lasts else ""


def _of_models(facts: Evidence, wanted: str) -> Iterator[Sight | Unsure]:
    models = facts.gateway.models
    for label in sorted(models.configured):
        failing = models.failing.get(label)
        kind = _kind_of(failing) if failing else ""
        if failing and kind == wanted:
            others = " or ".join(sorted(models.answered & models.line)) or "no other model"
            lasts = failing.for_s >= FAILING_S
            values = {
                "reason": str(failing.failure) or in_words(failing.failure),
                "instead": f"{others} answers instead",
                "lasting": f"for {minutes(failing.for_s)}" if lasts else "at once",
            }
            yield Sight(label, values, since_s=failing.for_s)
        elif label not in models.answered and kind not in {"key-refused", "money-gone"}:
            # Only an answer or a new verdict on key and credit ends it, not a temporary failure or
            # a restart.
            yield Unsure(label)


@Finding("model-window")
def _window(facts: Evidence) -> Iterator[Sight]:
    """Each model's window is known and holds a conversation.

    Why: System prompt, tools and one long answer fill a small one: each turn compacts. Too high a
    guess gets requests refused.
    Remedy: Set `context_length` to what the provider says, or remove it; lower `max_output_tokens`;
    else choose a model with a larger window, or fewer tools.
    """
    for block in facts.line:
        model, wanted = block.models[0], block.settings.context_length
        tokens, could = model.context_length, model.facts.context_length or 0
        table = find_facts(model.name)
        is_known = table is not None and table.context_length is not None
        if not (is_known or wanted or facts.asked or model.provider == OFFLINE):
            yield Sight(f"{model.name}: {tokens:,} tokens are taken, which nobody has said")
        if tokens < max(SMALL_TOKENS, could * SMALL_SHARE):
            more = f", as {block.place}.context_length says; without it {could:,}"
            is_set = wanted is not None and could > tokens
            yield Sight(f"{model.name} holds {tokens:,} tokens{more if is_set else ''}")
        if (output := block.settings.max_output_tokens) > tokens * LARGEST_OUTPUT_SHARE:
            yield Sight(f"{block.place}.max_output_tokens is {output:,} of a window of {tokens:,}")


@Finding("prompt-crowds", needs="gateway", at_start=True)
def _crowds(facts: Evidence) -> Iterator[Sight]:
    """Prompt and tools leave room for the conversation.

    Why: They are part of each request; with little room left each turn compacts.
    Remedy: Offer fewer tools, or choose a model with a larger window.
    Text: prompt and tools take {subject}
    """
    if facts.crowding:
        yield Sight(facts.crowding)


@Finding("server-modes", needs="gateway")
def _modes(facts: Evidence) -> Iterator[Sight]:
    """Model servers take requests as they are meant.

    Why: What a server refuses is left out: without tools the agent can do nothing, without a system
    prompt its instructions count less. With a smaller window than believed it gets shorter views,
    and summaries are written in parts.
    Remedy: Update the server, its chat template or its tool parser; set `context_length` to what it
    takes. What it takes again is found out within a day, or at once by a restart.
    """
    for mode in known_modes() if facts.live else ():
        server, quirks = mode.server, mode.learned
        if (tokens := mode.limit("window", None)) < math.inf:
            small: Level = "warning" if tokens < LEAST_WINDOW_TOKENS else "note"
            text = f"{server}: holds {tokens:,} tokens, as a refused request has shown"
            yield Sight(text, level=small)
        if PARSER_OFF in quirks:
            yield Sight(f"{server}: calls of tools come as text; its tool parser is off")
        if kept := sorted(quirks - {PARSER_OFF}):
            level: Level = "warning" if "no_tools" in quirks else "note"
            yield Sight(f"{server}: requests keep to {', '.join(kept)}", level=level)


@Finding("budget-low", needs="gateway", page="budgets", told=True)
def _low(facts: Evidence) -> Iterator[Sight]:
    """No budget of today is nearly spent.

    Why: Once it is used up nobody is answered until midnight.
    Remedy: `parley usage --by sender` shows who spends it; raise `budget.*` if that is as it should
    be.
    Text: {subject} has used {share} of today's budget ({used} of {limit}; {whose})
    """
    yield from _of_budgets(facts, is_used_up=False)


@Finding("budget-used-up", level="error", needs="gateway", page="budgets", told=True)
def _used_up(facts: Evidence) -> Iterator[Sight]:
    """There is money left for today.

    Why: Nobody is answered until midnight.
    Remedy: Wait, or raise `budget.*`; `parley usage --by sender` shows who spent it.
    Text: {subject} has used up today's budget ({used} of {limit}; {whose}); it resets at {until}
    Over: there is room in the budget of {subject} again
    """
    yield from _of_budgets(facts, is_used_up=True)


def _of_budgets(facts: Evidence, *, is_used_up: bool) -> Iterator[Sight]:
    for each in facts.gateway.budgets:
        if each.refuses == is_used_up:
            values = {
                "share": f"{each.share:.0%}",
                "used": format_usd(each.used_usd),
                "limit": format_usd(each.limit.usd),
                "until": f"{each.until:%H:%M} {each.until.tzinfo}",
                "whose": _whose(each),
            }
            sender = each.limit.sender
            yield Sight(called(sender) if sender else "everybody together", values)


def _whose(budget: BudgetUse) -> str:
    if budget.limit.sender:
        return "the limit of each person"
    if budget.top is None:
        return "most by work in the background"
    who, usd = budget.top
    return f"most by {called(who)}: {format_usd(usd)}"
