"""Questions that turns ask people.

A question and its message are committed together, then the turn is suspended. It resumes with an
answer (gateway/commands/approvals.py) or when the time is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog
from sqlalchemy import Connection

from adapters.base import Renderer
from adapters.messages import CHOICE_LABEL_CHARS, Choice
from agent.errors import ToolError, TurnSuspended
from agent.messages import open_calls, quoted, text_of
from agent.ports import Decision, Inquiry, InquiryKind, InquiryReply
from gateway.access.policy import Answerer, Owners, answer_refusal
from gateway.signals import Wakeups
from gateway.storage.conversation import conversations, questions, turn_journal, turns
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.conversation.questions import Question
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.people import notebook
from gateway.storage.queue import inbox, outbox
from gateway.storage.queue.outbox import OutboxPart, parts_of

log = structlog.get_logger()

TIMEOUT_S: Mapping[InquiryKind, float] = {"approval": 3_600.0, "clarify": 86_400.0}
"""Seconds to wait for an answer; then the turn resumes without it."""
SWEEP_S = 5.0
"""Longest delay until an overdue inquiry is closed, in seconds; late answers are refused anyway."""
TASK_CHARS = 100
"""Longest shown task of a delegated child that asks."""
TOO_LONG = (
    "it needs an approval, and its arguments are too long to be shown to a person in full;"
    " do it in several smaller calls"
)

ONE_AT_A_TIME = (
    "another question waits for its answer, and this one was not asked; ask one question at a time"
)


class Inquiries:
    """Asks the people of conversations, and expires overdue questions."""

    def __init__(
        self, database: Database, owners: Owners, approval_valid_s: float, wakeups: Wakeups
    ) -> None:
        self.database = database
        self.approval_valid_s = approval_valid_s
        self.wakeups = wakeups
        self._owners, self._renderers = owners, owners.renderers

    def people(self, turn: Turn) -> "TurnPeople":
        """Return the people whom a turn may ask; a delegated child asks its parent's people."""
        return TurnPeople(self, turn)

    async def sweep(self) -> None:
        """Expire unanswered questions."""
        # Read first: usually none is due, and a read needs no commit.
        if not await self.database.read(self._due):
            return
        for found, shown in await self.database.write(self._expire):
            log.info(
                "inquiry_expired",
                conversation=found.conversation,
                inquiry=found.id,
                kind=found.kind,
                tool=found.tool,
            )
            for place in shown:
                self.wakeups.outbox(place)
            self.wakeups.ready(found.conversation)

    def _due(self, conn: Connection) -> list[tuple[Question, Conversation]]:
        """Return due questions with their conversations, except those of inactive accounts."""
        due = questions.overdue(conn)
        places = [(found, conversations.get(conn, found.conversation)) for found in due]
        return [(found, place) for found, place in places if place.account_key in self._renderers]

    def _expire(self, conn: Connection) -> list[tuple[Question, set[int]]]:
        """Expire due questions, notify their chats and resume their turns.

        Return each question with the conversations that show it.
        """
        expired = []
        # Read again in the transaction: a question may have been answered meanwhile.
        for found, place in self._due(conn):
            if not questions.expire(conn, found):
                continue
            expired.append((found, {found.conversation, *questions.shown_in(conn, found.id)}))
            render, key = self._renderers[place.account_key], f"inquiry:{found.id}:expired"
            text = "Nobody answered my question in time: I go on without an answer."
            if found.kind == "approval":
                text = f"Nobody answered in time: `{found.tool}` is not run."
            parts = parts_of(render, key, text)
            outbox.append(conn, place.id, parts, inbox_seq=questions.upto_seq(conn, place.id))
            conversations.make_ready(conn, found.conversation)
        return expired

    def still_may_approve(self, conn: Connection, by: str, asked: Inquiry) -> bool:
        """Whether an earlier approval for the conversation still applies."""
        who = Answerer(role=self._owners.access.weakest(conn, [by]))
        return answer_refusal("approval", asked.tool, who, for_owners=asked.for_owners) is None

    def renderer(self, turn: Turn) -> Renderer:
        """Return the renderer of a turn's chat."""
        address = turn.lease.address
        return self._renderers[address.platform, address.account]

    def rendered(self, found: Question, question: str, turn: Turn) -> list[OutboxPart]:
        """Return the outbox rows that ask a question in a turn's chat."""
        render, text = self.renderer(turn), self._text(found, question, turn)
        return _asked(render, f"inquiry:{found.id}", text, _choices(found), turn.reply_to)

    def tell_owners(self, conn: Connection, found: Question, question: str, turn: Turn) -> set[int]:
        """Ask owners in their own chats if none of them reads this chat; return these chats."""
        if self._owners.access.weakest(conn, [turn.sender]) == "owner":
            return set()
        chats = self._owners.chats(conn, self._owners.everybody(conn))
        others = [chat for chat in chats if chat.id != found.conversation]
        text = _who_asks(conn, found, turn) + self._text(found, question, turn)
        for chat in others:
            about = questions.told(found.id, chat.id)
            parts = _asked(self._renderers[chat.account_key], about, text, _choices(found))
            outbox.append(conn, chat.id, parts, inbox_seq=chat.inbox_head)
        if not others:
            log.warning("owners_not_reached", platform=turn.lease.address.platform)
        return {chat.id for chat in others}

    def _text(self, found: Question, question: str, turn: Turn) -> str:
        return _for_whom(turn) + _question_text(found, question)


