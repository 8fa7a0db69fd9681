"""The roles and quotas of senders, the rules of groups, and the chats of owners.

Default deny: a sender neither named in the settings (`access`) nor admitted by an owner is a
stranger. Texts for owners are outbox rows.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from adapters.base import Renderer
from adapters.door import FIRST_OWNER
from adapters.messages import Choice, InboundMessage
from adapters.registry import BUILT_IN
from adapters.web.platform import WebSettings
from agent.ports import InquiryKind
from agent.tools.policy import FOR_OWNERS
from gateway.access.rate_limits import DAY_S, MINUTE_S
from gateway.settings.tree import AccessSettings, GroupRule, QuotaSettings
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.people import members, web_users
from gateway.storage.people.web_users import WebUser
from gateway.storage.queue import inbox, outbox
from gateway.storage.queue.outbox import parts_of
from gateway.storage.reports import spending
from gateway.storage.reports.spending import Where

SenderRole = Literal["owner", "member", "guest", "stranger"]
"""owner: may admit others; no rate limit. member: allowed. guest: may chat, but not cause side
effects through tools (mode open, `senders: anyone`). stranger: denied."""


@dataclass(slots=True, eq=False)
class Access:
    """Decides the roles of senders.

    Attributes:
        settings: The people and groups; a reload replaces it.
        web: The web chat's settings, with the entries that admit users of an identity provider.
    """

    settings: AccessSettings
    web: WebSettings = field(default_factory=WebSettings)

    def role_of(self, conn: Connection, message: InboundMessage) -> SenderRole:
        """Return the sender's role here.

        At most one read by primary key; a second for a web user linked to another platform.
        """
        platform, sender = message.address.platform, message.sender
        if platform == BUILT_IN:
            return self.web_role(conn, sender) if message.authenticated else "stranger"
        if message.authenticated:
            return "owner"
        granted = self._granted(platform, sender, members.role(conn, platform, sender))
        if granted != "stranger":
            return granted
        rule = self.rule(message)
        is_open = self.settings.mode == "open" or (rule is not None and rule.senders == "anyone")
        return "guest" if is_open else "stranger"

    def web_role(self, conn: Connection, sender: str) -> SenderRole:
        """Return the role of a web chat user; stranger after removal."""
        [role] = self._roles(conn, [(BUILT_IN, sender)])
        return role

    def own_role(self, user: WebUser) -> SenderRole:
        """Return the role of a web user without a linked platform.

        For users of an identity provider the current settings decide, not those at sign-in.
        """
        if user.role == "removed":
            return "stranger"
        return (
            user.role if user.let_in_by is None else self.web.let_in.get(user.let_in_by, "stranger")
        )

    def may_act(self, conn: Connection, senders: Collection[str]) -> bool:
        """Whether tools may have side effects in a turn that reads these senders' words."""
        return self.weakest(conn, senders) != "stranger"

    def weakest(self, conn: Connection, senders: Collection[str]) -> SenderRole:
        """Return the weakest role of these senders ("platform:sender id").

        Guests count as strangers, and so does an empty list.
        """
        found = self.standings(conn, senders)
        if not found or "stranger" in found:
            return "stranger"
        return "member" if "member" in found else "owner"

    def standings(self, conn: Connection, senders: Collection[str]) -> set[SenderRole]:
        """Return the set of these senders' roles: owner, member or stranger."""
        named = [(name, sender) for name, _, sender in (each.partition(":") for each in senders)]
        # Tools treat guests as strangers.
        return {"stranger" if role == "guest" else role for role in self._roles(conn, named)}

    def rule(self, message: InboundMessage) -> GroupRule | None:
        """Return the most specific rule of a group; None in a direct chat."""
        if message.chat_kind == "dm":
            return None
        platform, groups = message.address.platform, self.settings.groups
        for key in (f"{platform}:{message.address.chat}", f"{platform}:*", "*"):
            if key in groups:
                return groups[key]
        return GroupRule()

    def _roles(self, conn: Connection, named: Sequence[tuple[str, str]]) -> list[SenderRole]:
        """Return the role of each (platform, sender), without group rules."""
        invited = [sender for name, sender in named if _is_invited(name, sender)]
        users = web_users.named(conn, invited) if invited else {}
        who = [_elsewhere(name, sender, users) for name, sender in named]
        roles = members.roles(conn, [each for each in who if each[0] != BUILT_IN])
        web: dict[str, SenderRole] = {name: self.own_role(user) for name, user in users.items()}
        web[FIRST_OWNER] = "owner"
        return [
            web.get(sender, "stranger")
            if name == BUILT_IN
            else self._granted(name, sender, roles.get((name, sender)))
            for name, sender in who
        ]

    def _granted(self, platform: str, sender: str, role: members.Role | None) -> SenderRole:
        """Return the role given by the settings or by an owner."""
        if f"{platform}:{sender}" in self.settings.owners:
            return "owner"
        if role is not None:
            return role
        return "member" if sender in self.settings.listed(platform) else "stranger"


def _is_invited(platform: str, sender: str) -> bool:
    return platform == BUILT_IN and sender != FIRST_OWNER


def _elsewhere(platform: str, sender: str, users: Mapping[str, WebUser]) -> tuple[str, str]:
    """Return the identity whose role applies: a web user may be linked to another platform."""
    user = users.get(sender) if _is_invited(platform, sender) else None
    if user is None or user.same_as is None or user.role == "removed":
        return platform, sender
    there, _, same = user.same_as.partition(":")
    return there, same


