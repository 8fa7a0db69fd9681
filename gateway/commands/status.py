"""`/status`: the state of a conversation, with texts about a model that `/usage` shares."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from agent.context.meter import TokenMeter
from agent.context_engine import ContextEngine
from agent.messages import ChatMessage, count, listed, quoted
from agent.models.factory import group_by_choice
from agent.safety.redaction import printable
from agent.turn.request import Agent
from gateway.commands.registry import IMMEDIATE, Command, CommandContext, CommandResult, StatusFacts
from gateway.context.prompts import Prompts
from gateway.context.window import ContextParts, summaries_text
from gateway.storage.conversation import conversations, questions
from gateway.storage.queue import alerts, inbox
from gateway.storage.queue.alerts import Alert
from gateway.storage.reports import usage
from gateway.storage.reports.spending import Spent
from gateway.storage.reports.usage import ContextFill
from gateway.storage.schema import iso_time


@Command("status", "show the state of this conversation", IMMEDIATE, 60, urgent=True)
def show_status(context: CommandContext) -> CommandResult:
    """Describe the conversation and the questions that its turn waits for."""
    conn, conversation_id = context.conn, context.conversation
    model = context.services.figures(conversations.chosen_model(conn, conversation_id))
    standing = usage.standing(conn, conversation_id, model.fixed_tokens)
    newest = usage.newest_outcome(conn, conversation_id)
    waiting = len(inbox.queued(conn, conversation_id))
    waits_for = [
        f"`/approve {each.id}` or `/deny {each.id}` for `{each.tool}`"
        if each.kind == "approval"
        else f"question {each.id}"
        for each in questions.pending(conn, conversation_id)
    ]
    text = status_text(standing, model, newest, waiting, waits_for)
    # Only owners see alerts, and not in a group.
    troubles = alerts.found(conn) if context.is_owner and context.is_private else []
    return CommandResult(text + troubles_text(troubles))


def status_text(
    standing: ContextFill,
    model: StatusFacts,
    newest: str | None,
    waiting: int,
    asked: Sequence[str] = (),
) -> str:
    """Return the answer to `/status`.

    Args:
        newest: The outcome of the newest turn, if any; "running" while it runs.
        waiting: The number of queued messages.
        asked: Text about the questions that the turn waits for.
    """
    work = "working on an answer" if newest == "running" else "idle"
    if asked:
        work = f"waiting for an answer: {', '.join(asked)}"
    compactions = count(standing.compactions, "compaction")
    lines = {
        "Conversation": f"{standing.conversation}, session {standing.session_id}",
        "Title": quoted(standing.title) if standing.title else "",
        "Model": _model_text(standing, model),
        "Context": context_text(standing, model),
        "Prompt and tools": crowding_text(model) or "",
        "Tools": model.tools_off,
        "Compression": f"{firing_text(model)}; {compactions} so far",
        "Summaries": model.summaries if model.compresses else "",
        "Messages": f"{standing.messages:,} so far",
        "State": f"{work}, {count(waiting, 'message')} queued",
    }
    lines = {name: value for name, value in lines.items() if value}
    if newest not in {None, "running"}:
        lines["Last turn"] = outcome_text(newest)
    return listed(lines)


def troubles_text(open_ones: Sequence[Alert]) -> str:
    """Return the open alerts for an owner; empty without any."""
    if not open_ones:
        return ""
    lines = [f"- {quoted(each.text)}, since {iso_time(each.since)}" for each in open_ones]
    return "\n".join(["\n\n**Troubles** (`parley doctor` says what to do):", *lines])


def _model_text(standing: ContextFill, model: StatusFacts) -> str:
    """Describe the model, whether it was chosen here, and the model of the last answer."""
    last = standing.answered_by
    notes = ["chosen here"] if model.chosen else []
    notes += [f"the chosen {quoted(model.gone)} is no longer configured"] if model.gone else []
    notes += [f"last answer by {last}"] if last and last != model.name else []
    return f"{model.name} ({'; '.join(notes)})" if notes else model.name


def status_facts(
    agent: Agent, context: ContextParts, prompts: Prompts, tools_off: str
) -> Callable[[str | None], StatusFacts]:
    """Return a function that looks up the figures of a chosen model; None is the default."""
    known = group_by_choice(agent.models)

    def facts(chosen: str | None) -> StatusFacts:
        if chosen is not None and chosen not in known:
            return replace(facts(None), gone=chosen)
        answering = agent.preferring(chosen)
        model, limits = answering.models[0], context.limits_for(answering)
        engine = context.make_engine(limits)
        # A typical prompt, until the conversation's first report contains its own.
        prompt = ChatMessage(role="system", content=prompts.typical(answering).text)
        return StatusFacts(
            name=model.name,
            window_tokens=limits.context_length,
            threshold_tokens=_fires_at(engine) if context.enabled else None,
            engine=engine.name,
            fixed_tokens=TokenMeter(model.name, answering.tools.schemas).fixed_tokens(prompt),
            chosen=chosen is not None,
            compresses=context.enabled,
            summaries=printable(summaries_text(context.summariser)),
            tools_off=tools_off,
        )

    return facts


def _fires_at(engine: ContextEngine) -> int | None:
    tokens = engine.get_status().get("threshold_tokens")
    if isinstance(tokens, int | float) and tokens is not True and 1 <= tokens < inf:
        return int(tokens)
    return None


def context_text(standing: ContextFill, model: StatusFacts) -> str:
    """Describe how full the window is."""
    tokens, source = standing.tokens, standing.source
    share = tokens / model.window_tokens
    return f"{tokens:,} of {model.window_tokens:,} tokens ({share:.0%}), {source}"


def crowding_text(model: StatusFacts) -> str | None:
    """Return a warning if prompt and tools leave little room; else None."""
    room_tokens = model.threshold_tokens or model.window_tokens
    if model.fixed_tokens * 2 <= room_tokens:
        return None
    return f"{model.fixed_tokens:,} of {room_tokens:,} tokens, which leaves little room"


def firing_text(model: StatusFacts) -> str:
    """Describe the compaction threshold."""
    if not model.compresses:
        return f"switched off (engine {model.engine})"
    if model.threshold_tokens is None:
        return f"when the engine {model.engine} asks for it"
    return f"from {model.threshold_tokens:,} tokens on (engine {model.engine})"


def outcome_text(outcome: str) -> str:
    """Describe how a turn ended."""
    return _ENDINGS.get(outcome, outcome).replace("_", " ")


_ENDINGS = {
    "final_text": "answered",
    "provider_failed": "no model answered",
    "spend_limit": "budget used up",
}


def tokens_text(spent: Spent) -> str:
    """Describe the tokens of calls, with the share from the prompt cache."""
    usage = spent.usage
    written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
    kinds = [f"{usage.cache_read_tokens:,} from the cache ({spent.hit_ratio or 0:.0%})"]
    if written:
        kinds.append(f"{written:,} into it")
    return f"{usage.prompt_tokens:,} tokens in, {', '.join(kinds)}; {usage.output_tokens:,} out"