def _asked(
    render: Renderer,
    about: str,
    text: str,
    choices: tuple[Choice, ...],
    reply_to: str | None = None,
) -> list[OutboxPart]:
    *before, last = parts_of(render, f"{about}:asked", text, reply_to=reply_to, choices=choices)
    # This key finds its buttons later.
    key = f"{about}:buttons:1" if last.choices else last.source_key
    return [*before, replace(last, source_key=key)]


def _who_asks(conn: Connection, found: Question, turn: Turn) -> str:
    """Return the introduction of an owner's question: its sender and chat."""
    place = conversations.get(conn, found.conversation)
    name = inbox.name_of(conn, found.conversation, turn.sender.partition(":")[2])
    who = f"{quoted(name)} ({quoted(turn.sender)})" if name else quoted(turn.sender)
    is_shared = notebook.is_shared(notebook.scope_of(conn, found.conversation))
    where = f"the chat {quoted(place.chat)}" if is_shared else "a direct chat"
    return (
        f"{who} asks for this on {quoted(place.platform)}, in {where} (conversation"
        f" {found.conversation}). You can answer here.\n\n"
    )


@dataclass(frozen=True, slots=True)
class TurnPeople:
    """`agent.ports.People` of one turn."""

    inquiries: Inquiries
    turn: Turn

    async def ask(self, inquiry: Inquiry) -> InquiryReply:
        """Return the reply, or ask and suspend the turn."""
        found, shown = await self.inquiries.database.write(self._ask, inquiry)
        if shown is not None:
            self._announce(found, shown, inquiry.decision)
        return _reply(found)

    async def decided(self, call_id: str) -> InquiryReply | None:
        """Return an earlier attempt's approval of a call; None if it did not ask.

        A call of this attempt needs no read.
        """
        if all(call["id"] != call_id for call in open_calls(list(self.turn.messages))):
            return None
        found = await self.inquiries.database.read(self._of_call, call_id)
        return _reply(found) if found is not None and found.kind == "approval" else None

    def _of_call(self, conn: Connection, call_id: str) -> Question | None:
        call = turn_journal.call_key(conn, self.turn, call_id)
        return questions.of_call(conn, self.turn.id, call)

    def _ask(self, conn: Connection, inquiry: Inquiry) -> tuple[Question, set[int] | None]:
        """Return the call's question and, for a new one, the conversations that show it."""
        turns.proceed(conn, self.turn)
        call = turn_journal.call_key(conn, self.turn, inquiry.call_id)
        found = questions.of_call(conn, self.turn.id, call)
        # An earlier attempt asked: the same call finds the same question (decision 002).
        if found is not None:
            return found, None
        lease = self.turn.lease
        # A child has no chat, so ask in its parent's.
        place = (lease.parent or lease.conversation, self.turn.id, call)
        if inquiry.kind == "approval":
            valid_s = self.inquiries.approval_valid_s
            by = questions.approver(conn, place[0], inquiry, valid_s)
            if by is not None and self.inquiries.still_may_approve(conn, by, inquiry):
                return questions.enter_approved(conn, *place, inquiry, by), set()
            if not inquiry.askable:
                raise ToolError(TOO_LONG)
        elif questions.is_asked(conn, place[0]):
            raise ToolError(ONE_AT_A_TIME)
        entered = questions.enter(conn, *place, inquiry, TIMEOUT_S[inquiry.kind])
        parts = self.inquiries.rendered(entered, inquiry.question, self.turn)
        turn_journal.notify(conn, self.turn, parts)
        # An answer that replaces the preview would be above the question.
        turn_journal.leave_preview(conn, lease)
        shown = {place[0]}
        if inquiry.for_owners:
            shown |= self.inquiries.tell_owners(conn, entered, inquiry.question, self.turn)
        return entered, shown

    def _announce(self, found: Question, shown: set[int], why: Decision | None) -> None:
        """Log a new inquiry with its reason, and hint its delivery."""
        if found.state == "answered":
            log.info(
                "tool_approved",
                conversation=found.conversation,
                inquiry=found.id,
                tool=found.tool,
                scope="conversation",
                by=found.by,
                rule=found.rule,
                tainted=why is not None and why.tainted,
            )
            return
        log.info(
            "inquiry_asked",
            conversation=found.conversation,
            inquiry=found.id,
            kind=found.kind,
            tool=found.tool,
            rule=found.rule,
            tainted=why is not None and why.tainted,
        )
        for place in shown:
            self.inquiries.wakeups.outbox(place)


