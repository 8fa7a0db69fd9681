"""`/model`: lists the configured models or chooses the one that answers.

A conversation that does not fit into the new model's window is compacted first; the choice is
stored with the end of the command's turn.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing

from agent import messages
from agent.models.base import ChatModel
from agent.models.catalog import Prices
from agent.models.factory import group_by_choice
from agent.ports import Compaction
from agent.turn.request import Agent
from gateway.commands.compress import TOPIC_CHARS, compress_text
from gateway.commands.registry import TURN, Command, TurnContext
from gateway.storage.conversation import compactions
from gateway.storage.conversation.turn_journal import TurnEnd

DEFAULT = "default"
"""The argument that resets the choice."""
NO_ROOM = (
    "Even so, my instructions, the tools and your newest message leave it hardly any room, and"
    " answers may fail. Try a model with a larger window."
)
NOT_ALLOWED = "Only people who were let in by name may choose the model; nothing was changed."


@Command("model", "show the models, or choose the one that answers here", TURN, 100)
async def choose_model(context: TurnContext) -> tuple[str, TurnEnd]:
    """List the models or choose one, stored with the end of the turn."""
    journal, wanted = context.journal, context.argument
    turn, known = journal.turn, group_by_choice(context.parts.mind.agent.models)
    if not wanted:
        return listed_text(known, turn.model), TurnEnd("model_listed")
    if not await journal.database.read(context.parts.shared.access.may_act, turn.senders):
        return NOT_ALLOWED, TurnEnd("model_refused")
    chosen = choice_of(wanted, known)
    if chosen is None:
        named = messages.quoted(" ".join(wanted.split())[:TOPIC_CHARS])
        listed = listed_text(known, turn.model)
        unknown = f"There is no model {named}. These are configured:\n\n{listed}"
        return unknown, TurnEnd("model_unknown")
    told: set[str] = set()

    async def note(what: str) -> None:
        told.add(what)

    # Reported in the answer instead of a notice.
    journal.tell_user = note
    compaction = await _make_room(context, context.parts.mind.agent.preferring(chosen))
    text = chosen_text(chosen, known, compaction)
    if "floor" in told:
        text = f"{text} {NO_ROOM}"
    return text, TurnEnd("model_chosen", chosen=chosen)


async def _make_room(context: TurnContext, agent: Agent) -> Compaction | None:
    """Compact the view if it does not fit into the new model's window."""
    journal = context.journal
    done = await context.journal.database.read(compactions.made_by, journal.turn, "fallback")
    if done is not None:
        return done
    view, planner = await context.parts.mind.context.opened(agent, journal)
    with closing(planner):
        tokens = (await planner.measured(view)).tokens
        if not planner.rules.enabled or not planner.engine.should_compress(tokens):
            return None
        return await planner.compact(view, "fallback")


def choice_of(wanted: str, known: Mapping[str, object]) -> str | None:
    """Return the choice that a word means: "" for the default, None if unknown."""
    if wanted.casefold() == DEFAULT:
        return ""
    return next((name for name in known if name.casefold() == wanted.casefold()), None)


def listed_text(known: Mapping[str, Sequence[ChatModel]], chosen: str | None) -> str:
    """Return the list of models, the default first; `chosen` is the conversation's, if any."""
    default = next(iter(known))
    used = chosen if chosen in known else default
    blocks, lines = list[str](), list[str]()
    for name, models in known.items():
        notes = [f"{models[0].context_length:,} tokens", price_text(models[0].facts.prices)]
        notes += ["default"] if name == default else []
        notes += ["**answers here**"] if name == used else []
        lines.append(f"- {messages.quoted(name)}: {', '.join(notes)}")
    if chosen is not None and chosen not in known:
        gone = f"The model {messages.quoted(chosen)} was chosen here and is no longer configured."
        blocks.append(gone)
    ways = "`/model NAME` chooses who answers in this conversation, `/model default` undoes that."
    return "\n\n".join([*blocks, "\n".join(lines), ways])


def price_text(prices: Prices | None) -> str:
    """Describe the price per million tokens."""
    if prices is None:
        return "price not known"
    if not prices.input and not prices.output:
        return "free"
    return f"${prices.input:g} in, ${prices.output:g} out for a million tokens"


def chosen_text(
    chosen: str, known: Mapping[str, Sequence[ChatModel]], compaction: Compaction | None
) -> str:
    """Return the answer to a choice; `compaction` made the view fit, if it was needed."""
    name = chosen or next(iter(known))
    window = known[name][0].context_length
    text = f"From now on {messages.quoted(name)} answers here ({window:,} tokens)."
    if not chosen:
        text = f"From now on the default answers here: {messages.quoted(name)} ({window:,} tokens)."
    if compaction is None:
        return text
    return f"{text} Its window is too small for what was said: {compress_text(compaction)}"
