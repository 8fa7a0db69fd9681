"""What becomes of an answer to an inquiry (step 2 of the path), in the admitting transaction.

An answer is a press of a button, the same text typed by hand or, to a question of the agent, any
plain message. It is taken once, from somebody who may give it, where it was asked; the turn that
waits goes on when nothing else waits there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from sqlalchemy import Connection

from adapters.messages import InboundMessage
from agent import messages
from agent.tools.context import InquiryKind
from gateway.access.policy import may_approve
from gateway.commands import registry
from gateway.storage.conversation import conversations, questions
from gateway.storage.conversation.questions import ENDED, Question

log = structlog.get_logger()

LONGEST_ID = 18
"""Digits; longer numbers are no ids and do not fit into the database's integers."""


@dataclass(frozen=True, slots=True)
class Given:
    """A message that may be an answer.

    Attributes:
        conversation: That of its sender here; in a group of several another one than where the
            question was asked.
        is_owner: Whether the sender is an owner.
        may_act: Whether tools may touch the world for the sender.
    """

    conn: Connection
    message: InboundMessage
    conversation: int
    is_owner: bool
    may_act: bool

    @property
    def by(self) -> str:
        """The sender, as inquiries and turns have it."""
        return f"{self.message.address.platform}:{self.message.sender}"


