"""What is answered at once, past the queue: `/stop`, `/status`, `/usage`, `/insights`, `/help`."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from adapters.messages import InboundMessage
from gateway.agent_ports.budgets import today
from gateway.commands import registry
from gateway.commands.registry import StatusFacts
from gateway.commands.usage import INSIGHTS_DAYS, MoneyRules, Today, insights_text, usage_text
from gateway.storage.conversation import conversations, questions
from gateway.storage.conversation.questions import Question
from gateway.storage.queue import inbox
from gateway.storage.reports import costs, history, ledger, usage


@dataclass(frozen=True, slots=True)
class Asked:
    """A command that was entered into the inbox, in the transaction that enters it.

    Attributes:
        seq: Its place there.
        is_owner: Whether the sender is an owner and nobody else reads the answer.
    """

    conn: Connection
    message: InboundMessage
    conversation: int
    seq: int
    is_owner: bool


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the commands that bypass the queue.

    Attributes:
        model: Returns what is said about the model that answers, as it is now: the one that was
            chosen, None for the default.
    """

    model: Callable[[str | None], StatusFacts]
    money: MoneyRules

    def to(self, asked: Asked) -> str:
        """Return the answer, and do what the command asks for."""
        match registry.parse(asked.message.text):
            case "stop":
                return _stop(asked)
            case "status":
                return self._status(asked)
            case "usage":
                return self._usage(asked)
            case "insights":
                return _insights(asked)
            case _:
                return registry.help_text(to_owner=asked.is_owner)

    def _status(self, asked: Asked) -> str:
        conn, conversation_id = asked.conn, asked.conversation
        model = self.model(conversations.chosen_model(conn, conversation_id))
        standing = usage.standing(conn, conversation_id, model.fixed_tokens)
        status = history.status(conn, conversation_id)
        waits_for = [_waits_for(each) for each in questions.pending(conn, conversation_id)]
        return registry.status_text(status, standing, model, waits_for)

    def _usage(self, asked: Asked) -> str:
        conn, conversation_id = asked.conn, asked.conversation
        model, money = self.model(conversations.chosen_model(conn, conversation_id)), self.money
        standing = usage.standing(conn, conversation_id, model.fixed_tokens)
        report = usage.report(conn, conversation_id, standing.session_id)
        since = today(ZoneInfo(money.timezone)).start.timestamp()
        spent = Today(
            costs.of_sender(conn, _budgeted_as(asked.message), since),
            0.0 if money.daily_usd is None else ledger.spent_usd(conn, since),
        )
        return usage_text(standing, report, spent, model, money)


def _waits_for(found: Question) -> str:
    if found.kind == "approval":
        return f"`/approve {found.id}` or `/deny {found.id}` for `{found.tool}`"
    return f"question {found.id}"


def _stop(asked: Asked) -> str:
    conn, conversation_id = asked.conn, asked.conversation
    was_running = history.status(conn, conversation_id).turn_running
    dropped = inbox.cancel_queued(conn, conversation_id)
    conversations.stop_upto(conn, conversation_id, asked.seq)
    if questions.cancel(conn, conversation_id):
        # The turn that waited has to be ended.
        conversations.make_ready(conn, conversation_id)
    return registry.stop_text(was_running=was_running, dropped=dropped)


def _insights(asked: Asked) -> str:
    since = datetime.now(UTC) - timedelta(days=INSIGHTS_DAYS)
    found = usage.insights(asked.conn, asked.conversation, since.timestamp(), registry.HOUSEKEEPING)
    return insights_text(found)


def _budgeted_as(message: InboundMessage) -> str:
    """Return the sender as the ledger has it."""
    return f"{message.address.platform}:{message.sender}"
