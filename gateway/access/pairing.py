"""Pairing: admits strangers and binds a bot's first owner.

A stranger in a direct chat gets a code; an owner approves or denies it in a chat (`/pair`) or with
`parley pair`. Whoever sends the code printed at start becomes the first owner. Everything happens
in the transaction that admits the message.
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import structlog
from sqlalchemy import Connection

from adapters.messages import Choice, InboundMessage
from adapters.registry import by_name
from agent import messages
from gateway.access.policy import Owners
from gateway.access.rate_limits import AdmissionLimits
from gateway.errors import NotFound
from gateway.session_keys import address_key
from gateway.settings.tree import Settings
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.conversation import conversations
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.database import Database
from gateway.storage.people import members
from gateway.storage.people.members import Member, PairingRequest
from gateway.storage.queue import inbox, leases, outbox
from gateway.storage.queue.inbox import source_of
from gateway.storage.queue.outbox import parts_of

log = structlog.get_logger()

PENDING_PER_ACCOUNT = 100
"""Most waiting requests of an account; beyond it the oldest expire."""
CODES_PER_HOUR = 300
"""Most codes of an account; further strangers get no answer and no row."""
NOTICES_PER_HOUR = 10
"""Requests shown to owners one by one; more are summed up."""

ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""Capital letters and digits without look-alikes (0 and O, 1, I and L)."""
CODE_CHARS = 8
COMMAND_LINE = "command line"
_BEHIND = re.compile(r"/(?:pair|start)(?:@\w+)?\s+(.+)", re.DOTALL | re.IGNORECASE)
_LONGEST = 64
"""Longest text, in characters, that may be a code."""
_GAPS = re.compile(r"[\s\-\u2010-\u2015]+")


Kind = Literal[
    "bound",
    "requested",
    "approved",
    "denied",
    "revoked",
    "promoted",
    "limited",
    "invited",
    "link",
    "tool",
]


@dataclass(frozen=True, slots=True)
class Happening:
    """An event to log after the commit.

    Attributes:
        kind: "tool" (a decision about a tool of an MCP server) is in the audit log, not here.
        by: Who decided: "platform:sender id", "command line", or "".
    """

    kind: Kind
    platform: str
    sender: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision's reply, and its event; None if nothing changed."""

    text: str
    happened: Happening | None = None