@dataclass(frozen=True, slots=True)
class Decision:
    """An inquiry that was answered, for the log; it counts once the transaction is committed."""

    found: Question
    answer: str
    by: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What an answer led to.

    Attributes:
        text: What its sender is told.
        decided: The inquiries that it answers; none where it was not taken.
        over: How the question ended for which it comes too late; empty where that is not so.
    """

    text: str
    decided: tuple[Decision, ...] = ()
    over: str = ""

    @property
    def answer(self) -> Literal["accepted", "refused", "over"]:
        """What became of it, as its platform is told."""
        if self.decided:
            return "accepted"
        return "over" if self.over else "refused"


def by_command(given: Given) -> Taken:
    """Take `/approve`, `/deny` or `/answer`, with the id of the inquiry or to the only one."""
    name = registry.parse(given.message.text)
    kind: InquiryKind = "clarify" if name == "answer" else "approval"
    said = registry.argument(given.message.text).strip()
    first, _, rest = said.partition(" ")
    is_id = first.isascii() and first.isdigit() and len(first) <= LONGEST_ID
    named = _named(given, int(first)) if is_id else None
    # `/answer 2` may be a choice, and `/answer 2 apples` mere words.
    if is_id and (kind == "approval" or (named is not None and rest.strip())):
        found, said, why_not = named, rest.strip(), NOT_HERE
    else:
        waiting = _waiting(given, kind)
        found = waiting[0] if len(waiting) == 1 else None
        why_not = _which(waiting) if waiting else NONE_WAITS[kind]
    if found is not None:
        why_not = _why_not(given, found, kind)
    if found is None or why_not:
        is_over = found is not None and why_not in {TOO_LATE, *OVER.values()}
        return Taken(why_not, over=_ended(found) if found and is_over else "")
    if kind == "clarify":
        return _answer(given, found, said)
    return _decide(given, found, "deny" if name == "deny" else said.lower() or "once")


def again(conn: Connection, message: InboundMessage) -> Literal["accepted", "refused", "over"]:
    """Return what has become of a press that was received before."""
    found = _by_its_number(conn, message)
    if found is None or found.state == "pending":
        return "refused"
    by = f"{message.address.platform}:{message.sender}"
    return "accepted" if found.by == by else "over"


def asked_in(conn: Connection, message: InboundMessage) -> int | None:
    """Return the conversation of the question that an answer names, asked where it was given."""
    found = _by_its_number(conn, message)
    return found.conversation if found and _is_here(conn, found, message) else None


def in_words(given: Given) -> tuple[Decision, ...]:
    """Take a plain message as the answer to the oldest question that its sender may answer.

    Returns:
        Nothing where there is no such question: the message waits for a turn.
    """
    for found in _waiting(given, "clarify"):
        if not _why_not(given, found, "clarify"):
            return _settle(given, found, given.message.text.strip())
    return ()


def is_pressed(message: InboundMessage, found: Question) -> bool:
    """Whether a message is a press of a button of this question: its platform takes them off."""
    return message.pressed and _number(message) == found.id


def note_of(decision: Decision) -> str:
    """Return how a question ended, as it is noted in place of its buttons."""
    if decision.found.kind == "clarify":
        return ENDED["answered"]
    return "denied" if decision.answer == "deny" else "approved"


def report(decision: Decision) -> None:
    """Log an answer, never what was said."""
    found, by = decision.found, decision.by
    if found.kind == "clarify":
        log.info("question_answered", conversation=found.conversation, inquiry=found.id, by=by)
    elif decision.answer == "deny":
        log.info(
            "tool_denied",
            conversation=found.conversation,
            inquiry=found.id,
            tool=found.tool,
            by=by,
        )
    else:
        log.info(
            "tool_approved",
            conversation=found.conversation,
            inquiry=found.id,
            tool=found.tool,
            scope=decision.answer,
            by=by,
        )


def waiting_text(waiting: Sequence[Question]) -> str:
    """Return what is said to a message that has to wait for these answers."""
    found = waiting[0]
    if len(waiting) > 1:
        ids = ", ".join(f"{each.id} (`{each.tool}`)" for each in waiting)
        return (
            f"Your message waits: {len(waiting)} questions need an answer first: {ids}. Send"
            " `/approve`, `/deny` or `/answer` with the number, or `/stop` to drop all of it."
        )
    if found.kind == "approval":
        return (
            f"Your message waits: I first need to know whether I may run `{found.tool}`. Send"
            " `/approve` or `/deny`, or `/stop` to drop all of it."
        )
    return (
        "Your message waits: I have asked a question that needs an answer first. Send `/stop` to"
        " drop it."
    )


def _named(given: Given, inquiry_id: int) -> Question | None:
    """Return an inquiry that was asked in the chat and thread of the message; else None."""
    found = questions.find(given.conn, inquiry_id)
    if found is None or found.conversation == given.conversation:
        return found
    return found if _is_here(given.conn, found, given.message) else None


def _by_its_number(conn: Connection, message: InboundMessage) -> Question | None:
    number = _number(message)
    return None if number is None else questions.find(conn, number)


def _number(message: InboundMessage) -> int | None:
    first = registry.argument(message.text).strip().partition(" ")[0]
    is_id = first.isascii() and first.isdigit() and len(first) <= LONGEST_ID
    return int(first) if is_id else None


def _is_here(conn: Connection, found: Question, message: InboundMessage) -> bool:
    place, address = questions.place(conn, found), message.address
    there = (place.platform, place.account, place.chat, place.thread)
    return there == (address.platform, address.account, address.chat, address.thread)


def _waiting(given: Given, kind: InquiryKind) -> list[Question]:
    waiting = questions.pending(given.conn, given.conversation)
    return [found for found in waiting if found.kind == kind and not found.is_due]


def _taken(text: str, decided: tuple[Decision, ...]) -> Taken:
    """Return what is told for an answer; its time may have ended this very moment."""
    return Taken(text, decided) if decided else Taken(TOO_LATE, over=ENDED["expired"])


def _ended(found: Question) -> str:
    """Return how a question ended that is over, or due."""
    return ENDED["expired" if found.state == "pending" else found.state]


def still_waits(conn: Connection, conversation_id: int) -> str:
    """Return what else waits for an answer, in words; empty for nothing."""
    waiting = questions.pending(conn, conversation_id)
    ids = ", ".join(f"{found.id} (`{found.tool}`)" for found in waiting)
    return f"I still wait for an answer to {ids}." if waiting else ""


def _which(waiting: list[Question]) -> str:
    ids = ", ".join(f"{found.id} (`{found.tool}`)" for found in waiting)
    return f"Several questions wait; say which one you mean by its number: {ids}."


def _why_not(given: Given, found: Question, kind: InquiryKind) -> str:
    """Return why an answer is not taken; empty where it is."""
    user = questions.place(given.conn, found).user
    if user not in {None, given.message.sender} and not given.is_owner:
        return NOT_YOURS
    if found.kind == "approval" and not may_approve(
        found.tool, is_owner=given.is_owner, may_act=given.may_act
    ):
        return ONLY_OWNERS_APPROVE if given.may_act else MAY_NOT_APPROVE
    if not given.may_act and given.by not in questions.senders(given.conn, found):
        return NOT_YOURS
    if found.kind != kind:
        return OTHER_KIND[found.kind]
    if found.state == "pending":
        return TOO_LATE if found.is_due else ""
    return TOO_LATE if found.state == "expired" else OVER[found.state]


def _answer(given: Given, found: Question, said: str) -> Taken:
    """Take the number of a choice, or words."""
    numbered = {str(number): label for number, label in enumerate(found.choices, start=1)}
    said = numbered.get(said, said)
    if not said:
        return Taken(SAY_MORE)
    return _taken(f"Answer: {messages.quoted(said)}", _settle(given, found, said))


def _decide(given: Given, found: Question, answer: str) -> Taken:
    """Take an approval or its opposite."""
    if answer not in DECIDED:
        return Taken(HOW_TO_APPROVE)
    decided = _settle(given, found, answer)
    if answer == "conversation":
        same = (found.kind, found.tool, found.definition)
        for other in questions.pending(given.conn, found.conversation):
            if (other.kind, other.tool, other.definition) == same:
                decided += _settle(given, other, answer)
    return _taken(DECIDED[answer].format(tool=found.tool, id=found.id), decided)


def _settle(given: Given, found: Question, answer: str) -> tuple[Decision, ...]:
    """Store an answer; the turn goes on where nothing else is waited for."""
    if not questions.answer(given.conn, found.id, answer, given.by):
        return ()
    if found.kind == "clarify":
        questions.add_sender(given.conn, found, given.by)
    if not questions.is_awaited(given.conn, found.conversation):
        conversations.make_ready(given.conn, found.conversation)
    return (Decision(found, answer, given.by),)


DECIDED = {
    "once": "Approved, this once: `{tool}` ({id}).",
    "conversation": "Approved for this conversation, until `/new`: `{tool}` ({id}).",
    "deny": "Denied: `{tool}` ({id}) is not run.",
}
NONE_WAITS: dict[InquiryKind, str] = {
    "approval": "Nothing waits for an approval here.",
    "clarify": "No question waits for an answer here.",
}
NOT_HERE = "There is no such question here."
NOT_YOURS = "That question is not for you."
MAY_NOT_APPROVE = "You may not approve that: only people who were let in may, not guests."
ONLY_OWNERS_APPROVE = "You may not approve that: only an owner may."
OTHER_KIND: dict[InquiryKind, str] = {
    "approval": "That needs a yes or no: `/approve` or `/deny` with its number.",
    "clarify": "That is a question: answer it in your own words, or with `/answer` and its number.",
}
OVER = {
    "answered": "This was answered already.",
    "cancelled": "Nobody waits for that answer any more.",
}
TOO_LATE = "That is too late: the time for an answer is over."
SAY_MORE = "Write the answer behind it, or the number of a choice."
HOW_TO_APPROVE = "I understand `/approve`, `/approve once`, `/approve conversation` and `/deny`."
