"""Looks around, now and then: which findings are to be told, and which are over; off the path.

Every replica looks; the table `alert` has them tell once. Where the database itself is the trouble
nothing can be entered: then the webhook is told at once, and chats as soon as rows can be stored.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import structlog

from gateway.findings.finding import Evidence, Finding, Sight, Unsure
from gateway.findings.machine import OF_DISKS
from gateway.findings.report import FINDINGS, Examination
from gateway.findings.telling import AlertsTold, CurrentTelling, Judgement, Key, with_an_end
from gateway.findings.webhook import AlertWebhook
from gateway.signals import Wakeups
from gateway.storage.queue import alerts
from gateway.supervision.vitals import DATABASE

log = structlog.get_logger()

LOOK_EVERY_S = 15.0


@dataclass(slots=True)
class AlertWatch:
    """Finds what owners are to be told, and has them told.

    Args:
        examination: Looks at this gateway.
        telling: Returns what tells by the settings as they are now.
        wakeups: Told where there is something to be sent.
        webhook: The second way; None where there is none.

    Attributes:
        outage: Why nothing could be stored, and for how long, until chats could be told of it.
        open: The alerts that were open when the database was last read.
    """

    examination: Examination
    telling: CurrentTelling
    wakeups: Wakeups
    webhook: AlertWebhook | None = None
    outage: tuple[str, float] | None = None
    open: frozenset[Key] = field(default=frozenset())

    async def look(self) -> AlertsTold:
        """Look once, and tell what has changed.

        Raises:
            StorageError: What was found could not be stored; the next look finds it again.
        """
        facts = await self.examination.facts()
        is_writable = facts.gateway.database == "writable"
        facts = self._with_outage(facts)
        kinds = [each for each in FINDINGS.values() if each.told]
        of_disks = [each for each in kinds if each.id in OF_DISKS]
        rest = [each for each in kinds if each.id not in OF_DISKS]
        # Not in the database's thread: a disk that is gone may take for ever.
        judgement = await asyncio.to_thread(judged, facts, of_disks)
        if not is_writable:
            judgement |= judged(facts, (each for each in rest if each.needs != "database"))
            new = {key: judgement.seen[key] for key in judgement.seen.keys() - self.open}
            if self.webhook is not None:
                await self.webhook.tell_unstored(new)
            return AlertsTold()
        in_database, found = await self.examination.vitals.database.read(
            lambda conn: (
                judged(replace(facts, opened=conn), rest),
                alerts.to_tell(conn, with_an_end()),
            )
        )
        judgement |= in_database
        self.open = frozenset((each.kind, each.subject) for each in found if each.over_at is None)
        told = await self._tell(judgement) if judgement.seen or found else AlertsTold()
        # Only now: what could not be entered is found again by the next look.
        self.outage = None
        if self.webhook is not None:
            self.webhook.unstored.clear()
        return told

    def _with_outage(self, facts: Evidence) -> Evidence:
        """Return facts in which the database is away until chats could be told of it."""
        live = facts.gateway
        if live.database != "writable":
            self.outage = live.database, live.lasting_s[DATABASE]
        if self.outage is None:
            return facts
        reason, for_s = self.outage
        lasting_s = {**live.lasting_s, DATABASE: for_s}
        return replace(facts, live=replace(live, database=reason, lasting_s=lasting_s))

    async def _tell(self, judgement: Judgement) -> AlertsTold:
        posted = frozenset(self.webhook.unstored) if self.webhook is not None else frozenset()
        told = await self.examination.vitals.database.write(self.telling().apply, judgement, posted)
        for conversation_id in told.chats:
            self.wakeups.outbox(conversation_id)
        for each in told.begun:
            log.warning("alert_raised", alert=each.id, kind=each.kind, subject=each.subject)
        for each in told.unheard:
            log.warning("alert_not_told", alert=each.id, kind=each.kind, subject=each.subject)
        for each in told.ended:
            log.info("alert_over", alert=each.id, kind=each.kind, subject=each.subject)
        return told

    async def test(self) -> tuple[int, bool | None]:
        """Send a test each way: to how many chats, and whether the webhook took it.

        None for the webhook where there is none.

        Raises:
            StorageError: The rows cannot be stored.
        """
        key = f"{time.time():.0f}"
        chats = await self.examination.vitals.database.write(self.telling().test, key)
        for conversation_id in chats:
            self.wakeups.outbox(conversation_id)
        return len(chats), None if self.webhook is None else await self.webhook.test()


def judged(facts: Evidence, kinds: Iterable[Finding]) -> Judgement:
    """Return what owners are to be told, and what is unknown."""
    seen: dict[Key, Sight] = {}
    unsure: set[Key] = set()
    for kind in kinds:
        for each in kind.look(facts):
            key = kind.id, each.subject
            if isinstance(each, Unsure) or each.since_s < kind.after_s:
                unsure.add(key)
            elif each.level in {None, kind.level}:
                seen[key] = each
    live = facts.gateway
    accounts = {*live.adapters, *(":".join(each) for each in live.accounts)}
    return Judgement(seen, frozenset(unsure), frozenset(accounts))
