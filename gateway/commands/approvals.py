"""`/approve`, `/deny` and `/answer`: replies to questions.

A reply is a button press, the same text typed by hand or, for a question of the agent, any plain
message. It is accepted once, from an authorized sender, where the question was asked. The waiting
turn resumes when no other question is open there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from sqlalchemy import Connection

from adapters.base import Renderer
from adapters.messages import InboundMessage
from agent import messages
from agent.ports import InquiryKind
from agent.tools.policy import any_taints
from gateway.access.policy import Answerer, AnswerRefusal, answer_refusal
from gateway.commands.registry import REPLY, Command, CommandContext, CommandResult
from gateway.storage.conversation import conversations, questions
from gateway.storage.conversation.questions import ENDED, Question
from gateway.storage.queue import outbox
from gateway.storage.queue.outbox import parts_of
from gateway.storage.schema import id_in

log = structlog.get_logger()

Renderers = Mapping[tuple[str, str], Renderer]
"""Renderers of active accounts by (platform, account)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A message that may answer a question.

    Attributes:
        conversation: The sender's conversation here; in a group the question may belong to another.
        may_act: Whether tools may have side effects for the sender.
        in_console: Whether it comes from the console, which shows all questions.
    """

    conn: Connection
    message: InboundMessage
    conversation: int
    is_owner: bool
    may_act: bool
    in_console: bool = False

    @property
    def by(self) -> str:
        """The sender as "platform:id"."""
        return f"{self.message.address.platform}:{self.message.sender}"


@dataclass(frozen=True, slots=True)
class SettledQuestion:
    """An answered question, to log after the commit.

    Attributes:
        tainted: Whether its turn had read text from a person who may not act.
    """

    question: Question
    answer: str
    by: str
    tainted: bool = False


@dataclass(frozen=True, slots=True)
class ReplyOutcome(CommandResult):
    """The result of a reply.

    Attributes:
        settled: The questions that it answers; empty if it was not accepted.
        over: How the question ended if the reply is too late; else empty.
    """

    settled: tuple[SettledQuestion, ...] = ()
    over: str = ""

    @property
    def answer(self) -> Literal["accepted", "refused", "over"]:
        """The result as platforms report it."""
        if self.settled:
            return "accepted"
        return "over" if self.over else "refused"


@Command(
    "approve",
    "approve an action that needs permission: by its number, once or for this conversation",
    REPLY,
    30,
)
def approve(context: CommandContext) -> ReplyOutcome:
    """Approve a call once (the default) or for the conversation."""
    return _by_command(context, "approval", lambda said: said.lower() or "once")


@Command("deny", "refuse it", REPLY, 40)
def deny(context: CommandContext) -> ReplyOutcome:
    """Deny a call; ignore the text after the command."""
    return _by_command(context, "approval", lambda _: "deny")


@Command("answer", "answer my question, in words or by the number of a choice", REPLY, 50)
def answer(context: CommandContext) -> ReplyOutcome:
    """Answer a question in words or with the number of a choice."""
    return _by_command(context, "clarify", lambda said: said)


def _by_command(
    context: CommandContext, kind: InquiryKind, understood: Callable[[str], str]
) -> ReplyOutcome:
    """Apply a reply to the question with its number, or to the only open question."""
    reply = Reply(
        context.conn, context.message, context.conversation, context.is_owner, context.may_act
    )
    said = context.argument
    rest = "".join(said.split(maxsplit=1)[1:])
    number = _number(said)
    named = None if number is None else questions.find(context.conn, number)
    if named is not None and _refusal(reply, named) == "not here":
        named = None
    # `/answer 2` may be a choice; `/answer 2 apples` is text.
    if number is not None and (kind == "approval" or (named is not None and rest)):
        question, said, why_not = named, rest, NOT_HERE
    else:
        waiting = _waiting(reply, kind)
        question = waiting[0] if len(waiting) == 1 else None
        many = f"Several questions wait; say which one you mean by its number: {_listed(waiting)}."
        why_not = many if waiting else NONE_WAITS[kind]
    if question is not None:
        why_not = _why_not(reply, question, kind)
    if question is None or why_not:
        is_over = question is not None and why_not in {TOO_LATE, *OVER.values()}
        return ReplyOutcome(why_not, over=_ended(question) if question and is_over else "")
    take = _answer if kind == "clarify" else _decide
    return take(reply, question, understood(said))


def by_owner(
    conn: Connection, renderers: Renderers, message: InboundMessage, number: int, said: str
) -> tuple[ReplyOutcome, set[int]]:
    """Apply an owner's answer from the console, by the rules of a chat.

    The chat of the question loses its buttons and gets a text that an owner has answered.

    Args:
        message: Only names the owner.
        said: once, conversation or deny; for a question of the agent, the answer.

    Returns:
        The outcome, and the conversations with a new text.
    """
    reply = Reply(conn, message, 0, is_owner=True, may_act=True, in_console=True)
    question = questions.find(conn, number)
    if question is None:
        return ReplyOutcome(NOT_HERE), set()
    conversations.hold(conn, question.conversation)
    if why_not := _why_not(reply, question, question.kind):
        return ReplyOutcome(why_not, over=_ended(question)), set()
    outcome = (_answer if question.kind == "clarify" else _decide)(reply, question, said)
    return outcome, conclude(conn, renderers, outcome.settled)


def conclude(
    conn: Connection,
    renderers: Renderers,
    settled: Sequence[SettledQuestion],
    here: int = 0,
    pressed: int | None = None,
) -> set[int]:
    """Remove the buttons of answered questions and inform their chats; return these chats.

    Args:
        here: The conversation of the reply; 0 for the console.
        pressed: The question whose button was pressed; its platform removes the buttons itself.
    """
    told: set[int] = set()
    for each in settled:
        question = each.question
        but_in = here if question.id == pressed else None
        note = ENDED["answered"] if question.kind == "clarify" else "approved"
        note = "denied" if question.kind == "approval" and each.answer == "deny" else note
        told |= questions.withdraw(conn, question.id, note, but_in=but_in)
        if question.conversation != here:
            told |= _tell_place(conn, renderers, each)
    return told


def _tell_place(conn: Connection, renderers: Renderers, settled: SettledQuestion) -> set[int]:
    """Tell the chat of a question that an owner answered it elsewhere; return that chat."""
    question = settled.question
    place = conversations.get(conn, question.conversation)
    render = renderers.get(place.account_key)
    if render is None:
        return set()
    text = f"An owner has answered my question: {messages.quoted(settled.answer)}"
    if question.kind == "approval":
        decided = DECIDED[settled.answer].format(tool=question.tool, id=question.id)
        text = f"An owner has answered. {decided}"
    parts = parts_of(render, f"inquiry:{question.id}:answered", text)
    outbox.append(conn, place.id, parts, inbox_seq=questions.upto_seq(conn, place.id))
    return {place.id}


def again(
    conn: Connection, message: InboundMessage, argument: str
) -> Literal["accepted", "refused", "over"]:
    """Return the earlier result of a repeated press."""
    question = _by_its_number(conn, argument)
    if question is None or question.state == "pending":
        return "refused"
    by = f"{message.address.platform}:{message.sender}"
    return "accepted" if question.by == by else "over"


def asked_in(conn: Connection, message: InboundMessage, argument: str) -> int | None:
    """Return the conversation of the question that a reply names; None if asked elsewhere."""
    question = _by_its_number(conn, argument)
    if question is None:
        return None
    place = conversations.get(conn, question.conversation)
    return place.id if place.address == message.address else None


def answered_in_words(reply: Reply) -> Question | None:
    """Return the oldest question that the sender of a plain message may answer with it."""
    waiting = _waiting(reply, "clarify")
    return next((each for each in waiting if not _why_not(reply, each, "clarify")), None)


def pressed(message: InboundMessage, argument: str) -> int | None:
    """Return the number of the question whose button was pressed; None for other messages."""
    return _number(argument) if message.pressed else None


def report(settled: SettledQuestion) -> None:
    """Log an answer without its words."""
    question, by = settled.question, settled.by
    if question.kind == "clarify":
        log.info(
            "question_answered", conversation=question.conversation, inquiry=question.id, by=by
        )
    elif settled.answer == "deny":
        log.info(
            "tool_denied",
            conversation=question.conversation,
            inquiry=question.id,
            tool=question.tool,
            by=by,
            rule=question.rule,
            tainted=settled.tainted,
        )
    else:
        log.info(
            "tool_approved",
            conversation=question.conversation,
            inquiry=question.id,
            tool=question.tool,
            scope=settled.answer,
            by=by,
            rule=question.rule,
            tainted=settled.tainted,
        )


def waiting_text(waiting: Sequence[Question]) -> str:
    """Return the text for a sender whose new message waits for these answers."""
    question = waiting[0]
    if len(waiting) > 1:
        return (
            f"Your message waits: {len(waiting)} questions need an answer first:"
            f" {_listed(waiting)}. Send"
            " `/approve`, `/deny` or `/answer` with the number, or `/stop` to drop all of it."
        )
    if question.kind == "approval":
        return (
            f"Your message waits: I first need to know whether I may run `{question.tool}`."
            " Send `/approve` or `/deny`, or `/stop` to drop all of it."
        )
    return (
        "Your message waits: I have asked a question that needs an answer first. Send `/stop`"
        " to drop it."
    )


def _by_its_number(conn: Connection, argument: str) -> Question | None:
    number = _number(argument)
    return None if number is None else questions.find(conn, number)


def _number(argument: str) -> int | None:
    """Return the question number at the start of a reply."""
    return id_in("".join(argument.split(maxsplit=1)[:1]))


def _waiting(reply: Reply, kind: InquiryKind) -> list[Question]:
    waiting = questions.pending(reply.conn, reply.conversation)
    return [question for question in waiting if question.kind == kind and not question.is_due]


def _taken(text: str, decided: tuple[SettledQuestion, ...]) -> ReplyOutcome:
    """Return the reply to an answer, which may have come too late."""
    if decided:
        return ReplyOutcome(text, settled=decided)
    return ReplyOutcome(TOO_LATE, over=ENDED["expired"])


def _ended(question: Question) -> str:
    return ENDED["expired" if question.state == "pending" else question.state]


def still_waits(conn: Connection, conversation_id: int) -> str:
    """Return a text about the other open questions; empty without any."""
    waiting = questions.pending(conn, conversation_id)
    return f"I am still waiting for an answer to {_listed(waiting)}." if waiting else ""


def _listed(waiting: Sequence[Question]) -> str:
    return ", ".join(f"{question.id} (`{question.tool}`)" for question in waiting)


def _refusal(reply: Reply, question: Question) -> AnswerRefusal | None:
    is_owner, may_act, message = reply.is_owner, reply.may_act, reply.message
    place = conversations.get(reply.conn, question.conversation)
    is_here = place.id == reply.conversation or place.address == message.address
    elsewhere: Literal["direct", "elsewhere"] = (
        "direct" if message.chat_kind == "dm" else "elsewhere"
    )
    who = Answerer(
        role="owner" if is_owner else "member" if may_act else "guest",
        where="console" if reply.in_console else "here" if is_here else elsewhere,
        is_asked=place.user in {None, message.sender},
        has_spoken=may_act or reply.by in questions.senders(reply.conn, question),
    )
    return answer_refusal(question.kind, question.tool, who, for_owners=question.for_owners)


def _why_not(reply: Reply, question: Question, kind: InquiryKind) -> str:
    """Return the reason to refuse an answer; empty if it is accepted."""
    # Check rights before state: only authorized people learn how a question ended.
    if refusal := _refusal(reply, question):
        return REFUSALS[refusal]
    if question.kind != kind:
        return OTHER_KIND[question.kind]
    if question.state == "pending":
        return TOO_LATE if question.is_due else ""
    return TOO_LATE if question.state == "expired" else OVER[question.state]


def _answer(reply: Reply, question: Question, said: str) -> ReplyOutcome:
    """Record the number of a choice, or words."""
    numbered = {str(number): label for number, label in enumerate(question.choices, start=1)}
    said = numbered.get(said, said)
    if not said:
        return ReplyOutcome(SAY_MORE)
    return _taken(
        f"Answer: {messages.quoted(said)}", settle(reply.conn, reply.message, question, said)
    )


def _decide(reply: Reply, question: Question, answer: str) -> ReplyOutcome:
    """Record an approval or a denial."""
    if answer not in DECIDED:
        return ReplyOutcome(HOW_TO_APPROVE)
    decided = settle(reply.conn, reply.message, question, answer)
    if answer == "conversation":
        # Parallel calls may all have asked; one answer applies to each of them.
        same = (question.kind, question.tool, question.definition)
        for other in questions.pending(reply.conn, question.conversation):
            is_same = (other.kind, other.tool, other.definition) == same
            # One of them may be reserved for owners.
            if is_same and not _why_not(reply, other, question.kind):
                decided += settle(reply.conn, reply.message, other, answer)
    return _taken(DECIDED[answer].format(tool=question.tool, id=question.id), decided)


def settle(
    conn: Connection, message: InboundMessage, question: Question, answer: str
) -> tuple[SettledQuestion, ...]:
    """Store an answer unless the question is closed; resume the turn if no other is open."""
    platform = message.address.platform
    by = f"{platform}:{message.sender}"
    if not questions.answer(conn, question.id, answer, by):
        return ()
    if question.kind == "clarify":
        # The turn now contains this person's words, so it gets no more rights than theirs.
        everybody = [by, *(f"{platform}:{author}" for author in message.authors)]
        questions.add_senders(conn, question, everybody)
    if not questions.is_awaited(conn, question.conversation):
        conversations.make_ready(conn, question.conversation)
    tainted = question.kind == "approval" and any_taints(questions.read_before(conn, question))
    return (SettledQuestion(question, answer, by, tainted),)


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
REFUSALS: dict[AnswerRefusal, str] = {
    "not here": NOT_HERE,
    "not theirs": NOT_YOURS,
    "guest": MAY_NOT_APPROVE,
    "owners alone": ONLY_OWNERS_APPROVE,
}
OTHER_KIND: dict[InquiryKind, str] = {
    "approval": "That needs a yes or no: `/approve` or `/deny` with its number.",
    "clarify": "That is a question: answer it in your own words, or with `/answer` and its number.",
}
OVER = {
    "answered": "This was answered already.",
    "cancelled": "That question is no longer open.",
}
TOO_LATE = "That came too late: the question has expired."
SAY_MORE = "Add your answer, or the number of a choice."
HOW_TO_APPROVE = "I understand `/approve`, `/approve once`, `/approve conversation` and `/deny`."
