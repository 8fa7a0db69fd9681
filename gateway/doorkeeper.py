"""The door (step 2 of the path): takes codes and requests of strangers, and `/pair` of owners.

All of it is part of the transaction that admits a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
from gateway.storage import members, outbox
from gateway.storage.inbox import source_of
from gateway.storage.outbox import Renderer

log = structlog.get_logger()

PENDING_PER_ACCOUNT = 100
"""Requests that wait; of more, the oldest expire."""
CODES_PER_HOUR = 300
"""Codes that one account gives out; of a flood of strangers the rest gets no word and no row."""
NOTICES_PER_HOUR = 10
"""Requests that owners are told one by one."""


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
        return told

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
