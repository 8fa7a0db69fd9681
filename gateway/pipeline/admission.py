"""What becomes of one inbound message, in the admitting transaction.

The order of the checks: known already? an edit? for the bot? allowed? too many? a command? an
answer to a question? Else it waits for a turn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlalchemy import Connection

from adapters.base import Renderer
from adapters.messages import Admission, Choice, InboundMessage, MessageRef, Poison, Reaction
from gateway.access import pairing
from gateway.access.pairing import Happening, Kind, Pairing
from gateway.access.policy import Access, Quotas, SenderRole, is_for_bot
from gateway.commands import approvals, registry
from gateway.commands.approvals import Reply, ReplyOutcome, SettledQuestion
from gateway.commands.help import nearest, unknown_text
from gateway.commands.registry import (
    NEW_BEGINNING,
    REPLY,
    AnyCommand,
    CommandContext,
    CommandResult,
    CommandServices,
    Parsed,
)
from gateway.commands.status_figures import MoneyRules, StatusFacts
from gateway.session_keys import GroupSessions, address_key, session_key, sole_sender
from gateway.settings.tree import AttachmentSettings, GroupRule, QueueSettings
from gateway.storage.conversation import attachments, conversations, questions, turn_journal
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.queue import arrivals, inbox, outbox, overheard
from gateway.storage.queue.inbox import InboxKind
from gateway.storage.queue.outbox import parts_of

TOO_MANY = (
    "Those were too many messages in one minute: I am ignoring new ones for now. Please wait a"
    " moment, then send them again."
)
FILE_NOT_READ = "I did not read the file that came with this command."
EDITED = (
    "You edited a message that I had already answered. My next answer will use the new wording; I"
    " can also answer it now."
)
ASK_AGAIN = "Ask again"
TAKEN = "taken"
"""Ends the key of a row that says "your answer was taken". The web chat shows such a row as a
notice (`NOTICES` in gateway/storage/reports/history.py), since the turn answers later."""
REFUSED_CHARS = 100
"""Characters that are kept of the text of a message over the rate limit."""


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """What decides about an update; all of it fixed at start but the figures of the model.

    Attributes:
        model: Returns what is said about the model that was chosen, None for the default, as it is
            now.
    """

    access: Access
    queue: QueueSettings
    groups: GroupSessions
    model: Callable[[str | None], StatusFacts]
    money: MoneyRules = field(default_factory=MoneyRules)
    attachments: AttachmentSettings = field(default_factory=AttachmentSettings)
    quotas: Quotas = field(default_factory=Quotas)


@dataclass(slots=True)
class AfterCommit:
    """What messages lead to once their transaction is committed.

    Attributes:
        wake: Conversations whose outbox got something beside that of the message.
        marks: Messages that nobody will answer any more, or that are answers themselves.
        stops: Conversations whose turns end, with the place in the inbox of what ends them.
    """

    wake: set[int] = field(default_factory=set)
    happened: list[Happening] = field(default_factory=list)
    marks: list[tuple[MessageRef, Reaction]] = field(default_factory=list)
    settled: list[SettledQuestion] = field(default_factory=list)
    stops: list[tuple[int, int]] = field(default_factory=list)


class AdmissionBatch:
    """Admits messages in one transaction, one after another."""

    def __init__(
        self,
        conn: Connection,
        rules: IntakeRules,
        pairing: Pairing,
        renderers: Mapping[tuple[str, str], Renderer],
    ) -> None:
        self._tx = _Transaction(conn, rules, pairing, renderers)
        self._edits = _Edits(self._tx)
        self._strangers = _Strangers(self._tx)
        self._answers = _Answers(self._tx)

    @property
    def after(self) -> AfterCommit:
        """What is to be done once the transaction is committed; it grows with each message."""
        return self._tx.after

    def hold(self, messages: Sequence[InboundMessage]) -> None:
        """Lock the conversations of several messages, in the order in which everybody does."""
        conversations.hold_of_keys(self._tx.conn, {self._tx.key(each) for each in messages})

    def admit(self, message: InboundMessage) -> Admission:
        """Decide about one message and enter what is to be kept of it."""
        tx = self._tx
        # What somebody else wrote is no command of who forwards it.
        tx.said = registry.parse("" if message.authors else message.text)
        known, tx.place = arrivals.arrival(tx.conn, tx.key(message), message)
        if known:
            return self._answers.again(message)
        rule = tx.rules.access.rule(message)
        if message.kind == "edit":
            role = tx.rules.access.role_of(tx.conn, message)
            edited = self._edits.revise(message, rule, role)
            # What nobody answered is asked once more, as if it were new.
            return edited or self._take(replace(message, kind="message"), role)
        if not self._is_for_bot(message, rule):
            return tx.overhear(message, rule) or Admission("ignored")
        role = tx.rules.access.role_of(tx.conn, message)
        return self._strangers.meet(message, rule, role) or self._take(message, role)

    def _take(self, message: InboundMessage, role: SenderRole) -> Admission:
        """Take what somebody says who may: too many? a command? an answer? else it is queued."""
        tx = self._tx
        tx.said = tx.said.said_by(owner=role == "owner")
        # A reply counts where its question was asked; its sender may have no conversation there.
        row = self._answers.asked_in(message) or tx.conversation(message)
        if tx.is_over_rate(message, role):
            return tx.refuse(_in_short(message), row.id, tx.too_many(message))
        command = tx.said.command
        if command is not None and command.route.when == "at once":
            return self._run(command, message, row, role)
        if word := self._tx.said.unknown:
            return self._correct(message, row, word)
        return self._answers.in_words(message, row, role) or self._queue(message, row, role)

    def _is_for_bot(self, message: InboundMessage, rule: GroupRule | None) -> bool:
        if self._is_for_another(message):
            return False
        return is_for_bot(rule, message, in_thread=self._is_in_thread(message))

    def _is_for_another(self, message: InboundMessage) -> bool:
        """Whether a command in a group is another bot's: it names one, or no command is like it.

        In a group a command without a name reaches every bot that is there.
        """
        command = self._tx.said.command
        if message.chat_kind != "group" or (command is not None and command.owner_only):
            return False
        word = self._tx.said.unknown
        return self._tx.said.names_a_bot or (bool(word) and nearest(word) is None)

    def _is_in_thread(self, message: InboundMessage) -> bool:
        """Whether the bot has a conversation in a thread where nobody was addressed."""
        if message.addressed != "thread":
            return False
        return conversations.find(self._tx.conn, address_key(message.address)) is not None

    def _run(
        self,
        command: AnyCommand,
        message: InboundMessage,
        row: Conversation,
        role: SenderRole,
    ) -> Admission:
        """Carry out a command that is answered at once, past the queue."""
        seq = self._tx.append_done(message, row, command.name)
        services = CommandServices(self._tx.rules.model, self._tx.rules.money, self._tx.pairing)
        is_owner, argument = role == "owner", self._tx.said.argument
        result = command.run(
            CommandContext(self._tx.conn, message, row.id, seq, argument, is_owner, services)
        )
        text = f"{result.text}\n\n{FILE_NOT_READ}" if message.attachments else result.text
        if isinstance(result, ReplyOutcome):
            return self._answers.take(message, row.id, seq, result, text)
        self._note(result, row.id, seq)
        self._tx.reply(message, row.id, seq, text, result.choices)
        return Admission("command", row.id, seq)

    def _note(self, result: CommandResult, conversation_id: int, seq: int) -> None:
        """Note what counts once the transaction is committed."""
        self._tx.after.marks += [(ref, "failed") for ref in result.dropped]
        self._tx.after.happened += [result.happened] if result.happened else []
        self._tx.after.stops += [(conversation_id, seq)] if result.stops else []
        self._tx.after.wake |= result.wake

    def _correct(self, message: InboundMessage, row: Conversation, word: str) -> Admission:
        """Answer a command that there is not; nothing of it reaches the model."""
        seq = self._tx.append_done(message, row)
        text = unknown_text(word)
        if message.attachments:
            text += f"\n\n{FILE_NOT_READ}"
        self._tx.reply(message, row.id, seq, text)
        return Admission("command", row.id, seq)

    def _queue(self, message: InboundMessage, row: Conversation, role: SenderRole) -> Admission:
        if not message.text.strip() and not message.attachments:
            return self._tx.refuse(message, row.id, _unreadable_text(message))
        if row.pending >= self._tx.rules.queue.max_pending:
            return self._tx.refuse(message, row.id, self._full_text())
        tx = self._tx
        over = None if role == "owner" else tx.rules.quotas.refusal(tx.conn, message)
        if over is not None:
            self._tx.happens("limited", message)
            return self._tx.refuse(_in_short(message), row.id, over or None)
        return self._enqueue(message, row)

    def _full_text(self) -> str:
        most = self._tx.rules.queue.max_pending
        return (
            f"I did not accept this message: {most} are already waiting."
            " Please send it again when I have answered, or send /stop to drop what waits."
        )

    def _enqueue(self, message: InboundMessage, row: Conversation) -> Admission:
        command = self._tx.said.command
        name = command.name if command else None
        begins_anew = command is not None and command.route is NEW_BEGINNING
        kind: InboxKind = "command" if command else "message"
        told = _with_unread(message)
        seq = inbox.append(self._tx.conn, row.id, told, kind=kind, state="queued", command=name)
        if command is None or begins_anew:
            limit_bytes = self._tx.rules.attachments.max_bytes
            strangers = self._strangers_among(message)
            files = message.attachments
            attachments.append(self._tx.conn, row.id, seq, files, limit_bytes, strangers)
        elif message.attachments:
            self._tx.tell(message, row.id, seq, f"file:{row.id}:{seq}", FILE_NOT_READ)
            self._tx.after.wake.add(row.id)
        if kind == "message" and not row.title:
            conversations.set_title(self._tx.conn, row.id, self._tx.title(message))
        if self._tx.rules.queue.mode == "interrupt" or (begins_anew and row.waits):
            # A new beginning waits for nobody: what is said behind it would count as the answer.
            turn_journal.cancel_running(self._tx.conn, row.id)
        if row.waits and (waiting := questions.pending(self._tx.conn, row.id)):
            # Said once for each inquiry: the key is the same.
            text = approvals.waiting_text(waiting)
            is_told = self._tx.tell(message, row.id, seq, f"inquiry:{waiting[0].id}:waits", text)
            self._tx.after.wake.add(row.id)
            return Admission("queued", row.id, seq, silent=not is_told)
        if row.waits:
            # Not any more: what it waited for was withdrawn just now.
            conversations.make_ready(self._tx.conn, row.id)
        return Admission("queued", row.id, seq)

    def _strangers_among(self, message: InboundMessage) -> set[str]:
        """Return whose files are not fetched: authors of quoted files who may not act."""
        platform, access = message.address.platform, self._tx.rules.access
        authors = {author for file in message.attachments for author in file.authors}
        return {who for who in authors if not access.may_act(self._tx.conn, [f"{platform}:{who}"])}


class _Edits:
    """Edits of messages that came before."""

    def __init__(self, tx: "_Transaction") -> None:
        self._tx = tx

    def revise(
        self, message: InboundMessage, rule: GroupRule | None, role: SenderRole
    ) -> Admission | None:
        """Give a waiting message its new wording; None to ask a stopped or failed one again.

        Of an edit of what was answered, or is being answered, the next turn is told; what was
        answered can be asked again with a button. The same wording once more changes nothing.
        """
        if role == "stranger":
            return Admission("denied")
        is_silent = rule is not None and rule.respond == "never"
        if self._tx.place is None or message.message_ref is None or is_silent:
            return Admission("ignored")
        place = self._tx.place.id
        fate = overheard.fate(self._tx.conn, place, message)
        if fate is None:
            return Admission("ignored")
        if _with_unread(message).text == fate.text:
            # Platforms report edits that no person made: a link is shown, a reaction is added.
            return Admission("updated", place)
        return self._reword(message, role, place, fate)

    def _reword(
        self, message: InboundMessage, role: SenderRole, place: int, fate: overheard.Fate
    ) -> Admission | None:
        """Take a new wording; what it leads to depends on what became of the message."""
        told = _with_unread(message)
        waits = bool(questions.pending(self._tx.conn, place))
        if _is_unanswered(fate) and told.text.strip() and not waits:
            return None
        if self._tx.is_over_rate(message, role):
            return self._tx.refuse(_in_short(message), place, self._tx.too_many(message))
        revised = overheard.revise(self._tx.conn, place, told)
        # The entry of the edit itself: "done" where the message still waits and has the new words
        # now, else a note for the next question (decision 084).
        if revised == "emptied":
            question = MessageRef(message.address, message.sender, message.message_ref)
            self._tx.after.marks.append((question, "failed"))
        if revised is not None:
            seq = inbox.append(self._tx.conn, place, told, kind="edit", state="done")
        else:
            seq = overheard.note(self._tx.conn, place, told, "edit")
            if _is_answered(fate) and told.text.strip():
                self._offer_again(told, place, seq, fate)
        return Admission("updated", place, seq)

    def _offer_again(
        self, message: InboundMessage, place: int, seq: int, fate: overheard.Fate
    ) -> None:
        """Offer to answer the new wording; once until there is another turn."""
        key = f"edit:{place}:{fate.seq}:{overheard.newest_turn(self._tx.conn, place)}"
        render, again = self._tx.renderer(message), Choice(ASK_AGAIN, f"/retry {fate.seq}")
        parts = parts_of(render, key, EDITED, reply_to=message.message_ref, choices=(again,))
        if outbox.append(self._tx.conn, place, parts, inbox_seq=seq):
            self._tx.after.wake.add(place)


class _Strangers:
    """Those whom nobody has let in, and the codes that let them in."""

    def __init__(self, tx: "_Transaction") -> None:
        self._tx = tx

    def meet(
        self, message: InboundMessage, rule: GroupRule | None, role: SenderRole
    ) -> Admission | None:
        """Take a code, or turn a stranger away; None where the sender is allowed."""
        tx = self._tx
        # A code of the first owner goes no further: the model must not read it (docs/access.md).
        code = None if role == "owner" else tx.pairing.try_code(tx.conn, message)
        if code == "right":
            return self._bind(message)
        if role != "stranger":
            return self._refuse_code(message, role) if code == "refused" else None
        if message.addressed != "direct":
            return tx.overhear(message, rule) or Admission("denied")
        return self._deny(message, code)

    def _bind(self, message: InboundMessage) -> Admission:
        row = self._tx.conversation(replace(message, text=""))
        seq = self._tx.append_done(message, row)
        self._tx.pairing.bind(self._tx.conn, message)
        self._tx.happens("bound", message)
        self._tx.reply(message, row.id, seq, pairing.OWNER_BOUND)
        self._tx.after.wake |= self._tx.pairing.announce(self._tx.conn)
        return Admission("command", row.id, seq)

    def _refuse_code(self, message: InboundMessage, role: SenderRole) -> Admission:
        """Keep what may be the owner's code from the model while no code is taken."""
        # Without its text: a code must not become the title of a conversation.
        row = self._tx.conversation(replace(message, text=""))
        is_over = self._tx.is_over_rate(message, role)
        text = self._tx.too_many(message) if is_over else pairing.CODES_REFUSED
        return self._tx.refuse(replace(message, text="", raw=""), row.id, text)

    def _deny(self, message: InboundMessage, code: Literal["wrong", "refused"] | None) -> Admission:
        """Keep the key of a stranger's message, and give them a code where that is due."""
        source = arrivals.source_of(message)
        if self._tx.pairing.limits.strangers.count(source, message.dedupe_key):
            kept = Poison(source, message.dedupe_key, message.raw, "stranger")
            arrivals.set_aside(self._tx.conn, [kept], message.address.chat)
        if self._tx.pairing.takes_request(self._tx.conn, message):
            # What a stranger wrote is not read, and is no title either.
            row = self._tx.conversation(replace(message, text="", attachments=()))
            self._tx.after.wake |= self._tx.pairing.ask(self._tx.conn, message, row)
            self._tx.happens("requested", message)
        elif message.chat_kind != "dm":
            place = self._tx.pairing.point_to_door(self._tx.conn, message)
            self._tx.after.wake |= set() if place is None else {place}
        elif code == "wrong":
            self._tell_stranger(message, pairing.WRONG_CODE)
        elif code == "refused" and self._tx.pairing.limits.refusals.count(*_counted(message)):
            self._tell_stranger(message, pairing.CODES_REFUSED)
        return Admission("denied")

    def _tell_stranger(self, message: InboundMessage, text: str) -> None:
        """Say something to a stranger who was spoken to before, and who may be the owner."""
        row = self._tx.place
        if row is None:
            return
        told = f"code:{arrivals.source_of(message)}:{message.dedupe_key}"
        parts = parts_of(self._tx.renderer(message), told, text)
        outbox.append(self._tx.conn, row.id, parts, inbox_seq=row.inbox_head)
        self._tx.after.wake.add(row.id)


