"""The vocabulary between a platform and the gateway (step 1, 2 and 8 of the path of a message).

Platform ids are `str` everywhere; texts are what the person typed, without platform markup.
"""

from dataclasses import dataclass
from typing import Literal

ChatKind = Literal["dm", "group", "thread"]
InboundKind = Literal["message", "edit"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where on a platform a conversation takes place."""

    platform: str
    account: str
    chat: str
    thread: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """One update of a platform that a person caused, ready for admission.

    Attributes:
        dedupe_key: Names the message within (platform, account); the same key twice is a duplicate.
        raw: The update exactly as received, as JSON text; kept for `storage.raw_days`.
        message_ref: The platform's id of the message, for replies.
        unreadable: What the message carries instead of text ("a photo"); the sender gets told.
        authenticated: The adapter itself has made sure who the sender is (the web chat's token or
            loopback socket); `access` does not apply.
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
    unreadable: str | None = None
    authenticated: bool = False


@dataclass(frozen=True, slots=True)
class Poison:
    """An update that could not be understood; stored as it is, so that the cursor may move on."""

    source: str
    dedupe_key: str
    raw: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a source (one bot token) has been read; committed together with what was read."""

    source: str
    position: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of one inbound message; durable when the caller sees it.

    Attributes:
        outcome: queued (a turn will answer), command (already answered), duplicate (known dedupe
            key), refused (recorded, and the sender gets told why), denied (sender has no access),
            updated (an edit; noted as a new version).
        conversation: Id of the conversation; None only where there is none (denied).
        seq: Position in the conversation's inbox; None where nothing was queued.
    """

    outcome: Literal["queued", "command", "duplicate", "refused", "denied", "updated"]
    conversation: int | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One outbox row on its way to a platform.

    Attributes:
        payload: One element of what `Adapter.render` returned.
        nonce: 24 hex characters, the same for every attempt at this row.
        preview_ref: Platform id of the live preview that this text replaces (an edit), if any.
        reply_to: Platform id of the message that is answered, if any.
        outcome_unknown: An earlier attempt may have been shown; resolve it or mark "(re-sent)".
    """

    conversation: int
    address: Address
    seq: int
    payload: str
    nonce: str
    preview_ref: str | None = None
    reply_to: str | None = None
    outcome_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """The platform's word that a message is shown.

    Attributes:
        resent: The text was marked "(re-sent)" because an earlier attempt may have been shown.
    """

    platform_ref: str
    resent: bool = False
