"""Parley's own words in chats: notices, and reactions on messages.

Notices report trouble, failures, stops, a full window and dead letters. Reactions acknowledge a
message as received, answered or failed. Reactions are best effort and delay no message: queues are
bounded, so a slow platform loses some.
"""

import asyncio
import math
from collections import deque
from collections.abc import Mapping

import structlog

from adapters.base import Adapter
from adapters.messages import Choice, MessageRef, Reaction
from agent import messages, spans
from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    RateLimited,
    SpendLimitReached,
)
from agent.money.costs import format_usd
from agent.turn.loop import TurnResult
from gateway.storage.conversation.turns import Turn

log = structlog.get_logger()

TROUBLE = "The model is slow or cannot be reached right now. I keep trying; your message is safe."
GAVE_UP = (
    "I had to give up on this message: it failed at every attempt. It is kept for the operator."
    " You can send /retry to try again."
)
NEVER_BEGAN = (
    "I had to give up on this message: I could not start on it. It is kept for the operator. You"
    " can send it again."
)
"""Failures for which `/retry` has nothing to repeat."""
EXPIRED = (
    "I could not deliver anything here for a long time. I gave up on messages that are too old by"
    " now, so there is a gap above. The operator can still send them, and you can ask me again."
)
UNSHOWN = (
    "I failed to show one of my messages here, so there is a gap above. The operator can still send"
    " it; you can also ask me again."
)
REPLACES = "(this replaces the unfinished message above)"
"""Starts a text whose preview may still be in the chat but cannot be found."""
TRY_AGAIN = Choice("Try again", "/retry")
STOPPED = "*[stopped]*"
SET_ASIDE = "I could not accept this: it, or this chat, is damaged. The owners can see the reason."
EMPTY = "The model gave an empty answer. Send /retry to ask again."
NO_ROOM_TO_ANSWER = (
    "The model used up its output limit before it wrote an answer: thinking counts as well. A"
    " narrower question may help; the operator can raise `model.max_output_tokens`."
)
REFUSED = "The model declined to answer this."
HYGIENE = "I am condensing our long conversation first; this takes a moment."
CONTEXT = {
    "clipped": (
        "Your message is too long for the model: I read its beginning and its end. The full text"
        " stays on record."
    ),
    "floor": (
        "My instructions, the tools and your newest message alone leave the model no room. I"
        " cannot condense this any further, and the answer may fail; a shorter message helps."
    ),
}
"""Notices about a compaction's consequences (`agent.ports.CompactionStore.tell`)."""
ENDLESS = (
    "The model would not stop, so I stopped it: its answer was far longer than an answer may be."
    " Send /retry to ask again."
)
CUT = "\n\n*[the answer reached the output limit and ends here]*"


def answer_text(result: TurnResult) -> str:
    """Return the text of a turn's result, never empty."""
    if result.outcome == "refused":
        return f"{result.text}\n\n{REFUSED}".strip()
    if result.outcome == "endless":
        return after_part(result.text, ENDLESS)
    if not result.text.strip():
        return NO_ROOM_TO_ANSWER if result.outcome == "output_exhausted" else EMPTY
    return result.text + CUT if result.outcome == "partial" else result.text


def referring(text: str, turn: Turn, seed: bytes | None = None) -> str:
    """Append the reference that finds a failed turn in the log."""
    reference = spans.reference_of(turn.lease.conversation, turn.first_seq, seed)
    return f"{text}\n\nReference: `{reference}`"


def after_part(part: str, text: str) -> str:
    """Append a notice to the part of an answer written before the failure."""
    return f"{part}\n\n*[{text}]*" if part.strip() else text


def stopped_text(partial: str) -> str:
    """Mark the part of an answer written before it was stopped."""
    return f"{partial}\n\n{STOPPED}"


def failure_text(failure: ModelError | SpendLimitReached) -> str:
    """Return the notice that no model answered, without quoting the provider."""
    if isinstance(failure, SpendLimitReached):
        return _spend_limit_text(failure)
    if isinstance(failure, ModelRefused):
        return REFUSED
    return f"I could not answer: {_explained(failure)}."


def fallback_text(chosen: str, answered: str, failure: ModelError | None) -> str:
    """Return the notice that a fallback answered instead of the chosen model."""
    why, _, _ = _explained(failure).partition(". ")
    return (
        f"The model chosen here, {messages.quoted(chosen)}, did not answer: {why}."
        f" {messages.quoted(answered)} answers until it works again."
    )


