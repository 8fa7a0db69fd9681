"""`/status`: how a conversation stands, as it is admitted: model, window, state of its turn."""

from collections.abc import Sequence

from agent.messages import count, listed, quoted
from gateway.commands.registry import IMMEDIATE, Command, CommandContext, CommandResult
from gateway.commands.status_figures import (
    StatusFacts,
    context_text,
    crowding_text,
    firing_text,
    outcome_text,
)
from gateway.storage.conversation import conversations, questions
from gateway.storage.conversation.questions import Question
from gateway.storage.queue import alerts
from gateway.storage.queue.alerts import Alert
from gateway.storage.reports import history, usage
from gateway.storage.reports.history import Status
from gateway.storage.reports.usage import ContextFill
from gateway.storage.schema import iso_time


@Command("status", "show the state of this conversation", IMMEDIATE, 60, urgent=True)
def show_status(context: CommandContext) -> CommandResult:
    """Return how the conversation stands, and what its turn waits for."""
    conn, conversation_id = context.conn, context.conversation
    model = context.services.figures(conversations.chosen_model(conn, conversation_id))
    standing = usage.standing(conn, conversation_id, model.fixed_tokens)
    status = history.status(conn, conversation_id)
    waits_for = [_waits_for(each) for each in questions.pending(conn, conversation_id)]
    text = status_text(status, standing, model, waits_for)
    # Troubles are the operator's business, and nobody's in a group.
    troubles = alerts.found(conn) if context.is_owner and context.is_private else []
    return CommandResult(text + troubles_text(troubles))


def _waits_for(question: Question) -> str:
    if question.kind == "approval":
        return f"`/approve {question.id}` or `/deny {question.id}` for `{question.tool}`"
    return f"question {question.id}"


def status_text(
    status: Status, standing: ContextFill, model: StatusFacts, asked: Sequence[str] = ()
) -> str:
    """Return the answer to `/status`.

    Args:
        asked: What the turn waits for, in words; nothing where it does not wait.
    """
    work = "working on an answer" if status.turn_running else "idle"
    if asked:
        work = f"waiting for an answer: {', '.join(asked)}"
    compactions = count(standing.compactions, "compaction")
    lines = {
        "Conversation": f"{status.conversation}, session {status.session_id}",
        "Title": quoted(standing.title) if standing.title else "",
        "Model": _model_text(standing, model),
        "Context": context_text(standing, model),
        "Prompt and tools": crowding_text(model) or "",
        "Tools": model.tools_off,
        "Compression": f"{firing_text(model)}; {compactions} so far",
        "Summaries": model.summaries if model.compresses else "",
        "Messages": f"{status.messages:,} so far",
        "State": f"{work}, {count(status.waiting, 'message')} queued",
    }
    lines = {name: value for name, value in lines.items() if value}
    if status.last_outcome and not status.turn_running:
        lines["Last turn"] = outcome_text(status.last_outcome)
    return listed(lines)


def troubles_text(open_ones: Sequence[Alert]) -> str:
    """Return what an owner reads of troubles below; empty where there is none."""
    if not open_ones:
        return ""
    lines = [f"- {quoted(each.text)}, since {iso_time(each.since)}" for each in open_ones]
    return "\n".join(["\n\n**Troubles** (`parley doctor` says what to do):", *lines])


def _model_text(standing: ContextFill, model: StatusFacts) -> str:
    """Return the model, whether it was chosen here, and who answered last if another one did."""
    last = standing.answered_by
    notes = ["chosen here"] if model.chosen else []
    notes += [f"the chosen {quoted(model.gone)} is no longer configured"] if model.gone else []
    notes += [f"last answer by {last}"] if last and last != model.name else []
    return f"{model.name} ({'; '.join(notes)})" if notes else model.name