class _Answers:
    """Replies to questions that a turn waits for."""

    def __init__(self, tx: "_Transaction") -> None:
        self._tx = tx

    def again(self, message: InboundMessage) -> Admission:
        """Return the admission of a duplicate; for a press it says what became of the first one."""
        answer = None
        if message.pressed and self._is_reply():
            answer = approvals.again(self._tx.conn, message, self._tx.said.argument)
        over = questions.ENDED["answered"] if answer == "over" else ""
        return Admission("duplicate", answer=answer, over=over)

    def asked_in(self, message: InboundMessage) -> Conversation | None:
        """Return the conversation of the question that a reply names; None for all else."""
        if not self._is_reply():
            return None
        place = approvals.asked_in(self._tx.conn, message, self._tx.said.argument)
        return None if place is None else conversations.locked(self._tx.conn, place)

    def take(
        self,
        message: InboundMessage,
        conversation_id: int,
        seq: int,
        outcome: ReplyOutcome,
        text: str,
    ) -> Admission:
        """Take an answer that is a command, or a press of a button."""
        kind = f":{TAKEN}" if outcome.settled else ""
        # A press is answered by the adapter, with what the admission says.
        if not message.pressed:
            key = f"reply:{conversation_id}:{seq}{kind}"
            self._tx.tell(message, conversation_id, seq, key, text)
        self._settle(message, conversation_id, seq, outcome.settled)
        told, over = outcome.text, outcome.over
        return Admission("command", conversation_id, seq, outcome.answer, told, over)

    def in_words(
        self, message: InboundMessage, row: Conversation, role: SenderRole
    ) -> Admission | None:
        """Take a plain message as the answer to a question; None where it is none."""
        if not row.waits:
            return None
        told = _with_unread(message)
        if self._tx.said.command or message.attachments or not told.text.strip():
            return None
        taken = approvals.in_words(self._as_reply(told, row, role))
        if not taken:
            return None
        seen = MessageRef(message.address, message.sender, message.message_ref)
        self._tx.after.marks.append((seen, "answered"))
        seq = inbox.append(self._tx.conn, row.id, told, kind="message", state="done")
        self._settle(message, row.id, seq, taken)
        return Admission("command", row.id, seq)

    def _as_reply(self, message: InboundMessage, row: Conversation, role: SenderRole) -> Reply:
        sender = f"{message.address.platform}:{message.sender}"
        is_owner = role == "owner"
        may_act = is_owner or self._tx.rules.access.may_act(self._tx.conn, [sender])
        return Reply(self._tx.conn, message, row.id, is_owner=is_owner, may_act=may_act)

    def _settle(
        self, message: InboundMessage, here: int, seq: int, settled: tuple[SettledQuestion, ...]
    ) -> None:
        """Let the waiting turn go on below its answer, or say what it still waits for.

        Args:
            here: The conversation where it was given; of an owner maybe another one.
            seq: Its place in the inbox there.
        """
        self._tx.after.settled += settled
        for place in {each.question.conversation for each in settled} & {here}:
            turn_journal.go_on_from(self._tx.conn, place, seq)
            text = approvals.still_waits(self._tx.conn, place)
            if text and not message.pressed:
                self._tx.reply(message, place, seq, text)
                self._tx.after.wake.add(place)
        for each in settled:
            is_pressed = approvals.is_pressed(message, self._tx.said.argument, each.question)
            note, but_in = approvals.note_of(each), here if is_pressed else None
            inquiry = each.question.id
            self._tx.after.wake |= questions.withdraw(self._tx.conn, inquiry, note, but_in=but_in)
            if each.question.conversation != here:
                conn, renderers = self._tx.conn, self._tx.renderers
                self._tx.after.wake |= approvals.tell_place(conn, renderers, each)

    def _is_reply(self) -> bool:
        command = self._tx.said.command
        return command is not None and command.route is REPLY