@dataclass(frozen=True, slots=True)
class Pairing:
    """Admits the first owner and the people approved by owners."""

    owners: Owners
    limits: AdmissionLimits

    def code_of(
        self, conn: Connection, message: InboundMessage
    ) -> Literal["right", "wrong"] | None:
        """Compare a direct message with the owner code; return None if it is not a code."""
        code = code_in(message.text) if message.chat_kind == "dm" else None
        if code is None:
            return None
        wanted = members.owner_code(conn)
        if wanted is None:
            return None
        return "right" if same_code(code, wanted) else "wrong"

    def bind(self, conn: Connection, message: InboundMessage) -> bool:
        """Make the sender the first owner; return False if the code is already used."""
        if not members.take_owner_code(conn, code_in(message.text) or ""):
            return False
        whom = (message.address.platform, message.sender)
        members.let_in(conn, whom, message.sender_name, "owner", granted_by="code")
        members.drop_requests(conn, *whom)
        who_is = ":".join(whom)
        audit_log.append(conn, AuditEntry("owner_bound", by=who_is, subject=who_is))
        return True

    def takes_request(self, conn: Connection, message: InboundMessage) -> bool:
        """Whether this message gives a stranger a code and asks the owners."""
        address = message.address
        return (
            self.owners.access.settings.mode == "pairing"
            and message.chat_kind == "dm"
            and members.may_ask(conn, address.platform, message.sender)
            and members.asked_lately(conn, (address.platform, address.account)) < CODES_PER_HOUR
        )

    def ask(self, conn: Connection, message: InboundMessage, place: Conversation) -> set[int]:
        """Give a stranger a code and notify owners; return the conversations with a new text."""
        code = new_code()
        request_id = members.enter_request(conn, message, message.sender_name, code, place.id)
        address = message.address
        members.expire_all_but_newest(
            conn, address.platform, address.account, kept=PENDING_PER_ACCOUNT
        )
        owners = self.owners.everybody(conn)
        text = stranger_notice(message, code, is_owned=bool(owners))
        self.owners.say(conn, place, f"pairing:{request_id}", text)
        return {place.id, *self._tell_owners(conn, message, request_id, owners)}

    def tell_approved(self, conn: Connection) -> set[int]:
        """Notify recently approved strangers; return their conversations.

        If their account is off, a later start notifies them.
        """
        told = set()
        for request in members.approved(conn):
            place = conversations.get(conn, request.conversation)
            key = f"pairing:{request.id}:approved"
            can_tell = place.account_key in self.owners.renderers
            if can_tell and not _is_said(conn, key):
                self.owners.say(conn, place, key, APPROVED)
                told.add(place.id)
        if members.asked_lately(conn) <= NOTICES_PER_HOUR:
            # An owner new in the settings could not be notified before.
            told |= self.announce(conn)
        return told

    def announce(self, conn: Connection) -> set[int]:
        """Notify owners of waiting requests, once per chat; return these chats.

        If there are many, only the newest are shown one by one.
        """
        told: set[int] = set()
        # Usually no request waits; then skip the lookup of the owners' chats.
        if not (pending := members.pending(conn)):
            return told
        for chat in self.owners.chats(conn, self.owners.everybody(conn)):
            for request in pending[-NOTICES_PER_HOUR:]:
                text, choices = request_notice(request)
                # The unique key of an outbox row limits the text to once per chat.
                key = f"pairing:{request.id}:owner:{chat.id}"
                if self.owners.say(conn, chat, key, text, choices):
                    told.add(chat.id)
            if len(pending) > NOTICES_PER_HOUR:
                key = f"pairing:{pending[-1].id}:more:{chat.id}"
                self.owners.say(conn, chat, key, MORE_REQUESTS)
        return told

    def point_to_door(self, conn: Connection, message: InboundMessage) -> set[int]:
        """Tell a stranger who mentions the bot where to request access, once a day.

        The reply stays in the channel and opens no thread. Used only on platforms where a bot's
        profile does not show how to ask.
        """
        here, registered = message.address, by_name().get(message.address.platform)
        answers_strangers = registered is not None and registered.answers_strangers
        if self.owners.access.settings.mode != "pairing" or not answers_strangers:
            return set()
        key = f"door:{source_of(message)}:{message.sender}:{datetime.now(UTC):%Y-%m-%d}"
        if _is_said(conn, key):
            return set()
        if self.limits.count(message, ["doors"]):
            return set()
        # On Discord, a thread opened from a message has the id of that message.
        opened = here.thread == message.message_ref
        place = replace(here, thread=None) if opened else here
        said = replace(message, address=place, text="", attachments=())
        # A key that is not a session's: the bot has no conversation here.
        row = inbox.find_or_create(conn, f"door:{address_key(place)}", said, None)
        render = self.owners.renderers[here.platform, here.account]
        parts = parts_of(render, key, WHERE_TO_ASK, reply_to=message.message_ref)
        outbox.append(conn, row.id, parts, inbox_seq=row.inbox_head)
        return {row.id}

    def _tell_owners(
        self,
        conn: Connection,
        message: InboundMessage,
        request_id: int,
        owners: list[tuple[str, str]],
    ) -> set[int]:
        """Notify owners of a request, or that many wait; return their chats."""
        is_one_by_one = members.asked_lately(conn) <= NOTICES_PER_HOUR
        if not is_one_by_one and self.limits.count(message, ["summaries"]):
            return set()
        text = MORE_REQUESTS
        choices: tuple[Choice, ...] = ()
        if is_one_by_one:
            [request] = [each for each in members.pending(conn) if each.id == request_id]
            text, choices = request_notice(request)
        chats = self.owners.chats(conn, owners)
        if owners and not chats:
            log.warning("owners_not_reached", platform=message.address.platform)
        for chat in chats:
            self.owners.say(conn, chat, f"pairing:{request_id}:owner:{chat.id}", text, choices)
        return {chat.id for chat in chats}


