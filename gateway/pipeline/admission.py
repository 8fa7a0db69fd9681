"""Admission of one inbound message: read its facts, `decide`, then `apply` the decision.

`decide` is pure. Reads and writes belong to the admitting transaction, which applies each message
before it reads the facts of the next. Checks run in this order: already known? an edit? addressed
to the bot? sender allowed? rate limit? a command? an answer to a question? Any other message waits
for a turn.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlalchemy import Connection

from adapters.messages import Admission, Choice, InboundMessage, MessageRef, Poison, Reaction
from gateway.access import pairing
from gateway.access.pairing import Happening, Kind, Pairing
from gateway.access.policy import Access, Quotas, SenderRole, is_for_bot
from gateway.access.rate_limits import Window
from gateway.commands import approvals, registry
from gateway.commands.approvals import Reply, ReplyOutcome, SettledQuestion
from gateway.commands.help import nearest, unknown_text
from gateway.commands.registry import (
    NEW_BEGINNING,
    REPLY,
    AnyCommand,
    CommandContext,
    CommandServices,
    MoneyRules,
    Parsed,
    StatusFacts,
)
from gateway.session_keys import GroupSessions, address_key, session_key, sole_sender
from gateway.settings.tree import AttachmentSettings, GroupRule, QueueSettings
from gateway.storage.conversation import attachments, conversations, questions, turn_journal
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.conversation.questions import Question
from gateway.storage.queue import inbox, outbox, overheard
from gateway.storage.queue.inbox import InboxKind
from gateway.storage.queue.outbox import parts_of
from gateway.storage.queue.overheard import Fate

TOO_MANY = (
    "Those were too many messages in one minute: I am ignoring new ones for now. Please wait a"
    " moment, then send them again."
)
FULL = (
    "I did not accept this message: {most} are already waiting. Please send it again when I have"
    " answered, or send /stop to drop what waits."
)
UNREADABLE = "I can read text and files, but this is {what}."
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
"""Characters kept from the text of a message over the rate limit."""
TRIES: tuple[Window, ...] = ("tries", "all tries")
"""Limits on wrong codes, per sender and overall: a guesser may have many accounts."""


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """The rules for admitting an update; `model` returns the current figures of a chosen model."""

    access: Access
    queue: QueueSettings
    groups: GroupSessions
    model: Callable[[str | None], StatusFacts]
    money: MoneyRules = field(default_factory=MoneyRules)
    attachments: AttachmentSettings = field(default_factory=AttachmentSettings)
    quotas: Quotas = field(default_factory=Quotas)


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """The facts that decide about a message; facts that cannot matter are not read.

    Attributes:
        said: The message parsed as a command.
        most: Limit of waiting messages in a conversation.
        place: The locked conversation of the message or of its question; None if new.
        known: Whether the message was admitted before.
        rule: The rule of its group; None in a direct chat.
        in_thread: Whether the bot has a conversation in this thread.
        full: The limits that the message would exceed.
        code: Whether it is the right or a wrong owner code; None if it is not a code.
        may_ask: Whether the sender, a stranger, gets a code now.
        fate: The state of the message that it edits.
        answers: The question that it answers in plain text.
        quota: The notice about an exhausted quota.
    """

    said: Parsed = field(default_factory=Parsed)
    most: int = 1
    place: Conversation | None = None
    known: bool = False
    rule: GroupRule | None = None
    in_thread: bool = False
    full: frozenset[Window] = frozenset()
    role: SenderRole = "stranger"
    code: Literal["right", "wrong"] | None = None
    may_ask: bool = False
    fate: Fate | None = None
    answers: Question | None = None
    quota: str | None = None

    @property
    def code_refused(self) -> bool:
        """Whether the message is a code while codes are disabled."""
        return self.code is not None and not self.full.isdisjoint(TRIES)


Outside = Literal["duplicate", "ignored", "noted", "denied", "turned away"]
"""noted: addressed to others, passed on with the next question. denied, turned away: from a
stranger; a message turned away is stored by its key and may get a reply."""
Entered = Literal[
    "bound", "refused", "command", "unknown command", "unchanged", "reworded", "answer", "queued"
]
"""bound: the first owner's code. unchanged, reworded: an edit. answer: text for a question."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a message.

    Attributes:
        message: The message to store.
        text: The reply; None without a reply, or if a command writes it.
        counts: The limits against which the message counts.
        happened: Event to log after the commit.
    """

    what: Outside | Entered
    message: InboundMessage
    facts: MessageFacts
    text: str | None = None
    counts: tuple[Window, ...] = ()
    happened: Kind | None = None


def decide(message: InboundMessage, facts: MessageFacts) -> Decision:
    """Decide how to handle a message."""
    if facts.known:
        decision = Decision("duplicate", message, facts)
    elif message.kind == "edit":
        decision = _edited(message, facts)
    elif not _is_for_bot(message, facts):
        decision = _overheard(message, facts, "ignored")
    elif facts.code == "right" and not facts.code_refused:
        decision = Decision("bound", message, facts, pairing.OWNER_BOUND, happened="bound")
    elif facts.role == "stranger":
        decision = _turned_away(message, facts)
    else:
        decision = _taken(message, facts)
    tries = TRIES if facts.code == "wrong" and not facts.code_refused else ()
    counts = tuple(each for each in (*decision.counts, *tries) if each not in facts.full)
    return decision if counts == decision.counts else replace(decision, counts=counts)


def _edited(message: InboundMessage, facts: MessageFacts) -> Decision:
    if facts.role == "stranger":
        return Decision("denied", message, facts)
    if facts.fate is None or (facts.rule is not None and facts.rule.respond == "never"):
        return Decision("ignored", message, facts)
    told = _with_unread(message)
    if told.text == facts.fate.text:
        # Platforms also report edits that nobody made: a link preview, a new reaction.
        return Decision("unchanged", message, facts)
    if _is_asked_again(message, facts):
        return _taken(replace(message, kind="message"), facts)
    return _within_rate(Decision("reworded", told, facts))


def _turned_away(message: InboundMessage, facts: MessageFacts) -> Decision:
    """Decide about a stranger's message; in a direct chat they get a pairing code for the owner."""
    if message.addressed != "direct":
        return _overheard(message, facts, "denied")
    away = Decision("turned away", message, facts, counts=("strangers",))
    if facts.may_ask:
        return replace(away, happened="requested")
    if facts.code_refused:
        text = None if "refusals" in facts.full else pairing.CODES_REFUSED
        return replace(away, text=text, counts=("strangers", "refusals"))
    return replace(away, text=pairing.WRONG_CODE) if facts.code == "wrong" else away