@dataclass(slots=True)
class _Transaction:
    """The transaction and the rules: what every step writes with, and counts messages by.

    Attributes:
        after: Grows with each message.
        said: The current message, parsed as a command.
        place: Its conversation, locked; None where there is none yet.
    """

    conn: Connection
    rules: IntakeRules
    pairing: Pairing
    renderers: Mapping[tuple[str, str], Renderer]
    after: AfterCommit = field(default_factory=AfterCommit)
    said: Parsed = field(default_factory=Parsed)
    place: Conversation | None = None

    def key(self, message: InboundMessage) -> str:
        return session_key(message, self.rules.groups)

    def conversation(self, message: InboundMessage) -> Conversation:
        """Return the conversation of the current message, locked; it is entered where it is new."""
        if self.place is None:
            titled = replace(message, text=self.title(message))
            user = sole_sender(message, self.rules.groups)
            self.place = arrivals.create(self.conn, self.key(message), titled, user)
        return self.place

    def title(self, message: InboundMessage) -> str:
        """Return what a conversation is named after; a command is no title.

        Nor is a message whose text is not kept: that is the name of its first file.
        """
        if message.text and (self.said.command or self.said.word):
            return ""
        files = [each.name for each in message.attachments]
        return message.text if message.text.strip() or not files else files[0]

    def overhear(self, message: InboundMessage, rule: GroupRule | None) -> Admission | None:
        """Note what was said to others, where the operator wants that; None if it was not noted."""
        told = _with_files(_with_unread(message))
        window = self.pairing.limits.overheard
        if rule is None or not rule.context or not told.text.strip():
            return None
        if window is not None and not window.count(*_counted(message)):
            return None
        conversation_id = overheard.hear(self.conn, told)
        return None if conversation_id is None else Admission("noted", conversation_id)

    def is_over_rate(self, message: InboundMessage, role: SenderRole) -> bool:
        limits = self.pairing.limits
        command = self.said.command
        is_urgent = command is not None and command.urgent
        window = limits.urgent if is_urgent else limits.messages
        if window is None or role == "owner":
            return False
        return not window.count(*_counted(message))

    def too_many(self, message: InboundMessage) -> str | None:
        """Return the text for a sender over the limit, or None if they have got it already."""
        if not self.pairing.limits.notices.count(*_counted(message)):
            return None
        self.happens("limited", message)
        return TOO_MANY

    def append_done(
        self, message: InboundMessage, row: Conversation, command: str | None = None
    ) -> int:
        """Enter a command that is answered at once; returns its place in the inbox."""
        return inbox.append(
            self.conn, row.id, message, kind="command", state="done", command=command
        )

    def refuse(self, message: InboundMessage, conversation_id: int, text: str | None) -> Admission:
        kind: InboxKind = "edit" if message.kind == "edit" else "message"
        seq = inbox.append(self.conn, conversation_id, message, kind=kind, state="refused")
        if text is not None:
            self.reply(message, conversation_id, seq, text)
        return Admission("refused", conversation_id, seq)

    def reply(
        self,
        message: InboundMessage,
        conversation_id: int,
        seq: int,
        text: str,
        choices: tuple[Choice, ...] = (),
    ) -> None:
        key = f"reply:{conversation_id}:{seq}"
        parts = parts_of(
            self.renderer(message), key, text, reply_to=message.message_ref, choices=choices
        )
        outbox.append(self.conn, conversation_id, parts, inbox_seq=seq)

    def tell(
        self, message: InboundMessage, conversation_id: int, seq: int, key: str, text: str
    ) -> bool:
        """Say something once for each key; return whether it is said now."""
        parts = parts_of(self.renderer(message), key, text, reply_to=message.message_ref)
        return outbox.append(self.conn, conversation_id, parts, inbox_seq=seq)

    def renderer(self, message: InboundMessage) -> Renderer:
        return self.renderers[message.address.platform, message.address.account]

    def happens(self, kind: Kind, message: InboundMessage) -> None:
        self.after.happened.append(Happening(kind, message.address.platform, message.sender))