def _is_said(conn: Connection, key: str) -> bool:
    return outbox.is_known(conn, f"{key}:1")


def report(happening: Happening) -> None:
    """Log an event without its code."""
    platform, sender, by = happening.platform, happening.sender, happening.by
    match happening.kind:
        case "bound":
            log.info("owner_bound", platform=platform, sender=sender)
        case "requested":
            log.info("pairing_requested", platform=platform, sender=sender)
        case "approved":
            log.info("pairing_approved", platform=platform, sender=sender, by=by)
        case "denied":
            log.info("pairing_denied", platform=platform, sender=sender, by=by)
        case "revoked":
            log.info("member_revoked", platform=platform, sender=sender, by=by)
        case "promoted":
            log.info("member_role_changed", platform=platform, sender=sender, by=by)
        case "invited":
            log.info("web_user_invited", user=sender)
        case "link":
            log.info("web_link_made", user=sender)
        case "limited":
            log.info("rate_limited", platform=platform, sender=sender)


async def owner_code(database: Database, settings: Settings, replica_id: int) -> str | None:
    """Create the owner code that is printed at start.

    It replaces the code of an earlier start unless a live replica printed that.

    Returns:
        The code; None if an owner exists, the mode is not pairing, or no platform is on.
    """
    wanted = settings.access.mode == "pairing" and not settings.access.owners
    code = new_code() if wanted and settings.platforms.on() else None
    return await database.write(agree_on_code, code, replica_id)


def agree_on_code(conn: Connection, code: str | None, replica_id: int) -> str | None:
    """Return the valid owner code: the given one, or that of live replicas."""
    # If two replicas start together, the second finds the code of the first.
    leases.one_at_a_time(conn)
    # Owners by code are in the database, not in the settings.
    if members.owners(conn):
        code = None
    if code is not None and not leases.is_alone(conn, replica_id):
        code = members.owner_code(conn) or code
    members.set_owner_code(conn, code)
    return code


def new_code() -> str:
    """Return a code that cannot be guessed."""
    # Eight of 31 characters make 40 bits; `random` would be predictable.
    return "".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARS))


def code_in(text: str) -> str | None:
    """Return the code in a text, also after `/pair` or `/start`; None for other texts.

    Case, spaces and hyphens are ignored.
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    behind = _BEHIND.fullmatch(text)
    code = _GAPS.sub("", behind[1] if behind else text).upper()
    return code if len(code) == CODE_CHARS and set(code) <= set(ALPHABET) else None


def same_code(one: str, other: str) -> bool:
    """Compare two codes in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def approve(conn: Connection, code: str, by: str) -> Decided:
    """Admit the sender of a request; idempotent."""
    request = _request_of(conn, code)
    if request.state == "approved":
        return Decided(f"{who(request)} already has access.")
    members.let_in(
        conn, (request.platform, request.sender), request.sender_name, "member", granted_by=by
    )
    members.decide(conn, request.id, "approved")
    happened = Happening("approved", request.platform, request.sender, by)
    return _decided(conn, "pairing_approved", happened, f"{who(request)} may write to me now.")


def deny(conn: Connection, code: str, by: str) -> Decided:
    """Refuse a request; its sender cannot ask again for a day."""
    request = _request_of(conn, code)
    if request.state == "approved":
        remedy = f"`pair revoke {request.platform}:{request.sender}` takes that back"
        return Decided(f"{who(request)} already has access; {remedy}.")
    if request.state == "denied":
        return Decided(f"{who(request)} was already denied.")
    members.decide(conn, request.id, "denied")
    happened = Happening("denied", request.platform, request.sender, by)
    text = f"{who(request)} is denied, and cannot ask again for a day."
    return _decided(conn, "pairing_denied", happened, text)


