"""Notifies owners in chats when a problem starts or ends.

The alert's row and the outbox rows are written in one transaction, so a restart or another replica
repeats nothing.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from sqlalchemy import Connection

from adapters.messages import Address
from gateway.access.policy import Owners
from gateway.findings.database import minutes
from gateway.findings.finding import Sight
from gateway.findings.people import OF_ACCOUNTS
from gateway.findings.report import FINDINGS
from gateway.session_keys import address_key
from gateway.settings.tree import AlertSettings
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.queue import alerts, outbox
from gateway.storage.queue.alerts import Alert
from gateway.storage.schema import now

HOUR_S = 3600.0
QUIET_S, LONGEST_QUIET_S = 120.0, HOUR_S
"""Seconds without a sight after which a problem has ended; doubles with each recent end."""
COMES_AGAIN_S = 6 * HOUR_S
"""Seconds for which an end counts as recent."""
PER_HOUR = 10
"""Most alert messages per hour: few enough to read."""
PAGE = "docs/operations.md"
REASON_CHARS = 300
FLOOD = (
    "**Trouble:** there is more than I tell one by one within an hour. `parley status` lists all of"
    " it; I go on telling when it is calmer."
)
TEST = "**A test of the alerts.** Here I tell of troubles; there is nothing to do."

WITH_AN_END = frozenset(each.id for each in FINDINGS.values() if each.told and each.over)
ERRORS = tuple(
    each.id
    for each in FINDINGS.values()
    if each.told and not each.announced and each.level == "error"
)
"""Kinds whose starts have a separate limit."""
Key = tuple[str, str]
"""(kind, subject)."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The alerts found by a check; `unsure` ones are unknown, `accounts` are served."""

    seen: dict[Key, Sight] = field(default_factory=dict)
    unsure: frozenset[Key] = frozenset()
    accounts: frozenset[str] = frozenset()

    def __or__(self, other: "Judgement") -> "Judgement":
        """Combine two judgements."""
        return Judgement(self.seen | other.seen, self.unsure | other.unsure, self.accounts)

    def over_of(self, alert: Alert) -> str:
        """Return the text of an alert's end, unless its account was removed."""
        if alert.kind in OF_ACCOUNTS and alert.subject not in self.accounts:
            return "{subject} is not set up any more"
        # An earlier version may have used other kinds.
        return FINDINGS[alert.kind].over if alert.kind in FINDINGS else ""


