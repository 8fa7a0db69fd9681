"""The vocabulary shared by platforms and gateway, and common steps of the conversion to it.

Platform ids are always `str`; texts contain no platform markup. Only the fields of an update that
Parley uses are decoded, so a new kind of content never makes a text unreadable. An update that
cannot be decoded is stored as poison, and the cursor moves on.
"""

import hashlib
import json
import re
from collections.abc import AsyncIterable, Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from adapters.errors import FetchRejected

ChatKind = Literal["dm", "group", "thread"]
AttachmentKind = Literal["image", "voice", "audio", "video", "file"]
Addressing = Literal["direct", "thread", "overheard"]
"""Recipient of a message. direct: the bot (a direct chat, a mention, a reply to it, a command, a
button). thread: a message in a thread, which is for the bot if it has a conversation there.
overheard: a group message that is not addressed to the bot."""
UNKNOWN_AUTHOR = "?"
"""An author whom the platform does not identify; not a valid id on any platform."""
Reaction = Literal["received", "answered", "failed"]
"""Processing state of a message, shown by a reaction."""
MAX_QUOTE_CHARS = 500
# SQLite refuses lone surrogates, and some of its functions cut a text at NUL.
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
# Not orjson: an update may contain lone surrogates, which only the standard library preserves.
_JSON = json.JSONEncoder(separators=(",", ":"))
_KINDS = frozenset(get_args(AttachmentKind)) - {"voice"}


@dataclass(frozen=True, slots=True)
class Address:
    """The location of a conversation on a platform."""

    platform: str
    account: str
    chat: str
    thread: str | None = None


@dataclass(frozen=True, slots=True)
class MessageRef:
    """The question that an answer refers to.

    Attributes:
        sender: None if the question does not come from a user.
        message_ref: The platform's id of the newest message being answered, if any.
    """

    address: Address
    sender: str | None = None
    message_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that was attached to a message.

    Attributes:
        name: As given by its sender; never a path.
        mime: "" if the platform does not report it.
        size_bytes: As reported by the platform; None if unknown.
        ref: Input of `Adapter.fetch`; still valid hours later and after a restart.
        content: The bytes, if the message included them (web); `ref` is then "".
        authors: Authors of a quoted or forwarded file, as in `InboundMessage.authors`.
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
    """An update caused by a user, ready for admission.

    Attributes:
        dedupe_key: Identifies the message within (platform, account); a repeated key is a
            duplicate.
        raw: The update as received, as JSON text; kept for `storage.raw_days`.
        message_ref: The platform's id of the message, for replies and reactions; an edit has the id
            of the message it changes.
        attachments: Files in message order; fetched after admission.
        authors: Ids of the authors of quotes and forwarded parts, or `UNKNOWN_AUTHOR`, without the
            sender and the bot.
        unreadable: Content that is neither text nor a file ("a location"); reported to the model,
            and to the sender if the message has no other content.
        addressed: `access.groups` decides whether to admit a message not addressed to the bot.
        pressed: Whether it is a button press whose result the adapter shows itself.
        authenticated: Whether the adapter has authenticated the sender (the web chat's door).
    """

    address: Address
    chat_kind: ChatKind
    sender: str
    sender_name: str
    text: str
    dedupe_key: str
    raw: str
    message_ref: str | None = None
    kind: Literal["message", "edit"] = "message"
    attachments: tuple[Attachment, ...] = ()
    authors: tuple[str, ...] = ()
    unreadable: str | None = None
    addressed: Addressing = "direct"
    pressed: bool = False
    authenticated: bool = False