def _request_of(conn: Connection, code: str) -> PairingRequest:
    wanted = code_in(code) or ""
    # Compare all codes, so that timing does not reveal which one matches.
    found = [each for each in members.decidable(conn) if same_code(each.code, wanted)]
    if not found:
        raise NotFound("There is no such code, or it has expired.")
    return found[0]


def revoke(conn: Connection, target: str, by: str) -> Decided:
    """Withdraw the access of a member ("platform:sender id"); people in the settings keep it."""
    platform, _, sender = target.strip().partition(":")
    if not members.revoke(conn, platform, sender):
        raise _unknown(target)
    members.drop_requests(conn, platform, sender)
    happened = Happening("revoked", platform, sender, by)
    text = f"{platform} {sender} may no longer write to me."
    return _decided(conn, "member_revoked", happened, text)


def change_role(conn: Connection, target: str, role: members.Role, by: str) -> Decided:
    """Make an admitted person ("platform:sender id") an owner or a member."""
    platform, _, sender = target.strip().partition(":")
    before = members.role(conn, platform, sender)
    if before is None:
        raise _unknown(target)
    named = f"{platform} {sender}"
    if before == role:
        return Decided(f"{named} is {_A[role]} already.")
    members.set_role(conn, platform, sender, role, granted_by=by)
    happened = Happening("promoted", platform, sender, by)
    text = f"{named} is {_A[role]} now."
    return _decided(conn, "member_role_changed", happened, text, role=role)


_A: Mapping[members.Role, str] = {"owner": "an owner", "member": "a member"}


def _unknown(target: str) -> NotFound:
    shown = messages.quoted(" ".join(target.split()))
    return NotFound(f"{shown} was not let in by a code; parley.yaml may name them.")


def _decided(
    conn: Connection, kind: AuditKind, happened: Happening, text: str, **detail: str
) -> Decided:
    subject = f"{happened.platform}:{happened.sender}"
    audit_log.append(conn, AuditEntry(kind, by=happened.by, subject=subject, detail=detail))
    return Decided(text, happened)


def who(asker: PairingRequest | Member) -> str:
    """Return a person's escaped name, platform and id."""
    return f"{messages.quoted(asker.sender_name or '?')} ({asker.platform} {asker.sender})"


def stranger_notice(message: InboundMessage, code: str, *, is_owned: bool) -> str:
    """Return the text with a code for a stranger, who may be the owner of an unowned bot."""
    texts = [
        "This bot is private, so I did not read your message.",
        f"An owner of it can let you in: tell them the code `{code}`, which is valid for one hour.",
        f"Your id here is `{message.sender}`.",
    ]
    if not is_owned:
        texts.append(
            "If the bot is yours, send me the code that it printed when it was started, or set"
            f" `access.owners` to `['{message.address.platform}:{message.sender}']` in"
            " `parley.yaml`."
        )
    return "\n\n".join(texts)


def request_notice(request: PairingRequest) -> tuple[str, tuple[Choice, ...]]:
    """Return the text for owners about a request, and the buttons below it."""
    code = request.code
    buttons = (Choice("Approve", f"/pair approve {code}"), Choice("Deny", f"/pair deny {code}"))
    return f"{who(request)} asks to be let in, code `{code}`.", buttons


MORE_REQUESTS = (
    "More people are asking to be let in than I report one by one. See who: `/pair list`"
)
WHERE_TO_ASK = (
    "I only answer people my owner has let in. To ask for access, send me a direct message: I will"
    " reply with a code that my owner can use to let you in."
)
APPROVED = "You can write to me now. I did not read your earlier message: please send it again."
OWNER_BOUND = (
    "You are my owner now. When a stranger writes to me I ask you whether to let them in;"
    " `/pair` shows what else you can do."
)
WRONG_CODE = "That is not the code that was printed at the last start. Each start prints a new one."
CODES_REFUSED = (
    "I am not accepting codes for now: too many were wrong. Please try again in an hour, or"
    " restart me to get another code."
)