def _explained(failure: ModelError | None) -> str:
    """Explain in one sentence why a model did not answer, in a second what the user can do."""
    if isinstance(failure, ContextOverflow):
        why = (
            "this conversation has grown too long for the model. Send /compress to condense it,"
            " or /new to start afresh"
        )
    elif isinstance(failure, BadRequest) and failure.is_unexplained:
        why = (
            "the provider refuses the request, perhaps because this conversation has grown too"
            " long. Send /compress to condense it, or /new to start afresh"
        )
    elif isinstance(failure, BadRequest):
        why = "the provider refuses the request. Send /retry to try again"
    # Before its base class: the key is valid, so the remedy differs.
    elif isinstance(failure, CreditUsedUp):
        why = (
            "the account at the model provider has no credit left. The operator needs to add credit"
            " or another key; then send /retry"
        )
    elif isinstance(failure, CredentialsRefused):
        why = "the model provider refuses the key. The operator needs to fix that; then send /retry"
    elif isinstance(failure, ModelNotFound):
        why = "the provider does not know the model. The operator needs to fix that"
    elif isinstance(failure, RateLimited):
        minutes = math.ceil((failure.retry_after_s or 0) / 60)
        when = (
            f"in about {minutes} minutes, as its provider asks"
            if minutes > 1
            else "in a few minutes"
        )
        why = f"the model is overloaded. Send /retry {when}"
    else:
        why = "the model could not be reached or failed. Send /retry to try again"
    return why


def _spend_limit_text(limit: SpendLimitReached) -> str:
    """Return the notice about an exhausted budget, without the amount of the shared one."""
    if limit.limit_usd == 0:
        return "I have no budget for answers at the moment; the operator can change that."
    if limit.scope == "sender":
        what = f"Today's budget for you is used up ({format_usd(limit.limit_usd)})"
    else:
        what = "Today's budget is used up"
    anew = f"It resets at {limit.until:%H:%M} {limit.until.tzinfo}"
    return f"{what}. {anew}; your message stays on record, send /retry then."


def dead_letter_text(account: str, letter: str, reason: str, cause: str) -> str:
    """Return the owners' notice about an undeliverable message.

    Args:
        account: "platform:name" of its account.
        reason: The error text of the platform or the client.
        cause: `gateway.pipeline.delivery.Cause`.
    """
    where = messages.quoted(account)
    if cause == "refused":
        what = f"{where} does not take my messages for a chat, and perhaps for others"
    elif cause == "failed":
        what = f"I failed to show a message on {where}, and perhaps others: that is a bug in Parley"
    else:
        what = f"{where} did not take my messages for so long that I gave up those that waited"
    return (
        f"{what}. The first one is the dead letter `{letter}` ({messages.quoted(reason)})."
        " `parley dead-letters list` shows all of them, `parley dead-letters retry ID` sends one"
        " again. I will not repeat this today."
    )


AT_ONCE = 4
"""Concurrent reaction requests per account."""
WAITING_IN_CHAT = 20
WAITING = 1000
"""Longest queues of one chat and of one account; further reactions are dropped."""
REACTION_TIMEOUT_S = 15.0


class ReactionQueue:
    """Queues the reactions of all accounts and shows those of one chat in order."""

    def __init__(self, adapters: Mapping[tuple[str, str], Adapter]) -> None:
        self._accounts = {account: _Account(adapter) for account, adapter in adapters.items()}

    def show(self, question: MessageRef, mark: Reaction) -> None:
        """Queue a reaction and return at once; do nothing without a `message_ref`."""
        if question.message_ref is not None:
            self._accounts[question.address.platform, question.address.account].take(question, mark)

    async def run(self) -> None:
        """Show reactions until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for account in self._accounts.values():
                for _ in range(AT_ONCE):
                    tasks.create_task(account.work())


class _Account:
    """The reactions of one account by chat; each chat is queued once."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._chats: dict[str, deque[tuple[MessageRef, Reaction]]] = {}
        self._line: asyncio.Queue[str] = asyncio.Queue()

    def take(self, question: MessageRef, mark: Reaction) -> None:
        """Add a reaction to its chat's queue, unless too many wait."""
        chat = question.address.chat
        waiting = self._chats.get(chat)
        if self._line.qsize() >= WAITING if waiting is None else len(waiting) >= WAITING_IN_CHAT:
            log.debug("reaction_dropped", platform=self._adapter.platform, chat=chat, mark=mark)
        elif waiting is None:
            self._chats[chat] = deque([(question, mark)])
            self._line.put_nowait(chat)
        else:
            waiting.append((question, mark))

    async def work(self) -> None:
        """Show reactions one by one, always from the chat that has waited longest."""
        while True:
            chat = await self._line.get()
            question, mark = self._chats[chat].popleft()
            try:
                async with asyncio.timeout(REACTION_TIMEOUT_S):
                    await self._adapter.acknowledge(question, mark)
            except TimeoutError:
                log.debug("reaction_timed_out", platform=self._adapter.platform, mark=mark)
            except Exception:
                # A bug in one adapter must not stop the reactions of others.
                log.exception("reaction_failed", platform=self._adapter.platform)
            if self._chats[chat]:
                self._line.put_nowait(chat)
            else:
                del self._chats[chat]
