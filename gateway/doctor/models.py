"""Whether models answer, how much they hold, and what they cost."""

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from adapters.web.platform import is_private_way
from agent.context.summary_model import LEAST_WINDOW_TOKENS
from agent.models.catalog import find_facts
from agent.models.openai.mode import PARSER_OFF, known_modes
from agent.settings import ModelSettings
from gateway.agent_ports.budgets import today
from gateway.doctor.checks import OF_OUTCOMES, Examined, Level, Sight, check
from gateway.storage.reports import spending
from gateway.wiring import Configured

OFFLINE = "offline"
SMALL_TOKENS = 16_000
SMALL_SHARE = 0.25
"""Of what the model could hold."""
LARGEST_OUTPUT_SHARE = 0.5
NEAR_SHARE = 0.8


@check(
    "model-real",
    "A real model answers",
    why="The offline model is for trying Parley out; it understands nothing.",
    remedy="Set `model.provider` and its key, or ANTHROPIC_API_KEY or OPENAI_API_KEY.",
)
def _real(examined: Examined) -> Iterator[Sight]:
    if examined.line and examined.line[0].models[0].provider == OFFLINE:
        yield Sight("warning", "the offline model answers")


@check(
    "model-keys",
    "Providers accept each key",
    why="Otherwise turns fail, or cost what a fallback costs.",
    remedy="Correct the setting that the line names.",
    needs="answers",
)
def _keys(examined: Examined) -> Iterator[Sight]:
    for finding in examined.findings or ():
        yield Sight(OF_OUTCOMES[finding.outcome], f"{finding.subject}: {finding.text}")


@check(
    "model-window",
    "The model's window is known",
    why="Too low a guess compacts early; too high a guess gets requests refused.",
    remedy="Set `model.context_length` to what its provider says.",
)
def _window(examined: Examined) -> Iterator[Sight]:
    for block in _paid(examined):
        model = block.models[0]
        facts = find_facts(model.name)
        known = facts is not None and facts.context_length is not None
        if not known and block.settings.context_length is None and examined.findings is None:
            text = f"{model.name}: {model.context_length:,} tokens are taken, which nobody has said"
            yield Sight("warning", text)


@check(
    "model-window-small",
    "The model's window holds a conversation",
    why="System prompt, tools and one long answer fill a small one: each turn compacts.",
    remedy="Raise or remove `model.context_length` if it is set; else choose a model with a larger"
    " window, or fewer tools.",
)
def _small(examined: Examined) -> Iterator[Sight]:
    for block in examined.line:
        model, wanted = block.models[0], block.settings.context_length
        tokens, could = model.context_length, model.facts.context_length or 0
        text = f"{model.name} holds {tokens:,} tokens"
        if wanted is not None and could > tokens:
            text += f", as {block.place}.context_length says; without it {could:,}"
        if tokens < max(SMALL_TOKENS, could * SMALL_SHARE):
            yield Sight("warning", text)


@check(
    "model-output",
    "An answer leaves room for its question",
    why="Room reserved for the answer is missing for the conversation.",
    remedy="Lower `model.max_output_tokens`.",
)
def _output(examined: Examined) -> Iterator[Sight]:
    for block in examined.line:
        window, output = block.models[0].context_length, block.settings.max_output_tokens
        if output > window * LARGEST_OUTPUT_SHARE:
            text = f"{block.place}.max_output_tokens is {output:,} of a window of {window:,}"
            yield Sight("warning", text)


@check(
    "model-prices",
    "The model's prices are known",
    why="An unknown cost counts towards no budget.",
    remedy="Set `model.facts.input_usd` and `model.facts.output_usd` (per million tokens).",
)
def _prices(examined: Examined) -> Iterator[Sight]:
    budget = examined.settings.budget
    has_limit = budget.daily_usd is not None or budget.sender_daily_usd is not None
    for block in _paid(examined):
        if block.models[0].facts.prices is None:
            yield Sight(
                "wrong" if has_limit else "note", f"{block.models[0].name} has no known price"
            )


