"""The door (step 2 of the path): takes codes and requests of strangers, and `/pair` of owners.

All of it is part of the transaction that admits a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import structlog
from sqlalchemy import Connection, Row

from adapters.messages import Choice, InboundMessage
from gateway import pairing
from gateway.access import Access
from gateway.errors import NotFound
from gateway.owners import Owners
from gateway.pairing import Decision
from gateway.rates import Limits
from gateway.sessions import address_key
from gateway.storage import inbox, members, outbox
from gateway.storage.inbox import source_of
from gateway.storage.outbox import Renderer, parts_of

log = structlog.get_logger()

PENDING_PER_ACCOUNT = 100
"""Requests that wait; of more, the oldest expire."""
CODES_PER_HOUR = 300
"""Codes that one account gives out; of a flood of strangers the rest gets no word and no row."""
NOTICES_PER_HOUR = 10
"""Requests that owners are told one by one."""
TOLD_OF_DOOR = frozenset({"discord"})
"""Where a mention by a stranger is answered: a bot's profile there does not show how to ask."""


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """Lets in whom an owner approves, and the first owner."""

    access: Access
    limits: Limits
    renderers: Mapping[tuple[str, str], Renderer]

    def try_code(
        self, conn: Connection, message: InboundMessage
    ) -> Literal["right", "wrong", "refused"] | None:
        """Compare a direct message with the first owner's code; counts wrong ones.

        Returns:
            None where the message is no code, or no first owner is wanted.
        """
        settings = self.access.settings
        code = pairing.code_in(message.text) if message.chat_kind == "dm" else None
        if code is None or settings.mode != "pairing" or settings.owners:
            return None
        wanted = members.owner_code(conn)
        if wanted is None:
            return None
        source = source_of(message)
        whose, item = (source, message.sender), (source, message.dedupe_key)
        limits = self.limits
        if not (limits.tries.has_room(whose, item) and limits.all_tries.has_room(None, item)):
            return "refused"
        if pairing.same_code(code, wanted):
            return "right"
        limits.tries.count(whose, item)
        limits.all_tries.count(None, item)
        return "wrong"

    def bind(self, conn: Connection, message: InboundMessage) -> None:
        """Make the sender the first owner; the code is void."""
        whom = (message.address.platform, message.sender)
        name = pairing.shown_name(message.sender_name)
        members.let_in(conn, whom, name, "owner", granted_by="code")
        members.set_owner_code(conn, None)
        members.drop_requests(conn, *whom)

    def takes_request(self, conn: Connection, message: InboundMessage) -> bool:
        """Whether a stranger gets a code for this message, and owners are asked."""
        address = message.address
        return (
            self.access.settings.mode == "pairing"
            and message.chat_kind == "dm"
            and members.may_ask(conn, address.platform, message.sender)
            and members.asked_lately(conn, (address.platform, address.account)) < CODES_PER_HOUR
        )

    def ask(self, conn: Connection, message: InboundMessage, place: Row[Any]) -> set[int]:
        """Give a stranger a code and tell owners; returns the conversations that get something.

        Args:
            conn: The writing connection.
            message: The stranger's; what it says is not looked at.
            place: The stranger's conversation.
        """
        name, code = pairing.shown_name(message.sender_name), pairing.new_code()
        request_id = members.enter_request(conn, message, name, code, place.id)
        address = message.address
        members.expire_all_but_newest(
            conn, address.platform, address.account, kept=PENDING_PER_ACCOUNT
        )
        owners = self._owners.everybody(conn)
        text = pairing.stranger_notice(message, code, is_owned=bool(owners))
        self._owners.say(conn, place, f"pairing:{request_id}", text)
        return {place.id, *self._tell_owners(conn, message, request_id, owners)}

    def carry_out(self, conn: Connection, argument: str, by: str) -> Decision:
        """Do what stands behind an owner's `/pair`; `by` is the owner."""
        verb, _, target = argument.partition(" ")
        try:
            match verb.lower(), target.strip():
                case "list", "":
                    text = pairing.list_text(members.pending(conn), members.everybody(conn))
                    return Decision(text)
                case "approve", code if code:
                    return pairing.approve(conn, code, by)
                case "deny", code if code:
                    return pairing.deny(conn, code, by)
                case "revoke", whom if whom:
                    return pairing.revoke(conn, whom, by)
        except NotFound as exc:
            return Decision(str(exc))
        return Decision(pairing.USAGE)

    def tell_approved(self, conn: Connection) -> set[int]:
        """Tell those who were approved lately and do not know it; returns their conversations.

        Where the account is off it is told at a later start.
        """
        told = set()
        for request in members.approved(conn):
            place = members.place_of(conn, request)
            key = f"pairing:{request.id}:approved"
            if self._can_tell(place) and not _is_said(conn, key):
                self._owners.say(conn, place, key, pairing.APPROVED)
                told.add(place.id)
        if members.asked_lately(conn) <= NOTICES_PER_HOUR:
            # An owner whom the settings name now could not be told before.
            told |= self.announce(conn)
        return told

    def announce(self, conn: Connection) -> set[int]:
        """Tell owners of requests that came before they could be told; returns where.

        Each is told of once in each chat. Of many the newest are told one by one, and that there
        are more.
        """
        pending = members.pending(conn)
        told = set()
        for chat in self._owners.chats(conn, self._owners.everybody(conn)):
            for request in pending[-NOTICES_PER_HOUR:]:
                text, choices = pairing.request_notice(request), pairing.request_choices(request)
                key = f"pairing:{request.id}:owner:{chat.id}"
                if self._owners.say(conn, chat, key, text, choices):
                    told.add(chat.id)
            if len(pending) > NOTICES_PER_HOUR:
                key = f"pairing:{pending[-1].id}:more:{chat.id}"
                self._owners.say(conn, chat, key, pairing.MORE_REQUESTS)
        return told

    def point_to_door(self, conn: Connection, message: InboundMessage) -> int | None:
        """Tell a stranger who mentions the bot on Discord where to ask to be let in; once a day.

        It is a reply in the channel, and opens no thread.

        Returns:
            The conversation that holds what is said; None where nothing is.
        """
        here = message.address
        if self.access.settings.mode != "pairing" or here.platform not in TOLD_OF_DOOR:
            return None
        key = f"door:{source_of(message)}:{message.sender}:{datetime.now(UTC):%Y-%m-%d}"
        if _is_said(conn, key):
            return None
        if not self.limits.doors.count(source_of(message), message.dedupe_key):
            return None
        opened = here.thread == message.message_ref
        place = replace(here, thread=None) if opened else here
        said = replace(message, address=place, text="", attachments=())
        # No session key: the bot has no conversation here, and goes on listening to nobody.
        row = inbox.find_or_create(conn, f"door:{address_key(place)}", said, None)
        render = self.renderers[here.platform, here.account]
        parts = parts_of(render, key, pairing.WHERE_TO_ASK, reply_to=message.message_ref)
        outbox.append(conn, row.id, parts, inbox_seq=row.inbox_head)
        return int(row.id)

    @property
    def _owners(self) -> Owners:
        return Owners(self.access, self.renderers)

    def _tell_owners(
        self,
        conn: Connection,
        message: InboundMessage,
        request_id: int,
        owners: list[tuple[str, str]],
    ) -> set[int]:
        """Tell owners of a request: one by one, or that there are many; returns where."""
        is_one_by_one = members.asked_lately(conn) <= NOTICES_PER_HOUR
        if not is_one_by_one and not self.limits.summaries.count(None, message.dedupe_key):
            return set()
        text = pairing.MORE_REQUESTS
        choices: tuple[Choice, ...] = ()
        if is_one_by_one:
            [request] = [each for each in members.pending(conn) if each.id == request_id]
            text, choices = pairing.request_notice(request), pairing.request_choices(request)
        chats = self._owners.chats(conn, owners)
        if owners and not chats:
            log.warning("owners_not_reached", platform=message.address.platform)
        for chat in chats:
            self._owners.say(conn, chat, f"pairing:{request_id}:owner:{chat.id}", text, choices)
        return {chat.id for chat in chats}

    def _can_tell(self, place: Row[Any]) -> bool:
        return (place.platform, place.account) in self.renderers


def _is_said(conn: Connection, key: str) -> bool:
    return outbox.is_known(conn, f"{key}:1")
