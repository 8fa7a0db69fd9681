"""The vocabulary between a platform and the gateway.

Platform ids are `str` everywhere; texts are what the person typed, without platform markup.
"""

from dataclasses import dataclass
from typing import Literal

ChatKind = Literal["dm", "group", "thread"]
InboundKind = Literal["message", "edit"]
AttachmentKind = Literal["image", "voice", "audio", "video", "file"]
Addressing = Literal["direct", "thread", "overheard"]
"""Whom a message is for. direct: the bot (a direct chat, a mention, a reply to it, a command, a
button). thread: it was said in a thread, and is for the bot if the bot has a conversation there.
overheard: said in a group, not to the bot."""
UNKNOWN_AUTHOR = "?"
"""Somebody of whom the platform does not say who it is; no id of any platform."""
Reaction = Literal["received", "answered", "failed"]
"""What an acknowledging reaction tells about a message."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where on a platform a conversation takes place."""

    platform: str
    account: str
    chat: str
    thread: str | None = None


@dataclass(frozen=True, slots=True)
class MessageRef:
    """What an answer belongs to: where it was asked, by whom, and with which message.

    Attributes:
        sender: The platform's id of who asked; None where nobody did.
        message_ref: The platform's id of the newest message that is answered, if it has one.
    """

    address: Address
    sender: str | None = None
    message_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that came with a message.

    Attributes:
        name: As its sender named it; never a path.
        mime: "" where the platform does not say.
        size_bytes: As the platform says; None where it does not.
        ref: What `Adapter.fetch` needs to find it, also hours later and after a restart.
        content: The bytes, where they came with the message itself (web); `ref` is empty then.
        authors: Of a file of a quoted or forwarded message: whose it is, as in
            `InboundMessage.authors`.
    """

    name: str
    kind: AttachmentKind
    mime: str = ""
    size_bytes: int | None = None
    ref: str = ""
    content: bytes | None = None
    authors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """One update of a platform that a person caused, ready for admission.

    Attributes:
        dedupe_key: Names the message within (platform, account); the same key twice is a duplicate.
        raw: The update exactly as received, as JSON text; kept for `storage.raw_days`.
        message_ref: The platform's id of the message, for replies and reactions; an edit has that
            of the message it changes.
        attachments: Files, in the order of the message; fetched after admission.
        authors: Whose words and files it holds beside its sender's: ids of who is quoted or
            forwarded, `UNKNOWN_AUTHOR` where the platform does not say who that is. Neither the
            sender nor the bot itself, whose words are nobody's.
        unreadable: What the message carries that is neither text nor a file ("a location"); the
            model and, where there is nothing else, the sender get told.
        addressed: Whom it is for; what is not for the bot is admitted as `access.groups` says.
        pressed: It is a press of a button, and the adapter itself shows what became of it.
        authenticated: The adapter itself has made sure who the sender is (the web chat's door).
    """

    address: Address
    chat_kind: ChatKind
    sender: str
    sender_name: str
    text: str
    dedupe_key: str
    raw: str
    message_ref: str | None = None
    kind: InboundKind = "message"
    attachments: tuple[Attachment, ...] = ()
    authors: tuple[str, ...] = ()
    unreadable: str | None = None
    addressed: Addressing = "direct"
    pressed: bool = False
    authenticated: bool = False


@dataclass(frozen=True, slots=True)
class Poison:
    """An update that could not be understood; stored as it is, so that the cursor may move on."""

    source: str
    dedupe_key: str
    raw: str
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """A chat has got another id on its platform; its conversations go on there."""

    platform: str
    account: str
    chat: str
    new_chat: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a source has been read; committed together with what was read.

    A source is one bot token (`telegram:<account>`) or one channel (`discord:<account>:<channel>`,
    `slack:<account>:<channel>[:<thread>]`).
    """

    source: str
    position: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of one inbound message; durable when the caller sees it.

    Attributes:
        outcome: queued (a turn will answer), command (already answered), duplicate (known dedupe
            key), refused (recorded, and the sender gets told why), denied (sender has no access),
            updated (an edit; noted as a new version), noted (said in a group; the next answer there
            knows it), ignored (not for the bot, or set aside).
        conversation: Id of the conversation; None only where there is none (denied).
        seq: Position in the conversation's inbox; None where nothing was queued.
        answer: What became of it as an answer to a question with buttons. accepted; refused: not
            from this person, or not like this, and the question stays; over: nobody waits for it
            any more. None for what is no such answer.
        told: What its sender is told about it, if the adapter can.
        over: How the question ended, if it is over; shown in place of its buttons.
        silent: It gets no answer before a question is answered; its sender knows that already.
    """

    outcome: Literal[
        "queued", "command", "duplicate", "refused", "denied", "updated", "noted", "ignored"
    ]
    conversation: int | None = None
    seq: int | None = None
    answer: Literal["accepted", "refused", "over"] | None = None
    told: str = ""
    over: str = ""
    silent: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether its sender may not do that; a button that was pressed stays then."""
        return self.answer == "refused" or self.outcome in {"denied", "ignored"}


NOT_FOR_YOU = "This button is not for you."
"""Told about a press that is refused, where nothing else is."""


CHOICE_LABEL_CHARS = 75
"""Longest `Choice.label`: Slack's limit (Discord: 80). Telegram takes 64 bytes of its text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A button. Pressing it is the same as writing `text`: it comes in as an inbound message."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class OutgoingFile:
    """A file to be shown, with its bytes."""

    name: str
    mime: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One outbox row on its way to a platform.

    Attributes:
        payload: One element of what `Adapter.render` returned; of a file its caption, "" if none.
        nonce: 24 hex characters, the same for every attempt at this row.
        preview_ref: Platform id of the live preview that this text replaces (an edit), if any.
        reply_to: Platform id of the message that is answered, if any; of the first part alone.
        question: The same for all parts, for a platform on which only a reply stays in its place.
        outcome_unknown: An earlier attempt may have been shown; resolve it or mark "(re-sent)".
        choices: Buttons below the message, at most 8.
        file: What the row shows instead of text.
        age_s: How long ago the row was entered, in seconds.
    """

    conversation: int
    address: Address
    seq: int
    payload: str
    nonce: str
    preview_ref: str | None = None
    reply_to: str | None = None
    question: str | None = None
    outcome_unknown: bool = False
    choices: tuple[Choice, ...] = ()
    file: OutgoingFile | None = None
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """Buttons of a question that is over.

    Attributes:
        message_ref: The platform's id of their message, as its receipt has it.
        note: How its question ended, to be noted in place of the buttons.
    """

    address: Address
    message_ref: str
    payload: str
    note: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The platform's word that a message is shown.

    Attributes:
        resent: The text was marked "(re-sent)" because an earlier attempt may have been shown.
    """

    platform_ref: str
    resent: bool = False
