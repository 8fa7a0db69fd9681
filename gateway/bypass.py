"""What is answered at once, past the queue: `/stop`, `/status`, `/usage`, `/insights`, `/help`."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, update

from adapters.messages import InboundMessage
from gateway import commands
from gateway.commands import StatusFacts
from gateway.spending import today
from gateway.storage import history, inbox, inquiries, insights, leases, ledger, rollup, usage
from gateway.storage.inquiries import Found
from gateway.storage.models import conversation
from gateway.usagetexts import INSIGHTS_DAYS, MoneyRules, Today, insights_text, usage_text


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
        match commands.parse(asked.message.text):
            case "stop":
                return _stop(asked)
            case "status":
                return self._status(asked)
            case "usage":
                return self._usage(asked)
            case "insights":
                return _insights(asked)
            case _:
                return commands.help_text(to_owner=asked.is_owner)

    def _status(self, asked: Asked) -> str:
        conn, conversation_id = asked.conn, asked.conversation
        model = self.model(usage.chosen_model(conn, conversation_id))
        standing = usage.standing(conn, conversation_id, model.fixed_tokens)
        status = history.status(conn, conversation_id)
        waits_for = [_waits_for(each) for each in inquiries.pending(conn, conversation_id)]
        return commands.status_text(status, standing, model, waits_for)

    def _usage(self, asked: Asked) -> str:
        conn, conversation_id = asked.conn, asked.conversation
        model, money = self.model(usage.chosen_model(conn, conversation_id)), self.money
        standing = usage.standing(conn, conversation_id, model.fixed_tokens)
        report = usage.report(conn, conversation_id, standing.session_id)
        since = today(ZoneInfo(money.timezone)).start.timestamp()
        spent = Today(
            rollup.of_sender(conn, _budgeted_as(asked.message), since),
            0.0 if money.daily_usd is None else ledger.spent_usd(conn, since),
        )
        return usage_text(standing, report, spent, model, money)


def _waits_for(found: Found) -> str:
    if found.kind == "approval":
        return f"`/approve {found.id}` or `/deny {found.id}` for `{found.tool}`"
    return f"question {found.id}"


def _stop(asked: Asked) -> str:
    conn, conversation_id = asked.conn, asked.conversation
    was_running = history.status(conn, conversation_id).turn_running
    dropped = inbox.cancel_queued(conn, conversation_id)
    conn.execute(
        update(conversation)
        .where(conversation.c.id == conversation_id)
        .values(cancel_upto_seq=asked.seq)
    )
    if inquiries.cancel(conn, conversation_id):
        # The turn that waited has to be ended.
        leases.make_ready(conn, conversation_id)
    return commands.stop_text(was_running=was_running, dropped=dropped)


def _insights(asked: Asked) -> str:
    since = datetime.now(UTC) - timedelta(days=INSIGHTS_DAYS)
    found = insights.insights(asked.conn, asked.conversation, since.timestamp())
    return insights_text(found)


def _budgeted_as(message: InboundMessage) -> str:
    """Return the sender as the ledger has it."""
    return f"{message.address.platform}:{message.sender}"