def _reply(found: Question) -> InquiryReply:
    if found.state == "pending":
        raise TurnSuspended(f"{found.kind} {found.id} waits for an answer")
    if found.state != "answered":
        return InquiryReply("expired")
    return InquiryReply("answered", found.answer, found.by)


def _for_whom(turn: Turn) -> str:
    """Name the task of a delegated child; empty for the chat's own turn."""
    if turn.lease.parent is None:
        return ""
    line = " ".join(text_of(turn.messages[0]).split()) if turn.messages else ""
    task = line if len(line) <= TASK_CHARS else f"{line[: TASK_CHARS - 1]}…"
    return f"For a task I delegated, {quoted(task)}:\n\n"


def _question_text(found: Question, question: str) -> str:
    within = "60 minutes" if found.kind == "approval" else "24 hours"
    if found.kind == "approval":
        nobody = "no owner approves it" if found.for_owners else "nobody approves it"
        how = (
            f"To approve, reply `/approve {found.id}` (this call only) or `/approve {found.id}"
            " conversation` (similar calls in this conversation, too). To refuse, reply `/deny"
            f" {found.id}`. If {nobody} within {within}, I will not run it."
        )
    elif found.choices:
        how = f"Pick one, or answer in your own words, within {within}."
    else:
        how = f"Please answer within {within}."
    return f"{question}\n\n{how}"


def _choices(found: Question) -> tuple[Choice, ...]:
    if found.kind == "approval":
        return (
            Choice("Approve once", f"/approve {found.id} once"),
            Choice("Approve for this conversation", f"/approve {found.id} conversation"),
            Choice("Deny", f"/deny {found.id}"),
        )
    return tuple(
        Choice(label[:CHOICE_LABEL_CHARS], f"/answer {found.id} {number}")
        for number, label in enumerate(found.choices, start=1)
    )