AnswerRefusal = Literal["not here", "not theirs", "guest", "owners alone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    """The facts about a person who answers a turn's question.

    Attributes:
        where: here: where it was asked; direct: in another direct chat of theirs; console: in the
            console, which shows the questions of all chats.
        is_asked: Whether it was asked in their own conversation or a shared one.
        has_spoken: Whether the waiting turn contains their words.
    """

    role: SenderRole
    where: Literal["here", "direct", "console", "elsewhere"] = "here"
    is_asked: bool = True
    has_spoken: bool = False


def answer_refusal(
    kind: InquiryKind, tool: str, who: Answerer, *, for_owners: bool
) -> AnswerRefusal | None:
    """Return the reason why a person may not answer a question, or None.

    Every answer is checked here: buttons, commands, plain text, other chats of owners, the web
    chat, the console, and earlier approvals for a conversation.

    Args:
        for_owners: Whether the policy requires an owner.
    """
    is_owner, may_act = who.role == "owner", who.role in {"owner", "member"}
    is_asked_of_owner = who.where == "console" or (for_owners and who.where == "direct")
    if who.where != "here" and not (is_owner and is_asked_of_owner):
        return "not here"
    if not (is_owner or who.is_asked):
        return "not theirs"
    if kind == "approval":
        if not may_act:
            return "guest"
        return "owners alone" if (for_owners or tool in FOR_OWNERS) and not is_owner else None
    return None if may_act or who.has_spoken else "not theirs"


def is_for_bot(rule: GroupRule | None, message: InboundMessage, *, in_thread: bool) -> bool:
    """Whether a message addresses the bot; `rule` is None in a direct chat."""
    if rule is None or rule.respond == "always":
        return True
    if rule.respond == "never":
        return False
    return message.addressed == "direct" or (message.addressed == "thread" and in_thread)


@dataclass(frozen=True, slots=True)
class Owners:
    """Finds the owners' chats and writes to them, in the caller's transaction.

    Attributes:
        renderers: Renderers of active accounts by (platform, account).
    """

    access: Access
    renderers: Mapping[tuple[str, str], Renderer]

    def everybody(self, conn: Connection) -> list[tuple[str, str]]:
        """Return (platform, sender) of all owners."""
        named = [owner.partition(":") for owner in self.access.settings.owners]
        made = members.owners(conn)
        return list(dict.fromkeys([*((platform, who) for platform, _, who in named), *made]))

    def chats(self, conn: Connection, owners: Sequence[tuple[str, str]]) -> list[Conversation]:
        """Return the direct chat of each owner; the web chat only without another."""
        accounts = self.renderers.keys()
        found = [members.newest_direct_chat(conn, *owner, accounts) for owner in owners]
        chats = [chat for chat in found if chat is not None]
        if chats:
            return chats
        users, own_role = web_users.everybody(conn), self.access.own_role
        invited = [user.name for user in users if own_role(user) == "owner"]
        on_the_web = [(BUILT_IN, sender) for sender in (FIRST_OWNER, *invited)]
        found = [members.newest_direct_chat(conn, *owner, accounts) for owner in on_the_web]
        return [chat for chat in found if chat is not None]

    def say(
        self,
        conn: Connection,
        place: Conversation,
        key: str,
        text: str,
        choices: tuple[Choice, ...] = (),
    ) -> bool:
        """Send a text to a chat of an active account; return False for a known key.

        Args:
            key: Identifies the cause; a text with the same key is sent once.
            text: Markdown.
        """
        render = self.renderers[place.platform, place.account]
        parts = parts_of(render, key, text, choices=choices)
        return outbox.append(conn, place.id, parts, inbox_seq=place.inbox_head)


class Quotas:
    """Daily limits of a sender's messages and tokens, counted in the inbox and the ledger.

    A day of tokens starts at midnight in the configured time zone.
    """

    def __init__(self, settings: QuotaSettings | None = None, timezone: str = "UTC") -> None:
        self._settings = settings or QuotaSettings()
        self.is_any = self._settings != QuotaSettings()
        self._zone = ZoneInfo(timezone)

    def refusal(self, conn: Connection, message: InboundMessage) -> str | None:
        """Return the notice about an exhausted quota, or None; one statement per quota."""
        whose = f"{message.address.platform}:{message.sender}"
        return self._tokens_used_up(conn, whose) or self._messages_used_up(conn, message)

    def _messages_used_up(self, conn: Connection, message: InboundMessage) -> str | None:
        if (limit := self._settings.messages_per_day) is None:
            return None
        ages_s = inbox.ages_s(conn, message, DAY_S, limit)
        if len(ages_s) < limit:
            return None
        wait_s = max(1.0, DAY_S - ages_s[-1])
        hours, minutes = divmod(math.ceil(wait_s / MINUTE_S), 60)
        span = f"{hours} h {minutes} min" if hours else f"{minutes} min"
        return (
            f"I did not accept this message: I accept at most {limit}"
            f" message{'s' if limit > 1 else ''} in 24 hours from you."
            f" You can write again in {span}."
        )

    def _tokens_used_up(self, conn: Connection, whose: str) -> str | None:
        if (limit := self._settings.tokens_per_day) is None:
            return None
        now = datetime.now(self._zone)
        start = now.replace(hour=0, minute=0, second=0, microsecond=0)
        used = spending.total(conn, Where(start.timestamp(), sender=whose)).usage
        if used.total_tokens < limit:
            return None
        anew = start + timedelta(days=1)
        return (
            f"I did not accept this message: you have used up your {limit:,} tokens for today."
            f" They reset at {anew:%H:%M} {self._zone}."
        )
