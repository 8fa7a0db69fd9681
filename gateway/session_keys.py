"""Session keys: a message's conversation (invariant 12), and when it starts over."""

from datetime import UTC, datetime, time, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

from adapters.messages import Address, InboundMessage
from gateway.settings.tree import SessionSettings

GroupSessions = Literal["per_user", "shared"]
ResetReason = Literal["daily", "idle"]

FOR_ONE_QUESTION = "ask-"
"""Prefix of the temporary chats of `parley ask`."""


def session_key(message: InboundMessage, groups: GroupSessions) -> str:
    """Return `platform:account:chat[:thread][:user]`.

    A direct chat is one conversation, a thread is shared by its senders, and a group has one
    conversation per sender or one for all (`sessions.groups`). A sender follows an empty thread, to
    distinguish the two.
    """
    if message.chat_kind == "group" and groups == "per_user":
        return member_key(message.address, message.sender)
    return address_key(message.address)


def sole_sender(message: InboundMessage, groups: GroupSessions) -> str | None:
    """Return the only sender of a conversation; None if shared."""
    private = message.chat_kind == "dm" or (message.chat_kind == "group" and groups == "per_user")
    return message.sender if private else None


def member_key(address: Address, sender: str) -> str:
    """Return the key of a sender's conversation in a group."""
    return f"{address_key(address)}::{_quoted(sender)}"


def address_key(address: Address) -> str:
    """Return the key of a direct chat or a thread."""
    parts = [address.platform, address.account, address.chat]
    if address.thread is not None:
        parts.append(address.thread)
    return ":".join(_quoted(part) for part in parts)


def is_direct(row: Any) -> bool:
    """Whether a row's conversation is its sender's direct chat.

    A sender's conversation in a group has another key; a delegated child's is not a chat.
    """
    here = address_key(Address(row.platform, row.account, row.chat, row.thread))
    return row.user is not None and row.parent_turn_id is None and row.session_key == here


def _quoted(part: str) -> str:
    """Escape colons in an id, which separate the parts of a key."""
    return part.replace("%", "%25").replace(":", "%3A")


def reset_due(
    settings: SessionSettings, last_active: datetime | None, now: datetime
) -> ResetReason | None:
    """Return why a conversation starts over with a new message, or None.

    daily: `at_hour` has passed since, in the configured time zone. Each local day has one such
    moment: a repeated hour counts the first time, a skipped one when the clocks go forward. idle:
    more than `idle_minutes` have passed; it wins if both apply.

    Args:
        last_active: Time of the conversation's newest message, aware; None for never.
        now: Time of the new message, aware. If not after `last_active`, there was no pause.
    """
    if last_active is None:
        return None
    # Times in the same zone would be compared by wall clock instead of elapsed time.
    last, now = last_active.astimezone(UTC), now.astimezone(UTC)
    silence_s = (now - last).total_seconds()
    if settings.reset in {"idle", "both"} and silence_s > settings.idle_minutes * 60:
        return "idle"
    if settings.reset in {"daily", "both"} and last < _last_struck(settings, now):
        return "daily"
    return None


def _last_struck(settings: SessionSettings, now: datetime) -> datetime:
    """Return the latest moment up to `now` at which `at_hour` passed."""
    zone = ZoneInfo(settings.timezone)
    today = now.astimezone(zone).date()
    # Clocks that are put back over midnight strike for tomorrow; a skipped day strikes with the
    # day after it.
    days = (today + timedelta(days=n) for n in (-2, -1, 0, 1))
    strikes = (datetime.combine(day, time(settings.at_hour), zone) for day in days)
    return max(at for at in (strike.astimezone(UTC) for strike in strikes) if at <= now)
