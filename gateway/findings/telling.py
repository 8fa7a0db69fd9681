"""Tells owners of troubles: which chats, what they read, and when a trouble is over.

All of it is one transaction: the row of the trouble, and the rows of the outbox that tell of it.
So a restart, or another replica, tells nothing twice.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from sqlalchemy import Connection

from adapters.messages import Address
from gateway.access.policy import Owners
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
"""How long nobody may have seen a trouble before it is over; doubled by each end of it lately."""
COMES_AGAIN_S = 6 * HOUR_S
"""How long an end counts as of late."""
PER_HOUR = 10
"""Messages about alerts within an hour; enough for what goes wrong at once, few enough to read."""
PAGE = "docs/operations.md"
REASON_CHARS = 300
FLOOD = (
    "**Trouble:** there is more than I tell one by one within an hour. `parley status` lists all of"
    " it; I go on telling when it is calmer."
)
NOT_SET_UP = "{subject} is not set up any more"
TEST = "**A test of the alerts.** Here I tell of troubles; there is nothing to do."

Key = tuple[str, str]
"""Kind and subject."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a look has found.

    Attributes:
        unsure: Those that may be there or not.
        accounts: Those that are served.
    """

    seen: dict[Key, Sight] = field(default_factory=dict)
    unsure: frozenset[Key] = frozenset()
    accounts: frozenset[str] = frozenset()

    def __or__(self, other: "Judgement") -> "Judgement":
        """Return what both looks have found."""
        return Judgement(self.seen | other.seen, self.unsure | other.unsure, self.accounts)

    def is_well(self, alert: Alert) -> bool:
        """Whether the trouble of an open alert is not there any more."""
        key = alert.kind, alert.subject
        return key not in self.unsure and key not in self.seen

    def over_of(self, alert: Alert) -> str:
        """Return what is told at an alert's end: an account that was taken out does not "work"."""
        if alert.kind in OF_ACCOUNTS and alert.subject not in self.accounts:
            return NOT_SET_UP
        # Nothing of a kind of an earlier version.
        return FINDINGS[alert.kind].over if alert.kind in FINDINGS else ""


