"""What Parley itself shows in chats: notices in words, and reactions on messages.

Notices are of trouble, failure, stopping, a full window, dead letters. Reactions acknowledge a
message: received, answered, failed. They are best effort, and no message waits for them: a platform
that is too slow loses some, since the queues are bounded.
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
"""For these `/retry` has nothing to repeat."""
EXPIRED = (
    "I could not deliver anything here for a long time. I gave up on messages that are too old by"
    " now, so there is a gap above. The operator can still send them, and you can ask me again."
)
UNSHOWN = (
    "I failed to show one of my messages here, so there is a gap above. The operator can still send"
    " it; you can also ask me again."
)
REPLACES = "(this replaces the unfinished message above)"
"""In front of a text whose preview may be in the chat and can no longer be found."""
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
"""Consequences of a compaction (`agent.ports.CompactionStore.tell`)."""
ENDLESS = (
    "The model would not stop, so I stopped it: its answer was far longer than an answer may be."
    " Send /retry to ask again."
)
CUT = "\n\n*[the answer reached the output limit and ends here]*"


def answer_text(result: TurnResult) -> str:
    """Return the text of a turn's result; never empty."""
    if result.outcome == "refused":
        return f"{result.text}\n\n{REFUSED}".strip()
    if result.outcome == "endless":
        return after_part(result.text, ENDLESS)
    if not result.text.strip():
        return NO_ROOM_TO_ANSWER if result.outcome == "output_exhausted" else EMPTY
    return result.text + CUT if result.outcome == "partial" else result.text


def referring(text: str, turn: Turn, seed: bytes | None = None) -> str:
    """Add the reference by which a failed turn is found in the log."""
    reference = spans.reference_of(turn.lease.conversation, turn.first_seq, seed)
    return f"{text}\n\nReference: `{reference}`"


def after_part(part: str, text: str) -> str:
    """Return the part of an answer that was written before it failed, and the notice."""
    return f"{part}\n\n*[{text}]*" if part.strip() else text


def stopped_text(partial: str) -> str:
    """Mark the part of an answer that was written before it was stopped."""
    return f"{partial}\n\n{STOPPED}"


def failure_text(failure: ModelError | SpendLimitReached) -> str:
    """Return the notice that no model answered; it quotes nothing of the provider."""
    if isinstance(failure, SpendLimitReached):
        return _spend_limit_text(failure)
    if isinstance(failure, ModelRefused):
        return REFUSED
    return f"I could not answer: {_explained(failure)}."


def fallback_text(chosen: str, answered: str, failure: ModelError | None) -> str:
    """Return the notice that another model answered than the chosen one."""
    why, _, _ = _explained(failure).partition(". ")
    return (
        f"The model chosen here, {messages.quoted(chosen)}, did not answer: {why}."
        f" {messages.quoted(answered)} answers until it works again."
    )


def _explained(failure: ModelError | None) -> str:
    """Explain why a model did not answer, and in a second sentence what the user can do."""
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
    # Before its base class: the key is good, so the remedy differs.
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
    """Return the notice that a budget is used up; the shared budget's amount is not shown."""
    if limit.limit_usd == 0:
        return "I have no budget for answers at the moment; the operator can change that."
    if limit.scope == "sender":
        what = f"Today's budget for you is used up ({format_usd(limit.limit_usd)})"
    else:
        what = "Today's budget is used up"
    anew = f"It resets at {limit.until:%H:%M} {limit.until.tzinfo}"
    return f"{what}. {anew}; your message stays on record, send /retry then."


def dead_letter_text(account: str, letter: str, reason: str, cause: str) -> str:
    """Return the notice for owners about a message that was given up.

    Args:
        account: "platform:name" of the account that it was to go through.
        reason: As the platform or the client gave it.
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
"""Reactions that are on their way to one account at a time."""
WAITING_IN_CHAT = 20
WAITING = 1000
"""Longest queues, of one chat and of an account; further reactions are dropped."""
REACTION_TIMEOUT_S = 15.0


class ReactionQueue:
    """The reactions of all accounts; those of one chat are shown in order."""

    def __init__(self, adapters: Mapping[tuple[str, str], Adapter]) -> None:
        self._accounts = {account: _Account(adapter) for account, adapter in adapters.items()}

    def show(self, question: MessageRef, mark: Reaction) -> None:
        """Mark a message soon; returns at once. Without a `message_ref` nothing can be marked."""
        if question.message_ref is not None:
            self._accounts[question.address.platform, question.address.account].take(question, mark)

    async def run(self) -> None:
        """Show the reactions until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for account in self._accounts.values():
                for _ in range(AT_ONCE):
                    tasks.create_task(account.work())


class _Account:
    """The reactions of one account, by chat; a chat is in the line once."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._chats: dict[str, deque[tuple[MessageRef, Reaction]]] = {}
        self._line: asyncio.Queue[str] = asyncio.Queue()

    def take(self, question: MessageRef, mark: Reaction) -> None:
        """Put a reaction into its chat's queue, unless too many wait."""
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
        """Show one reaction after another, each time of the chat that has waited longest."""
        while True:
            chat = await self._line.get()
            question, mark = self._chats[chat].popleft()
            try:
                async with asyncio.timeout(REACTION_TIMEOUT_S):
                    await self._adapter.acknowledge(question, mark)
            except TimeoutError:
                log.debug("reaction_timed_out", platform=self._adapter.platform, mark=mark)
            except Exception:
                # An adapter's bug must not cost the reactions of others.
                log.exception("reaction_failed", platform=self._adapter.platform)
            if self._chats[chat]:
                self._line.put_nowait(chat)
            else:
                del self._chats[chat]