def _taken(message: InboundMessage, facts: MessageFacts) -> Decision:
    """Decide about an allowed sender's message: a command, an answer, or a queued message."""
    said = facts.said.said_by(owner=facts.role == "owner")
    if said is not facts.said:
        facts = replace(facts, said=said)
    if facts.code_refused:
        # The model must not read what may be the owner's code (docs/access.md).
        kept = replace(message, text="", raw="")
        taken = Decision("refused", kept, facts, pairing.CODES_REFUSED)
    elif said.command is not None and said.command.route.when == "at once":
        taken = Decision("command", message, facts)
    elif said.unknown:
        text = _noting_files(message, unknown_text(said.unknown))
        taken = Decision("unknown command", message, facts, text)
    elif facts.answers is not None:
        taken = Decision("answer", _with_unread(message), facts)
    elif not message.text.strip() and not message.attachments:
        what = message.unreadable or "a message without text"
        taken = Decision("refused", message, facts, UNREADABLE.format(what=what))
    elif facts.place is not None and facts.place.pending >= facts.most:
        taken = Decision("refused", message, facts, FULL.format(most=facts.most))
    elif facts.quota is not None:
        told = None if "quotas" in facts.full else facts.quota
        refused = Decision("refused", _in_short(message), facts, told, ("quotas",))
        taken = replace(refused, happened="limited")
    else:
        taken = Decision("queued", message, facts)
    return _within_rate(taken)


def _within_rate(taken: Decision) -> Decision:
    """Refuse the message if its sender is over the rate limit."""
    limit, full = _limit(taken.facts), taken.facts.full
    if limit is None:
        return taken
    if limit not in full:
        return replace(taken, counts=(limit, *taken.counts))
    refused = Decision("refused", _in_short(taken.message), taken.facts)
    if "notices" in full:
        return refused
    return replace(refused, text=TOO_MANY, counts=("notices",), happened="limited")


def _limit(facts: MessageFacts) -> Window | None:
    command = facts.said.command
    if facts.role == "owner":
        return None
    return "urgent" if command is not None and command.urgent else "messages"