@dataclass(slots=True)
class AlertsTold:
    """What a transaction has told.

    Attributes:
        chats: Conversations that have something to be sent.
        unheard: Those that no chat was told of, although they were to be told.
    """

    chats: set[int] = field(default_factory=set)
    begun: list[Alert] = field(default_factory=list)
    ended: list[Alert] = field(default_factory=list)
    unheard: list[Alert] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Telling:
    """Says in chats what has begun and what is over; part of the caller's transaction.

    Args:
        owners: Who is told where the settings name no chats.
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
        """Note what a look has found, and tell of what is new and of what is over.

        Args:
            posted: Troubles whose begin a webhook was told of before they had a row.
        """
        told = AlertsTold()
        # What waits for room comes before what is new.
        waiting = alerts.to_tell(conn, with_an_end())
        there = {(each.kind, each.subject) for each in waiting if each.over_at is None}
        there |= judgement.seen.keys()
        for alert in waiting:
            if alert.over_at is not None:
                # What is there again is not over; and half of the room is for what begins.
                room = max(1, PER_HOUR // 2)
                is_again = (alert.kind, alert.subject) in there
                if not is_again and alerts.told_lately(conn, HOUR_S) < room:
                    self._tell_end(conn, judgement.over_of(alert), alert, told)
            elif judgement.is_well(alert):
                if alerts.end(conn, alert.id, _quiet_s(conn, alert)):
                    told.ended.append(alert)
                    self._tell_end(conn, judgement.over_of(alert), alert, told)
            elif alert.told_at is None:
                # There is room by now, or an owner has written to the bot.
                self._tell(conn, alert, told)
        for (kind, subject), seen in judgement.seen.items():
            text, since = self.text_of(kind, seen), now(conn) - seen.since_s
            alert_id = alerts.note(conn, kind, subject, text, since)
            if alert_id is not None:
                if (kind, subject) in posted:
                    alerts.mark_posted(conn, alert_id, alerts.BEGIN)
                self._begin(conn, alerts.get(conn, alert_id), told)
        alerts.prune(conn)
        return told

    def test(self, conn: Connection, key: str) -> set[int]:
        """Say in each chat that this is a test; returns where."""
        chats = self.chats(conn)
        return {each.id for each in chats if self._say(conn, each, f"test:{key}", TEST)}

    def text_of(self, kind: str, seen: Sight) -> str:
        """Return what happened, in a sentence without its full stop; holds no secret."""
        return FINDINGS[kind].text_of(seen, self._quoted)

    def _quoted(self, text: str) -> str:
        # A part of a secret is none that could be masked; what others say is no code.
        quoted = self.masked(" ".join(text.split()))[:REASON_CHARS].replace("`", "'")
        # The sentence has its own full stop.
        return quoted.removesuffix(".")

    def chats(self, conn: Connection) -> list[Conversation]:
        """Return the chats that are told; each once."""
        if not self.settings.to:
            return self.owners.chats(conn, self.owners.everybody(conn))
        named = [self._named(conn, each) for each in self.settings.to]
        return list({chat.id: chat for chat in named if chat is not None}.values())

    def _named(self, conn: Connection, named: str) -> Conversation | None:
        """Return a chat that the settings name; None where its account is off."""
        platform, *middle, chat = named.split(":")
        on = [account for name, account in self.owners.renderers if name == platform]
        account = next((each for each in on if each in (middle or on)), None)
        if account is None:
            return None
        address = Address(platform, account, chat)
        key = address_key(address)
        # Where nobody talks to the bot there is a conversation for alerts alone.
        known = conversations.locked_by_key(conn, key)
        known = known or conversations.locked_by_key(conn, f"alerts:{key}")
        if known is None:
            here = conversations.add(conn, f"alerts:{key}", address, None, "Alerts")
            sessions.start_root(conn, here, "first_message")
            known = conversations.locked(conn, here)
        return known

    def _begin(self, conn: Connection, alert: Alert, told: AlertsTold) -> None:
        told.begun.append(alert)
        if not self._tell(conn, alert, told):
            told.unheard.append(alert)

    def _tell(self, conn: Connection, alert: Alert, told: AlertsTold) -> bool:
        """Tell of a begin, now or at a later look; False where there is no chat to tell it in."""
        if FINDINGS[alert.kind].announced and not self.settings.to:
            alerts.mark_told(conn, alert.id, over=False)
            return True
        if not self._may_tell(conn, told, kinds if alert.kind in (kinds := errors()) else ()):
            return True
        text = begin_text(alert, self.zone)
        if not self._say_all(conn, f"{alert.id}:begin", text, told):
            return False
        alerts.mark_told(conn, alert.id, over=False)
        return True

    def _tell_end(self, conn: Connection, over: str, alert: Alert, told: AlertsTold) -> None:
        # Without a begin its end would be a riddle.
        if over and alert.told_at is not None and self._may_tell(conn, told):
            text = end_text(over, alert, alert.over_at or now(conn), self.zone)
            self._say_all(conn, f"{alert.id}:end", text, told)
            alerts.mark_told(conn, alert.id, over=True)

    def _may_tell(self, conn: Connection, told: AlertsTold, kinds: Collection[str] = ()) -> bool:
        """Whether there is room for one more within the hour; says once that there is none.

        Args:
            kinds: Only their begins take up that room; empty: every message does.
        """
        if alerts.told_lately(conn, HOUR_S, kinds=kinds) < PER_HOUR:
            return True
        self._say_all(conn, f"flood:{int(now(conn) // HOUR_S)}", FLOOD, told)
        return False

    def _say_all(self, conn: Connection, key: str, text: str, told: AlertsTold) -> bool:
        """Say something in all chats; False where there is none."""
        chats = self.chats(conn)
        told.chats |= {each.id for each in chats if self._say(conn, each, key, text)}
        return bool(chats)

    def _say(self, conn: Connection, chat: Conversation, key: str, text: str) -> bool:
        return self.owners.say(conn, chat, f"{outbox.ALERT}{key}:{chat.id}", text)


def prefix_of_begin(alert: Alert) -> str:
    """Return how the keys of the rows begin that tell of an alert's begin."""
    return f"{outbox.ALERT}{alert.id}:begin:"


def begin_text(alert: Alert, zone: tzinfo) -> str:
    """Return what a chat reads when a trouble begins."""
    return (
        f"**Trouble:** {escaped(alert.text)}. Since {_at(alert.since, zone)}.\n\n**What to do:**"
        f" {FINDINGS[alert.kind].remedy}\n\nMore: `parley doctor`, and {PAGE}#{alert.kind}"
    )


def end_text(over: str, alert: Alert, at: float, zone: tzinfo) -> str:
    """Return what a chat reads when a trouble is over."""
    over = escaped(over.format(subject=alert.subject))
    minutes = max(round((at - alert.since) / 60), 1)
    lasted = f"{minutes} minutes" if minutes > 1 else "a minute"
    return f"**Over:** {over}. It lasted {lasted}, from {_at(alert.since, zone)}."


def escaped(text: str) -> str:
    """Return a sentence whose characters are no Markdown; code in it stays code."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = "".join(
            f"\\{each}" if each in r"\*_[]<>#~|!" else each for each in parts[place]
        )
    return "`".join(parts)


def _quiet_s(conn: Connection, alert: Alert) -> float:
    again = alerts.ended_lately(conn, alert.kind, alert.subject, COMES_AGAIN_S)
    return min(QUIET_S * 2.0 ** min(again, 6), LONGEST_QUIET_S)


def _at(seconds: float, zone: tzinfo) -> str:
    return f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d %H:%M} {zone}"


def errors() -> tuple[str, ...]:
    """Kinds for whose begin there is always room, whatever else was told."""
    told = (each for each in FINDINGS.values() if each.told and not each.announced)
    return tuple(each.id for each in told if each.level == "error")


def with_an_end() -> frozenset[str]:
    """Kinds whose end is told."""
    return frozenset(each.id for each in FINDINGS.values() if each.told and each.over)


CurrentTelling = Callable[[], Telling]
"""Returns how troubles are told by the settings as they are now."""