def _counted(message: InboundMessage) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return what a limit counts by: the sender and the message."""
    address = message.address
    return (address.platform, message.sender), (address.account, message.dedupe_key)


def _is_unanswered(fate: overheard.Fate) -> bool:
    """Whether nobody will answer a message any more, and nobody has: it was stopped, or failed."""
    if fate.kind == "command":
        return False
    if fate.state in {"cancelled", "refused", "dead"}:
        return True
    return fate.state == "done" and fate.outcome in turn_journal.NO_ANSWER


def _is_answered(fate: overheard.Fate) -> bool:
    """Whether a turn has answered a message; one that was itself an answer has none."""
    return fate.kind == "message" and fate.state == "done" and fate.outcome is not None


def _in_short(message: InboundMessage) -> InboundMessage:
    """Return what is kept of a message over the limit: a flood must not fill the disk."""
    return replace(message, text=message.text[:REFUSED_CHARS], raw="")


def _unreadable_text(message: InboundMessage) -> str:
    what = message.unreadable or "a message without text"
    return f"I can read text and files, but this is {what}."


def _with_unread(message: InboundMessage) -> InboundMessage:
    """Return the message; its text also names what came with it and cannot be read."""
    if not message.unreadable:
        return message
    return _with_line(message, f"[It came with {message.unreadable}, which cannot be read here.]")


def _with_files(message: InboundMessage) -> InboundMessage:
    """Return a message that is not for the bot; its files are named, and never fetched."""
    if not message.attachments:
        return message
    names = ", ".join(each.name for each in message.attachments)
    return _with_line(message, f"[It came with files: {names}]")


def _with_line(message: InboundMessage, line: str) -> InboundMessage:
    return replace(message, text=f"{message.text}\n\n{line}".strip())