def _overheard(
    message: InboundMessage, facts: MessageFacts, otherwise: Literal["ignored", "denied"]
) -> Decision:
    """Note a message addressed to others if the group's rule asks for it."""
    told, rule = _with_unread(message), facts.rule
    if names := ", ".join(each.name for each in message.attachments):
        # Only their names are noted; the files are never fetched.
        told = _with_line(told, f"[It came with files: {names}]")
    if rule is None or not rule.context or not told.text.strip() or "overheard" in facts.full:
        return Decision(otherwise, message, facts)
    return Decision("noted", told, facts, counts=("overheard",))


def _is_for_bot(message: InboundMessage, facts: MessageFacts) -> bool:
    said = facts.said
    is_owners = said.command is not None and said.command.owner_only
    # In a group a command reaches every bot; one that names another or resembles none is another's.
    is_others = said.names_a_bot or (bool(said.unknown) and nearest(said.unknown) is None)
    if message.chat_kind == "group" and is_others and not is_owners:
        return False
    return is_for_bot(facts.rule, message, in_thread=facts.in_thread)


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted message, and what to do after the commit.

    Attributes:
        wake: Other conversations whose outbox got a row.
        marks: Messages that get no answer of their own.
        stops: Whether to stop the running turn of its conversation.
    """

    admission: Admission
    wake: Collection[int] = ()
    happened: Happening | None = None
    marks: tuple[tuple[MessageRef, Reaction], ...] = ()
    settled: tuple[SettledQuestion, ...] = ()
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Admissions:
    """Reads the facts of messages and applies decisions; part of the caller's transaction."""

    rules: IntakeRules
    pairing: Pairing

    def admit(self, conn: Connection, message: InboundMessage) -> Admitted:
        """Decide about a message and apply the decision."""
        return self.apply(conn, decide(message, self.facts(conn, message)))

    def facts(self, conn: Connection, message: InboundMessage) -> MessageFacts:
        """Read the facts that this message needs: two statements for a plain message."""
        access, most = self.rules.access, self.rules.queue.max_pending
        # Forwarded text is not a command of the sender.
        said = registry.parse("" if message.authors else message.text)
        key = session_key(message, self.rules.groups)
        known, place = inbox.arrival(conn, key, message)
        if known:
            return MessageFacts(said, known=True)
        rule, full, in_thread = access.rule(message), self.pairing.limits.full(message), False
        if message.addressed == "thread" and message.kind != "edit":
            in_thread = conversations.find(conn, address_key(message.address)) is not None
        facts = MessageFacts(said, most, place, known, rule, in_thread, full)
        if message.kind == "edit":
            return self._of_edit(conn, message, facts)
        if not _is_for_bot(message, facts):
            return facts
        role = access.role_of(conn, message)
        wants_owner = access.settings.mode == "pairing" and not access.settings.owners
        code = self.pairing.code_of(conn, message) if wants_owner and role != "owner" else None
        facts = replace(facts, role=role, code=code)
        if role != "stranger":
            return self._of_allowed(conn, message, facts)
        may_ask = message.addressed == "direct" and self.pairing.takes_request(conn, message)
        return replace(facts, may_ask=may_ask)

    def _of_edit(
        self, conn: Connection, message: InboundMessage, facts: MessageFacts
    ) -> MessageFacts:
        facts = replace(facts, role=self.rules.access.role_of(conn, message))
        place = facts.place
        if facts.role == "stranger" or place is None or message.message_ref is None:
            return facts
        facts = replace(facts, fate=overheard.fate(conn, place.id, message))
        return self._of_allowed(conn, message, facts) if _is_asked_again(message, facts) else facts

    def _of_allowed(
        self, conn: Connection, message: InboundMessage, facts: MessageFacts
    ) -> MessageFacts:
        said, place = facts.said, facts.place
        if said.command is not None and said.command.route is REPLY:
            # A reply belongs to its question's conversation, which may differ from the sender's.
            if there := approvals.asked_in(conn, message, said.argument):
                place = conversations.locked(conn, there)
            return replace(facts, place=place)
        is_plain = not (said.command or said.word or message.attachments)
        if place is not None and place.waits and is_plain and _limit(facts) not in facts.full:
            facts = replace(facts, answers=self._answered(conn, message, place, facts.role))
        quotas = self.rules.quotas
        if facts.role != "owner" and quotas.is_any and decide(message, facts).what == "queued":
            facts = replace(facts, quota=quotas.refusal(conn, message))
        return facts

    def _answered(
        self, conn: Connection, message: InboundMessage, place: Conversation, role: SenderRole
    ) -> Question | None:
        told, is_owner = _with_unread(message), role == "owner"
        if not told.text.strip():
            return None
        sender = f"{message.address.platform}:{message.sender}"
        may_act = is_owner or self.rules.access.may_act(conn, [sender])
        reply = Reply(conn, told, place.id, is_owner=is_owner, may_act=may_act)
        return approvals.answered_in_words(reply)

    def apply(self, conn: Connection, decision: Decision) -> Admitted:
        """Write a decision.

        Decide again if another transaction was faster: a full limit, a used code, a closed
        question.
        """
        message, facts = decision.message, decision.facts
        if full := self.pairing.limits.count(message, decision.counts):
            return self.apply(conn, decide(message, replace(facts, full=facts.full | full)))
        if decision.what == "bound" and not self.pairing.bind(conn, message):
            return self.apply(conn, decide(message, replace(facts, code=None)))
        done = self._applied(conn, decision)
        if decision.happened is None:
            return done
        happened = Happening(decision.happened, message.address.platform, message.sender)
        return replace(done, happened=happened)

    def _applied(self, conn: Connection, decision: Decision) -> Admitted:
        message = decision.message
        match decision.what:
            case "ignored" | "denied" as outcome:
                return Admitted(Admission(outcome))
            case "duplicate":
                return _again(conn, message, decision.facts.said)
            case "noted":
                noted = overheard.hear(conn, message)
                # A message to the bot that is ignored comes from a stranger.
                is_ours = _is_for_bot(message, decision.facts)
                unheard = Admission("denied" if is_ours else "ignored")
                return Admitted(Admission("noted", noted) if noted else unheard)
            case "turned away":
                return self._turn_away(conn, decision)
            case _:
                place = decision.facts.place or self._new(conn, message, _title(decision))
                return self._enter(conn, decision, place)

    def _new(self, conn: Connection, message: InboundMessage, title: str) -> Conversation:
        key = session_key(message, self.rules.groups)
        user = sole_sender(message, self.rules.groups)
        return inbox.create(conn, key, replace(message, text=title), user)

    def _enter(self, conn: Connection, decision: Decision, place: Conversation) -> Admitted:
        message, text = decision.message, decision.text
        match decision.what:
            case "answer":
                return self._answer(conn, decision, place)
            case "queued":
                return self._enqueue(conn, decision, place)
            case "unchanged" | "reworded":
                return self._reword(conn, decision, place)
            case "refused":
                kind: InboxKind = "edit" if message.kind == "edit" else "message"
                seq = inbox.append(conn, place.id, message, kind=kind, state="refused")
                if text is not None:
                    self._reply(conn, message, (place.id, seq), text)
                return Admitted(Admission("refused", place.id, seq))
        if text is None and (command := decision.facts.said.command) is not None:
            return self._run(conn, decision, command, place.id)
        seq = inbox.append(conn, place.id, message, kind="command", state="done")
        self._reply(conn, message, (place.id, seq), text or "")
        wake = self.pairing.announce(conn) if decision.what == "bound" else set()
        return Admitted(Admission("command", place.id, seq), wake)

    def _run(
        self, conn: Connection, decision: Decision, command: AnyCommand, here: int
    ) -> Admitted:
        """Run a command that bypasses the queue."""
        message, said = decision.message, decision.facts.said
        is_owner = decision.facts.role == "owner"
        seq = inbox.append(conn, here, message, kind="command", state="done", command=command.name)
        services = CommandServices(self.rules.model, self.rules.money, self.pairing)
        context = CommandContext(conn, message, here, seq, said.argument, is_owner, services)
        result = command.run(context)
        text, entry = _noting_files(message, result.text), (here, seq)
        if not isinstance(result, ReplyOutcome):
            self._reply(conn, message, entry, text, choices=result.choices)
            failed: Reaction = "failed"
            marks = tuple((ref, failed) for ref in result.dropped)
            done = Admission("command", *entry)
            return Admitted(done, result.wake, result.happened, marks, stops=result.stops)
        # The adapter itself answers the press of a button.
        if not message.pressed:
            key = f"reply:{here}:{seq}{f':{TAKEN}' if result.settled else ''}"
            self._reply(conn, message, entry, text, key)
        done = Admission("command", *entry, result.answer, result.text, result.over)
        wake = self._conclude(conn, decision, result.settled, entry)
        return Admitted(done, wake, settled=result.settled)

    def _answer(self, conn: Connection, decision: Decision, place: Conversation) -> Admitted:
        """Record a plain message as the answer to a question."""
        message, question = decision.message, decision.facts.answers
        said = message.text.strip()
        settled = approvals.settle(conn, message, question, said) if question else ()
        if not settled:
            # The question was answered elsewhere at the same moment, or is closed.
            return self.apply(conn, decide(message, replace(decision.facts, answers=None)))
        seq = inbox.append(conn, place.id, message, kind="message", state="done")
        wake = self._conclude(conn, decision, settled, (place.id, seq))
        seen = MessageRef(message.address, message.sender, message.message_ref)
        admission = Admission("command", place.id, seq)
        return Admitted(admission, wake, marks=((seen, "answered"),), settled=settled)

    def _conclude(
        self,
        conn: Connection,
        decision: Decision,
        settled: tuple[SettledQuestion, ...],
        entry: tuple[int, int],
    ) -> set[int]:
        """Resume the waiting turn below its answer, or report what it still waits for.

        Args:
            entry: Conversation and seq of the answer; the question may be in another one.
        """
        message, renderers, (here, seq) = decision.message, self.pairing.owners.renderers, entry
        pressed, wake = approvals.pressed(message, decision.facts.said.argument), set[int]()
        if any(each.question.conversation == here for each in settled):
            turn_journal.go_on_from(conn, here, seq)
            text = approvals.still_waits(conn, here)
            if text and not message.pressed:
                self._reply(conn, message, entry, text)
                wake.add(here)
        return wake | approvals.conclude(conn, renderers, settled, here, pressed)

    def _enqueue(self, conn: Connection, decision: Decision, place: Conversation) -> Admitted:
        message, command = decision.message, decision.facts.said.command
        kind: InboxKind = "message" if command is None else "command"
        name = command.name if command else None
        begins_anew = command is not None and command.route is NEW_BEGINNING
        told = _with_unread(message)
        seq = inbox.append(conn, place.id, told, kind=kind, state="queued", command=name)
        here, wake = (place.id, seq), set[int]()
        if command is None or begins_anew:
            limit_bytes, files = self.rules.attachments.max_bytes, message.attachments
            strangers = self._strangers_among(conn, message)
            attachments.append(conn, *here, files, limit_bytes, strangers)
        elif message.attachments:
            self._reply(conn, message, here, FILE_NOT_READ, f"file:{place.id}:{seq}")
            wake = {place.id}
        if command is None and not place.title:
            conversations.set_title(conn, place.id, _title(decision))
        if self.rules.queue.mode == "interrupt" or (begins_anew and place.waits):
            # A new conversation must not wait: later messages would count as the answer.
            turn_journal.cancel_running(conn, place.id)
        if place.waits and (waiting := questions.pending(conn, place.id)):
            # The key limits this text to once per inquiry.
            key, text = f"inquiry:{waiting[0].id}:waits", approvals.waiting_text(waiting)
            is_told = self._reply(conn, message, here, text, key)
            return Admitted(Admission("queued", *here, silent=not is_told), {place.id})
        if place.waits:
            # Its question was just withdrawn.
            conversations.make_ready(conn, place.id)
        return Admitted(Admission("queued", *here), wake)

    def _strangers_among(self, conn: Connection, message: InboundMessage) -> set[str]:
        """Return the authors of quoted files who may not act; their files are not fetched."""
        platform, access = message.address.platform, self.rules.access
        authors = {author for file in message.attachments for author in file.authors}
        return {who for who in authors if not access.may_act(conn, [f"{platform}:{who}"])}

    def _reword(self, conn: Connection, decision: Decision, place: Conversation) -> Admitted:
        """Reword a waiting message, or note the edit for the next turn.

        An edit of an answered message gets a button that asks it again.
        """
        message, fate = decision.message, decision.facts.fate
        if decision.what == "unchanged":
            return Admitted(Admission("updated", place.id))
        # The state of the edit's own entry: "done" if the waiting message now has the new text,
        # else a note for the next question (decision 002).
        if revised := overheard.revise(conn, place.id, message):
            seq = inbox.append(conn, place.id, message, kind="edit", state="done")
            question = MessageRef(message.address, message.sender, message.message_ref)
            admission = Admission("updated", place.id, seq)
            return Admitted(
                admission, marks=((question, "failed"),) if revised == "emptied" else ()
            )
        seq, wake = overheard.note(conn, place.id, message, "edit"), set[int]()
        # A message that answered a question has no turn.
        was_taken = fate is not None and fate.kind == "message" and fate.state == "done"
        if fate is not None and was_taken and fate.outcome and message.text.strip():
            # Offer it once per turn.
            key = f"edit:{place.id}:{fate.seq}:{overheard.newest_turn(conn, place.id)}"
            again = (Choice(ASK_AGAIN, f"/retry {fate.seq}"),)
            is_told = self._reply(conn, message, (place.id, seq), EDITED, key, choices=again)
            wake = {place.id} if is_told else set()
        return Admitted(Admission("updated", place.id, seq), wake)

    def _turn_away(self, conn: Connection, decision: Decision) -> Admitted:
        """Store the key of a stranger's message, and send a code or a notice if one is due."""
        message, place = decision.message, decision.facts.place
        source, wake = inbox.source_of(message), set[int]()
        if "strangers" in decision.counts:
            kept = Poison(source, message.dedupe_key, message.raw, "stranger")
            inbox.set_aside(conn, [kept], message.address.chat)
        if decision.facts.may_ask:
            # A stranger's text is neither read nor used as a title.
            wake = self.pairing.ask(conn, message, place or self._new(conn, message, ""))
        elif message.chat_kind != "dm":
            wake = self.pairing.point_to_door(conn, message)
        elif decision.text is not None and place is not None:
            # The bot has replied here before; this may be the owner.
            key = f"code:{source}:{message.dedupe_key}"
            self._reply(conn, message, (place.id, place.inbox_head), decision.text, key)
            wake = {place.id}
        return Admitted(Admission("denied"), wake)

    def _reply(
        self,
        conn: Connection,
        message: InboundMessage,
        entry: tuple[int, int],
        text: str,
        key: str = "",
        choices: tuple[Choice, ...] = (),
    ) -> bool:
        """Reply to a message once per key; return whether the reply is new."""
        here, seq = entry
        render = self.pairing.owners.renderers[message.address.platform, message.address.account]
        key, ref = key or f"reply:{here}:{seq}", message.message_ref
        parts = parts_of(render, key, text, reply_to=ref, choices=choices)
        return outbox.append(conn, here, parts, inbox_seq=seq)


