"""Tells owners in chats that a trouble has begun or is over.

The row of the alert and the rows of the outbox are written in one transaction: so a restart, or
another replica, tells nothing twice.
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
"""How long a trouble is not seen before it is over; doubled for each recent end of it."""
COMES_AGAIN_S = 6 * HOUR_S
"""How long an end counts as recent."""
PER_HOUR = 10
"""Messages about alerts within an hour: few enough to read."""
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
"""Kinds whose begins have room of their own."""
Key = tuple[str, str]
"""Kind and subject."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The alerts that a look has found; `unsure` may be there or not, `accounts` are served."""

    seen: dict[Key, Sight] = field(default_factory=dict)
    unsure: frozenset[Key] = frozenset()
    accounts: frozenset[str] = frozenset()

    def __or__(self, other: "Judgement") -> "Judgement":
        """Return the findings of both."""
        return Judgement(self.seen | other.seen, self.unsure | other.unsure, self.accounts)

    def over_of(self, alert: Alert) -> str:
        """Return the text of an alert's end; an account that was removed does not work again."""
        if alert.kind in OF_ACCOUNTS and alert.subject not in self.accounts:
            return "{subject} is not set up any more"
        # An earlier version may have had other kinds.
        return FINDINGS[alert.kind].over if alert.kind in FINDINGS else ""


@dataclass(slots=True)
class AlertsTold:
    """What a transaction has told; `chats` are conversations with something to be sent."""

    chats: set[int] = field(default_factory=set)
    begun: list[Alert] = field(default_factory=list)
    ended: list[Alert] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Telling:
    """Tells chats what has begun and what is over, in the caller's transaction.

    Args:
        owners: Are told if the settings name no chats.
        zone: Of the times in texts.
        masked: Takes secrets out of a text.
    """

    settings: AlertSettings
    owners: Owners
    zone: tzinfo = UTC
    masked: Callable[[str], str] = str

    def apply(
        self, conn: Connection, judgement: Judgement, posted: frozenset[Key] = frozenset()
    ) -> AlertsTold:
        """Store what a look has found, and tell what is new and what is over.

        Args:
            posted: Troubles that the webhook was told of before they had a row.
        """
        told = AlertsTold()
        # What waits for room comes before what is new.
        waiting = alerts.to_tell(conn, WITH_AN_END)
        there = {(each.kind, each.subject) for each in waiting if each.over_at is None}
        there |= judgement.seen.keys()
        for alert in waiting:
            key = alert.kind, alert.subject
            if alert.over_at is not None:
                # What is there again is not over; and half of the room is for what begins.
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
                # There is room by now, or an owner has written to the bot.
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
        """Send a test to each chat; return their ids."""
        told = AlertsTold()
        self._say_all(conn, f"test:{key}", TEST, told)
        return told.chats

    def text_of(self, kind: str, seen: Sight) -> str:
        """Describe a trouble in a sentence without its full stop and without secrets."""
        return FINDINGS[kind].text_of(seen, self._quoted)

    def _quoted(self, text: str) -> str:
        # Masked before it is cut: a part of a secret is not recognized.
        quoted = self.masked(" ".join(text.split()))[:REASON_CHARS].replace("`", "'")
        return quoted.removesuffix(".")

    def chats(self, conn: Connection) -> list[Conversation]:
        """Return the chats that are told; each once."""
        if not self.settings.to:
            return self.owners.chats(conn, self.owners.everybody(conn))
        named = [self._named(conn, each) for each in self.settings.to]
        return list({chat.id: chat for chat in named if chat is not None}.values())

    def _named(self, conn: Connection, named: str) -> Conversation | None:
        """Return a chat that the settings name, or None if its account is off."""
        platform, *middle, chat = named.split(":")
        on = [account for name, account in self.owners.renderers if name == platform]
        account = next((each for each in on if each in (middle or on)), None)
        if account is None:
            return None
        address = Address(platform, account, chat)
        key = address_key(address)
        # A chat in which nobody talks to the bot has a conversation for alerts alone.
        known = conversations.locked_by_key(conn, key)
        known = known or conversations.locked_by_key(conn, f"alerts:{key}")
        if known is None:
            here = conversations.add(conn, f"alerts:{key}", address, None, "Alerts")
            sessions.start_root(conn, here, "first_message")
            known = conversations.locked(conn, here)
        return known

    def _tell(self, conn: Connection, alert: Alert, told: AlertsTold) -> None:
        """Tell a begin; without room or a chat a later look does."""
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
        # Without a begin its end would be a riddle.
        if over and alert.told_at is not None and self._may_tell(conn, told):
            lasted = minutes((alert.over_at or now(conn)) - alert.since)
            text = (
                f"**Over:** {_escaped(over.format(subject=alert.subject))}."
                f" It lasted {lasted}, from {_at(alert.since, self.zone)}."
            )
            self._say_all(conn, f"{alert.id}:end", text, told)
            alerts.mark_told(conn, alert.id, over=True)

    def _may_tell(self, conn: Connection, told: AlertsTold, kinds: Collection[str] = ()) -> bool:
        """Whether there is room for one more message this hour; if not, say that once.

        Args:
            kinds: Only their begins count; empty: every message does.
        """
        if alerts.told_lately(conn, HOUR_S, kinds=kinds) < PER_HOUR:
            return True
        self._say_all(conn, f"flood:{int(now(conn) // HOUR_S)}", FLOOD, told)
        return False

    def _say_all(self, conn: Connection, key: str, text: str, told: AlertsTold) -> bool:
        """Say something in all chats; return whether there are any."""
        chats = self.chats(conn)
        for chat in chats:
            if self.owners.say(conn, chat, f"{outbox.ALERT}{key}:{chat.id}", text):
                told.chats.add(chat.id)
        return bool(chats)


def prefix_of_begin(alert: Alert) -> str:
    """Return the prefix of the keys of the outbox rows that tell an alert's begin."""
    return f"{outbox.ALERT}{alert.id}:begin:"


def _escaped(text: str) -> str:
    """Escape Markdown in a sentence, but for code."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = "".join(
            f"\\{each}" if each in r"\*_[]<>#~|!" else each for each in parts[place]
        )
    return "`".join(parts)


def _at(seconds: float, zone: tzinfo) -> str:
    return f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d %H:%M} {zone}"
