"""Checks every few seconds for findings to report to owners, and for ended ones.

Every replica checks; the table `alert` ensures that owners are notified once. While the database is
not writable, the webhook is notified at once and chats as soon as rows can be stored.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import structlog

from gateway.findings.finding import Evidence, Finding, Sight, Unsure
from gateway.findings.machine import OF_DISKS
from gateway.findings.report import FINDINGS, Examination
from gateway.findings.telling import WITH_AN_END, AlertsTold, Judgement, Key, Telling
from gateway.findings.webhook import AlertWebhook
from gateway.signals import Wakeups
from gateway.storage.queue import alerts
from gateway.supervision.vitals import DATABASE

log = structlog.get_logger()

LOOK_EVERY_S = 15.0


@dataclass(slots=True)
class AlertWatch:
    """Finds reportable findings and notifies owners in chats and by the webhook, if any.

    Attributes:
        outage: Reason and duration of a database outage, until chats are notified.
        open: The open alerts at the last read of the database.
    """

    examination: Examination
    telling: Callable[[], Telling]
    wakeups: Wakeups
    webhook: AlertWebhook | None = None
    outage: tuple[str, float] | None = None
    open: frozenset[Key] = field(default=frozenset())

    async def look(self) -> AlertsTold:
        """Check once and report changes.

        Raises:
            StorageError: Nothing was stored; the next check repeats it.
        """
        facts = await self.examination.facts()
        is_writable = facts.gateway.database == "writable"
        facts = self._with_outage(facts)
        of_disks = [FINDINGS[each] for each in OF_DISKS]
        rest = [each for each in FINDINGS.values() if each.told and each.id not in OF_DISKS]
        # Not in the database's thread, since a dead mount may never answer.
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
                alerts.to_tell(conn, WITH_AN_END),
            )
        )
        judgement |= in_database
        self.open = frozenset((each.kind, each.subject) for each in found if each.over_at is None)
        told = await self._tell(judgement) if judgement.seen or found else AlertsTold()
        # Only now, since the next check repeats what could not be stored.
        self.outage = None
        if self.webhook is not None:
            self.webhook.unstored.clear()
        return told

    def _with_outage(self, facts: Evidence) -> Evidence:
        """Add a past database outage to the facts until chats are notified."""
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
        for each in told.ended:
            log.info("alert_over", alert=each.id, kind=each.kind, subject=each.subject)
        return told

    async def test(self) -> tuple[int, bool | None]:
        """Send a test; return the number of chats and whether the webhook, if any, accepted it.

        Raises:
            StorageError: The rows cannot be stored.
        """
        key = f"{time.time():.0f}"
        chats = await self.examination.vitals.database.write(self.telling().test, key)
        for conversation_id in chats:
            self.wakeups.outbox(conversation_id)
        return len(chats), None if self.webhook is None else await self.webhook.test()


def judged(facts: Evidence, kinds: Iterable[Finding]) -> Judgement:
    """Return the reportable and unknown findings."""
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