@dataclass(slots=True)
class AlertsTold:
    """The notifications of a transaction; `chats` are conversations with rows to send."""

    chats: set[int] = field(default_factory=set)
    begun: list[Alert] = field(default_factory=list)
    ended: list[Alert] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Telling:
    """Notifies chats of starts and ends in the caller's transaction.

    Args:
        owners: Notified if the settings name no chats.
        zone: Time zone of times in texts.
        masked: Removes secrets from a text.
    """

    settings: AlertSettings
    owners: Owners
    zone: tzinfo = UTC
    masked: Callable[[str], str] = str

    def apply(
        self, conn: Connection, judgement: Judgement, posted: frozenset[Key] = frozenset()
    ) -> AlertsTold:
        """Store a check's result, and report what is new or ended.

        Args:
            posted: Problems posted to the webhook before they had a row.
        """
        told = AlertsTold()
        # Waiting notifications come before new ones.
        waiting = alerts.to_tell(conn, WITH_AN_END)
        there = {(each.kind, each.subject) for each in waiting if each.over_at is None}
        there |= judgement.seen.keys()
        for alert in waiting:
            key = alert.kind, alert.subject
            if alert.over_at is not None:
                # A recurring problem has not ended; and half of the limit is reserved for starts.
                room = max(1, PER_HOUR // 2)
                if key not in there and alerts.told_lately(conn, HOUR_S) < room:
                    self._tell_end(conn, judgement.over_of(alert), alert, told)
            elif key not in judgement.seen and key not in judgement.unsure:
                again = alerts.ended_lately(conn, *key, COMES_AGAIN_S)
                quiet_s = min(QUIET_S * 2.0 ** min(again, 6), LONGEST_QUIET_S)
                if alerts.end(conn, alert.id, quiet_s):
                    told.ended.append(alert)
                    self._tell_end(conn, judgement.over_of(alert), alert, told)
            elif alert.told_at is None:
                # The limit has room now, or an owner has written to the bot.
                self._tell(conn, alert, told)
        for (kind, subject), seen in judgement.seen.items():
            text, since = self.text_of(kind, seen), now(conn) - seen.since_s
            if (alert_id := alerts.note(conn, kind, subject, text, since)) is not None:
                if (kind, subject) in posted:
                    alerts.mark_posted(conn, alert_id, alerts.BEGIN)
                told.begun.append(alerts.get(conn, alert_id))
                self._tell(conn, told.begun[-1], told)
        alerts.prune(conn)
        return told

    def test(self, conn: Connection, key: str) -> set[int]:
        """Send a test message to each chat; return the chats' ids."""
        told = AlertsTold()
        self._say_all(conn, f"test:{key}", TEST, told)
        return told.chats

    def text_of(self, kind: str, seen: Sight) -> str:
        """Describe a problem in a sentence without full stop and secrets."""
        return FINDINGS[kind].text_of(seen, self._quoted)

    def _quoted(self, text: str) -> str:
        # Mask before cutting, since a partial secret is not recognized.
        quoted = self.masked(" ".join(text.split()))[:REASON_CHARS].replace("`", "'")
        return quoted.removesuffix(".")

    def chats(self, conn: Connection) -> list[Conversation]:
        """Return the chats to notify, each once."""
        if not self.settings.to:
            return self.owners.chats(conn, self.owners.everybody(conn))
        named = [self._named(conn, each) for each in self.settings.to]
        return list({chat.id: chat for chat in named if chat is not None}.values())

    def _named(self, conn: Connection, named: str) -> Conversation | None:
        """Return a configured chat, or None if its account is off."""
        platform, *middle, chat = named.split(":")
        on = [account for name, account in self.owners.renderers if name == platform]
        account = next((each for each in on if each in (middle or on)), None)
        if account is None:
            return None
        address = Address(platform, account, chat)
        key = address_key(address)
        # A chat without messages to the bot gets a conversation only for alerts.
        known = conversations.locked_by_key(conn, key)
        known = known or conversations.locked_by_key(conn, f"alerts:{key}")
        if known is None:
            here = conversations.add(conn, f"alerts:{key}", address, None, "Alerts")
            sessions.start_root(conn, here, "first_message")
            known = conversations.locked(conn, here)
        return known

    def _tell(self, conn: Connection, alert: Alert, told: AlertsTold) -> None:
        """Report a start; without room or a chat, a later check does."""
        is_told = FINDINGS[alert.kind].announced and not self.settings.to
        if not is_told:
            kinds = ERRORS if FINDINGS[alert.kind].level == "error" else ()
            text = (
                f"**Trouble:** {_escaped(alert.text)}. Since {_at(alert.since, self.zone)}.\n\n"
                f"**What to do:** {FINDINGS[alert.kind].remedy}\n\n"
                f"More: `parley doctor`, and {PAGE}#{alert.kind}"
            )
            has_room = self._may_tell(conn, told, kinds)
            is_told = has_room and self._say_all(conn, f"{alert.id}:begin", text, told)
        if is_told:
            alerts.mark_told(conn, alert.id, over=False)

    def _tell_end(self, conn: Connection, over: str, alert: Alert, told: AlertsTold) -> None:
        # An end without a reported start would be confusing.
        if over and alert.told_at is not None and self._may_tell(conn, told):
            lasted = minutes((alert.over_at or now(conn)) - alert.since)
            text = (
                f"**Over:** {_escaped(over.format(subject=alert.subject))}."
                f" It lasted {lasted}, from {_at(alert.since, self.zone)}."
            )
            self._say_all(conn, f"{alert.id}:end", text, told)
            alerts.mark_told(conn, alert.id, over=True)

    def _may_tell(self, conn: Connection, told: AlertsTold, kinds: Collection[str] = ()) -> bool:
        """Whether the hourly limit allows one more message; if not, say so once.

        Args:
            kinds: Count only their starts; empty counts every message.
        """
        if alerts.told_lately(conn, HOUR_S, kinds=kinds) < PER_HOUR:
            return True
        self._say_all(conn, f"flood:{int(now(conn) // HOUR_S)}", FLOOD, told)
        return False

    def _say_all(self, conn: Connection, key: str, text: str, told: AlertsTold) -> bool:
        """Send a text to all chats; return whether there are any."""
        chats = self.chats(conn)
        for chat in chats:
            if self.owners.say(conn, chat, f"{outbox.ALERT}{key}:{chat.id}", text):
                told.chats.add(chat.id)
        return bool(chats)


def prefix_of_begin(alert: Alert) -> str:
    """Return the key prefix of outbox rows that report an alert's start."""
    return f"{outbox.ALERT}{alert.id}:begin:"


def _escaped(text: str) -> str:
    """Escape Markdown in a sentence, except code."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = "".join(
            f"\\{each}" if each in r"\*_[]<>#~|!" else each for each in parts[place]
        )
    return "`".join(parts)


def _at(seconds: float, zone: tzinfo) -> str:
    return f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d %H:%M} {zone}"
