"""Sessions: which conversation a message belongs to (invariant 12), and when it starts over."""

from datetime import UTC, datetime, time, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

from adapters.messages import Address, InboundMessage
from gateway.settings.tree import SessionSettings

GroupSessions = Literal["per_user", "shared"]
ResetReason = Literal["daily", "idle"]

FOR_ONE_QUESTION = "ask-"
"""Prefix of a chat that `parley ask` opens, and that is not read again."""


def session_key(message: InboundMessage, groups: GroupSessions) -> str:
    """Return `platform:account:chat[:thread][:user]`.

    A direct chat is one conversation, a thread is shared by all its senders, and a group is one
    conversation per sender or one for all, by `sessions.groups`. A sender follows an empty thread,
    so that it is not taken for one.
    """
    if message.chat_kind == "group" and groups == "per_user":
        return member_key(message.address, message.sender)
    return address_key(message.address)


def sole_sender(message: InboundMessage, groups: GroupSessions) -> str | None:
    """Return the only sender of a conversation, or None if several people share it."""
    private = message.chat_kind == "dm" or (message.chat_kind == "group" and groups == "per_user")
    return message.sender if private else None


def member_key(address: Address, sender: str) -> str:
    """Return the key of a sender's own conversation in a group."""
    return f"{address_key(address)}::{_quoted(sender)}"


def address_key(address: Address) -> str:
    """Return the key of a direct chat or a thread."""
    parts = [address.platform, address.account, address.chat]
    if address.thread is not None:
        parts.append(address.thread)
    return ":".join(_quoted(part) for part in parts)


def is_direct(row: Any) -> bool:
    """Return whether a row's conversation is its sender's direct chat.

    A sender's own conversation in a group has another key; a delegated child's is not a chat.
    """
    here = address_key(Address(row.platform, row.account, row.chat, row.thread))
    return row.user is not None and row.parent_turn_id is None and row.session_key == here


def _quoted(part: str) -> str:
    """Keep the parts of a key apart even if an id has a colon."""
    return part.replace("%", "%25").replace(":", "%3A")


def reset_due(
    settings: SessionSettings, last_active: datetime | None, now: datetime
) -> ResetReason | None:
    """Return why a conversation starts over with a new message, or None if it continues.

    daily: `at_hour` has struck since, in the zone of the settings. Each local day has one such
    moment: an hour that comes twice strikes the first time, one that is skipped strikes when the
    clocks are put forward. idle: more than `idle_minutes` have passed; it wins if both apply.

    Args:
        last_active: When the conversation's newest message was recorded, aware; None for never.
        now: When the new message came, aware. Not after `last_active`: there was no pause.
    """
    if last_active is None:
        return None
    # Times of the same zone would be compared by their clocks, not by the time that passed.
    last, now = last_active.astimezone(UTC), now.astimezone(UTC)
    silence_s = (now - last).total_seconds()
    if settings.reset in {"idle", "both"} and silence_s > settings.idle_minutes * 60:
        return "idle"
    if settings.reset in {"daily", "both"} and last < _last_struck(settings, now):
        return "daily"
    return None


def _last_struck(settings: SessionSettings, now: datetime) -> datetime:
    """Return the newest moment, `now` included, at which `at_hour` struck."""
    zone = ZoneInfo(settings.timezone)
    today = now.astimezone(zone).date()
    # Clocks that are put back over midnight strike for tomorrow; a skipped day strikes with the
    # day after it.
    days = (today + timedelta(days=n) for n in (-2, -1, 0, 1))
    strikes = (datetime.combine(day, time(settings.at_hour), zone) for day in days)
    return max(at for at in (strike.astimezone(UTC) for strike in strikes) if at <= now)