@check(
    "model-fallback",
    "Another model answers where the first one fails",
    why="Otherwise nobody is answered while its provider has trouble.",
    remedy="Add a block to `fallbacks`, ideally from another provider.",
)
def _fallback(examined: Examined) -> Iterator[Sight]:
    if len(_paid(examined)) == 1:
        yield Sight("note", "there is no fallback")


@check(
    "model-address",
    "Keys travel encrypted",
    why="Anyone in between can read the key and everything that is said.",
    remedy="Use https:// in `base_url`; plain http only for this machine.",
)
def _address(examined: Examined) -> Iterator[Sight]:
    blocks: list[tuple[str, ModelSettings]] = [("model", examined.settings.model)]
    blocks += [(f"fallbacks.{n}", each) for n, each in enumerate(examined.settings.fallbacks)]
    for place, block in blocks:
        if block.base_url and not is_private_way(block.base_url):
            yield Sight("warning", f"{place}.base_url is not encrypted")


@check(
    "budget-set",
    "Spending has a limit",
    why="A loop of a tool, or a stranger in open mode, can spend whatever the account has.",
    remedy="Set `budget.daily_usd`.",
)
def _budget(examined: Examined) -> Iterator[Sight]:
    if _paid(examined) and examined.settings.budget.daily_usd is None:
        level: Level = "warning" if examined.settings.access.mode == "open" else "note"
        yield Sight(level, "budget.daily_usd is null")


@check(
    "budget-left",
    "There is money left for today",
    why="Once it is used up nobody is answered until midnight.",
    remedy="Raise `budget.daily_usd`, or find out who spends it: `parley usage --by sender`.",
    needs="database",
)
def _left(examined: Examined) -> Iterator[Sight]:
    limit = examined.settings.budget.daily_usd
    if not limit:
        return
    since = today(ZoneInfo(examined.settings.sessions.timezone)).start.timestamp()
    spent = spending.spent_usd(examined.database, since)
    if spent >= limit * NEAR_SHARE:
        yield Sight(
            "wrong" if spent >= limit else "warning", f"${spent:.2f} of ${limit:.2f} are spent"
        )


@check(
    "summary-model",
    "The model that writes summaries is not the dearest one",
    why="Summaries are read by a model, not by people: a small one does.",
    remedy="Set `auxiliary.compression.model`.",
)
def _summary(examined: Examined) -> Iterator[Sight]:
    if _paid(examined) and not examined.settings.auxiliary.compression.is_set:
        yield Sight("note", "summaries are written by the model that answers")


@check(
    "server-modes",
    "Model servers take requests as they are meant",
    why="What a server refuses is left out: without tools the agent can do nothing, without a"
    " system prompt its instructions count less. With a smaller window than believed it gets"
    " shorter views, and summaries are written in parts.",
    remedy="Update the server, its chat template or its tool parser; set `context_length` to what"
    " it takes. What it takes again is found out within a day, or at once by a restart.",
)
def _modes(_examined: Examined) -> Iterator[Sight]:
    for mode in known_modes():
        server, quirks = mode.server, mode.learned
        if tokens := mode.window:
            small: Level = "warning" if tokens < LEAST_WINDOW_TOKENS else "note"
            yield Sight(small, f"{server}: holds {tokens:,} tokens, as a refused request has shown")
        if PARSER_OFF in quirks:
            yield Sight("warning", f"{server}: calls of tools come as text; its tool parser is off")
        level: Level = "warning" if "no_tools" in quirks else "note"
        if kept := sorted(quirks - {PARSER_OFF}):
            yield Sight(level, f"{server}: requests keep to {', '.join(kept)}")


def _paid(examined: Examined) -> list[Configured]:
    return [each for each in examined.line if each.models[0].provider != OFFLINE]