def _again(conn: Connection, message: InboundMessage, said: Parsed) -> Admitted:
    """Admit a duplicate; a repeated press returns the result of the first."""
    answer = None
    if message.pressed and said.command is not None and said.command.route is REPLY:
        answer = approvals.again(conn, message, said.argument)
    over = questions.ENDED["answered"] if answer == "over" else ""
    return Admitted(Admission("duplicate", answer=answer, over=over))


def _title(decision: Decision) -> str:
    """Return a conversation's title: the text or the first file; "" for commands and codes."""
    message, said = decision.message, decision.facts.said
    text = "" if decision.what == "bound" else message.text
    if text and (said.command or said.word):
        return ""
    files = [each.name for each in message.attachments]
    return text if text.strip() or not files else files[0]


def _is_asked_again(message: InboundMessage, facts: MessageFacts) -> bool:
    """Whether an edit rewords a stopped or failed message, which gets no other answer."""
    fate, place = facts.fate, facts.place
    if fate is None or fate.kind == "command" or (place is not None and place.waits):
        return False
    is_over = fate.state in {"cancelled", "refused", "dead"}
    is_over = is_over or (fate.state == "done" and fate.outcome in turn_journal.NO_ANSWER)
    told = _with_unread(message).text
    return is_over and told != fate.text and bool(told.strip())


def _in_short(message: InboundMessage) -> InboundMessage:
    """Shorten a message over the limit, so that a flood cannot fill the disk."""
    return replace(message, text=message.text[:REFUSED_CHARS], raw="")


def _noting_files(message: InboundMessage, text: str) -> str:
    return f"{text}\n\n{FILE_NOT_READ}" if message.attachments else text


def _with_unread(message: InboundMessage) -> InboundMessage:
    """Name unreadable attachments in the text."""
    if not message.unreadable:
        return message
    line = f"[It came with {message.unreadable}, which cannot be read here.]"
    return replace(_with_line(message, line), unreadable=None)


def _with_line(message: InboundMessage, line: str) -> InboundMessage:
    return replace(message, text=f"{message.text}\n\n{line}".strip())
