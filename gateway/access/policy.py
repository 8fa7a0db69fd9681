"""Who may talk to the bot, what it listens to in groups, and who its owners are.

Default deny: whoever is neither named in the settings (`access`) nor let in by an owner is a
stranger. What owners are told is a row of the outbox, like all else.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from adapters.base import Renderer
from adapters.messages import Choice, InboundMessage
from adapters.registry import BUILT_IN
from agent.tools.registry import FOR_OWNERS
from gateway.settings.tree import AccessSettings, GroupRule
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.people import members
from gateway.storage.queue import outbox
from gateway.storage.queue.outbox import parts_of

SenderRole = Literal["owner", "member", "guest", "stranger"]
"""owner: may let others in, and has no rate limit. member: allowed. guest: may talk, but not have
tools with side effects used (mode open, `senders: anyone`). stranger: denied."""


@dataclass(frozen=True, slots=True)
class Access:
    """The answers to: is this sender allowed, and is this message for the bot?"""

    settings: AccessSettings

    def role_of(self, conn: Connection, message: InboundMessage) -> SenderRole:
        """Return what the sender may do here.

        The web chat has made sure itself who is there, and counts as an owner. At most one look
        into the database, by primary key.
        """
        if message.authenticated:
            return "owner"
        platform, sender = message.address.platform, message.sender
        granted = self._granted(platform, sender, members.role(conn, platform, sender))
        if granted != "stranger":
            return granted
        rule = self.rule(message)
        is_open = self.settings.mode == "open" or (rule is not None and rule.senders == "anyone")
        return "guest" if is_open else "stranger"

    def may_act(self, conn: Connection, senders: Collection[str]) -> bool:
        """Whether tools may have side effects for a turn that reads the words of these senders."""
        return self.weakest(conn, senders) != "stranger"

    def weakest(self, conn: Connection, senders: Collection[str]) -> SenderRole:
        """Return what all of these were let in as at least.

        Args:
            conn: A connection.
            senders: "platform:sender id" of each; many are looked up together.

        Returns:
            owner, member or stranger, which guests are as well; stranger for nobody.
        """
        named = [(name, sender) for name, _, sender in (each.partition(":") for each in senders)]
        roles = members.roles(conn, named)
        found = {
            # Nobody but the web chat's own user comes in through it.
            "owner" if name == BUILT_IN else self._granted(name, sender, roles.get((name, sender)))
            for name, sender in named
        }
        if not found or "stranger" in found:
            return "stranger"
        return "member" if "member" in found else "owner"

    def rule(self, message: InboundMessage) -> GroupRule | None:
        """Return the closest rule of a group; None in a direct chat."""
        if message.chat_kind == "dm":
            return None
        platform, groups = message.address.platform, self.settings.groups
        for key in (f"{platform}:{message.address.chat}", f"{platform}:*", "*"):
            if key in groups:
                return groups[key]
        return GroupRule()

    def _granted(self, platform: str, sender: str, role: members.Role | None) -> SenderRole:
        """Return what the settings, or an owner's word, make of somebody."""
        if f"{platform}:{sender}" in self.settings.owners:
            return "owner"
        if role is not None:
            return role
        return "member" if sender in self.settings.listed(platform) else "stranger"


def may_approve(tool: str, *, is_owner: bool, may_act: bool) -> bool:
    """Whether somebody may allow calls of a tool."""
    return is_owner or (may_act and tool not in FOR_OWNERS)


def is_for_bot(rule: GroupRule | None, message: InboundMessage, *, in_thread: bool) -> bool:
    """Whether a message is to be answered; what is not may still be overheard.

    Args:
        rule: Of its group; None in a direct chat.
        message: The message.
        in_thread: Whether the bot has a conversation in the message's thread.
    """
    if rule is None or rule.respond == "always":
        return True
    if rule.respond == "never":
        return False
    return message.addressed == "direct" or (message.addressed == "thread" and in_thread)


@dataclass(frozen=True, slots=True)
class Owners:
    """Finds the owners' chats and speaks there; part of the caller's transaction.

    Args:
        access: The settings' owners; those who were made one by a code stand in the database.
        renderers: By (platform, account): of the accounts that are on.
    """

    access: Access
    renderers: Mapping[tuple[str, str], Renderer]

    def everybody(self, conn: Connection) -> list[tuple[str, str]]:
        """Return (platform, sender) of all owners."""
        named = [owner.partition(":") for owner in self.access.settings.owners]
        made = members.owners(conn)
        return list(dict.fromkeys([*((platform, who) for platform, _, who in named), *made]))

    def chats(self, conn: Connection, owners: Sequence[tuple[str, str]]) -> list[Conversation]:
        """Return the direct chat of each owner; the web chat where no other can be reached."""
        accounts = self.renderers.keys()
        found = [members.newest_direct_chat(conn, *owner, accounts) for owner in owners]
        chats = [chat for chat in found if chat is not None]
        if chats:
            return chats
        web = members.newest_direct_chat(conn, BUILT_IN, BUILT_IN, accounts)
        return [] if web is None else [web]

    def say(
        self,
        conn: Connection,
        place: Conversation,
        key: str,
        text: str,
        choices: tuple[Choice, ...] = (),
    ) -> bool:
        """Say something in a chat, an owner's or another one; False where the key is known.

        Args:
            conn: The writing connection.
            place: The row of the conversation; its account is on.
            key: Names the cause; a text with the same key is said once.
            text: Markdown.
            choices: Buttons below it.
        """
        render = self.renderers[place.platform, place.account]
        parts = parts_of(render, key, text, choices=choices)
        return outbox.append(conn, place.id, parts, inbox_seq=place.inbox_head)