@dataclass(frozen=True, slots=True)
class Poison:
    """An update that could not be decoded; stored raw, so that the cursor can move on."""

    source: str
    dedupe_key: str
    raw: str
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """A chat has a new id, under which its conversations continue."""

    platform: str
    account: str
    chat: str
    new_chat: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position up to which a source was read; committed together with the updates.

    A source is a bot token (`telegram:<account>`) or a channel (`discord:<account>:<channel>`,
    `slack:<account>:<channel>[:<thread>]`).
    """

    source: str
    position: int


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of admitting one inbound message; durable when the caller receives it.

    Attributes:
        outcome: queued (a turn will answer), command (already answered), duplicate (known dedupe
            key), refused (recorded, and the sender is notified of the reason), denied (the sender
            has no access), updated (an edit, stored as a new version), noted (said in a group;
            context of the next answer there), ignored (not for the bot, or set aside).
        conversation: Id of the conversation; None if denied.
        seq: Position in the conversation's inbox; None if nothing was queued.
        answer: The result as an answer to a question with buttons: accepted, refused (not from this
            user or not in this form; the question stays), over (the question has ended). None if it
            is not such an answer.
        told: Text to show to the sender, if the adapter can.
        over: How the question ended, if it did; shown in place of its buttons.
        silent: Whether it gets no answer until a question is answered, which the sender already
            knows.
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
        """Whether the sender lacks permission; a pressed button then stays."""
        return self.answer == "refused" or self.outcome in {"denied", "ignored"}


NOT_FOR_YOU = "This button is not for you."
"""Reply to a refused button press that has no text of its own."""
CHOICE_LABEL_CHARS = 75
"""Longest `Choice.label`: Slack's limit (Discord: 80). Telegram accepts 64 bytes of its text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A button; pressing it creates an inbound message with this text."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class OutgoingFile:
    """A file to send."""

    name: str
    mime: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One outbox row to be sent to a platform.

    Attributes:
        payload: One result of `Adapter.render`, or a file's caption ("" for none).
        nonce: 24 hex characters, identical for every attempt at this row.
        preview_ref: Platform id of the live preview that this text replaces (an edit), if any.
        reply_to: Platform id of the message being answered, if any; only on the first part.
        question: The same for all parts, for platforms on which only a reply stays in its place.
        outcome_unknown: An earlier attempt may have been shown; resolve it or mark "(re-sent)".
        choices: Buttons below the message, at most 8.
        age_s: Seconds since the row was created.
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
    """Buttons to remove because their question has ended.

    Attributes:
        message_ref: `Receipt.platform_ref` of the message with the buttons.
        note: How the question ended; shown in place of the buttons.
    """

    address: Address
    message_ref: str
    payload: str
    note: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The platform's confirmation that a message is shown.

    `resent`: marked "(re-sent)", because an earlier attempt may have been shown.
    """

    platform_ref: str
    resent: bool = False


def storable(text: str) -> str:
    """Replace characters that databases refuse; the length, also in UTF-16 units, is kept."""
    return _NOT_STORABLE.sub("\ufffd", text)


Text = Annotated[str, AfterValidator(storable)]


class WirePart(BaseModel):
    """Base of decoded objects: strict types; a null field counts as missing."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        return filled(data) if isinstance(data, dict) and None in data.values() else data


def filled(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {name: value for name, value in data.items() if value is not None}


def describe_flaw(exc: ValidationError) -> str:
    """Describe why an update cannot be decoded, without quoting its content."""
    first = exc.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def raw_json(update: Any) -> str:
    """Serialize an update to the JSON text that is stored."""
    return _JSON.encode(update)


def poison(source: str, raw: str, reason: str, key: str = "") -> Poison:
    """Wrap an update that cannot be decoded; by default its key is a hash of it."""
    key = key or f"x{hashlib.sha256(raw.encode()).hexdigest()[:32]}"
    return Poison(source, key, raw, reason)


def quote(said: str, author: str = "") -> str:
    """Format a text as a shortened quote."""
    said = said.strip()
    if len(said) > MAX_QUOTE_CHARS:
        said = f"{said[: MAX_QUOTE_CHARS - 1]}…"
    lines = said.splitlines()
    return quoted_lines([f"{author}:", *lines] if author else lines)


def quoted_lines(lines: list[str]) -> str:
    """Format lines as a quote."""
    return "\n".join(f"> {line}" for line in lines)


def others(authors: Iterable[str | None], known: Collection[str]) -> tuple[str, ...]:
    """Return the unique authors in a message, except the known ones: its sender and the bot.

    An author is None if the platform does not identify one.
    """
    named = (author or UNKNOWN_AUTHOR for author in authors)
    return tuple(dict.fromkeys(author for author in named if author not in known))


def file_name(name: str) -> str:
    """Return a file's name without folders, or "" if nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    return "" if last in {".", ".."} else last


async def read_within(chunks: AsyncIterable[bytes], limit_bytes: int) -> bytes:
    """Return a file received in chunks; raise FetchRejected if it exceeds the limit."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        # Counted on arrival: the announced size is only the sender's claim.
        if len(content) > limit_bytes:
            raise FetchRejected(f"the file is larger than {limit_bytes} bytes")
    return bytes(content)


def file_kind(mime: str) -> AttachmentKind:
    """Return the kind of a file by its MIME type; never "voice"."""
    kind = mime.partition("/")[0]
    return kind if kind in _KINDS else "file"  # type: ignore[return-value]
