"""Looks around, now and then: what troubles there are, and which are over; off the path.

Every replica looks; the table `alert` has them tell once. Where the database itself is the trouble
nothing can be entered: then the webhook is told at once, and chats as soon as rows can be stored.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import structlog
from aiohttp import web
from sqlalchemy import Connection

from adapters.base import Clock
from agent.models.base import ChatModel
from agent.models.recovery import Rests
from gateway.agent_ports.budgets import Budgets, BudgetUse
from gateway.alerts.telling import WITH_AN_END, AlertsTold, Judgement, Key, Telling, log_told
from gateway.alerts.troubles import (
    DAY_S,
    LOW_SHARE,
    OF_DATABASE,
    TROUBLES,
    AlertFacts,
    Evidence,
    Models,
    Stored,
    Unsure,
    Upkeep,
)
from gateway.alerts.webhook import AlertWebhook, tell_of_failed_look
from gateway.errors import StorageError
from gateway.http.control import TEST_ALERTS
from gateway.http.server import Health
from gateway.signals import Wakeups
from gateway.storage.database import Database
from gateway.storage.queue import alerts, outbox
from gateway.storage.queue.alerts import Alert
from gateway.storage.reports import health
from gateway.supervision.accounts import Supervised
from gateway.supervision.silence import AccountHealth

log = structlog.get_logger()

LOOK_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class AlertSources:
    """Who is asked how things stand.

    Attributes:
        models: Returns all that may be asked, those that answer people, and how they stand.
        places: A folder of each disk that is written to.
        refused: Returns what `Upkeep.refused` is.
        backup: Returns what `Upkeep.backup_s` is; it reads files.
    """

    health: Health
    models: Callable[[], tuple[Sequence[ChatModel], Sequence[ChatModel], Rests]]
    budgets: Budgets
    refused: Callable[[], tuple[str, str] | None] = lambda: None
    places: Sequence[Path] = ()
    backup: Callable[[], float | None] = lambda: None


@dataclass(slots=True)
class LookMemory:
    """What one look leaves for the next one, in this process.

    Attributes:
        since: When a state began that still lasts, in monotonic seconds.
        outage: Why nothing could be stored, and for how long, until chats could be told of it.
        open: The alerts that were open when the database was last read.
        unseen: Places whose disks could not be seen.
    """

    clock: Clock = time.monotonic
    since: dict[str, float] = field(default_factory=dict)
    outage: tuple[str, float] | None = None
    open: frozenset[Key] = frozenset()
    unseen: frozenset[Path] = frozenset()

    def lasts(self, name: str, *, is_so: bool) -> float | None:
        """Return for how long something has been so, by the looks of this process."""
        if not is_so:
            self.since.pop(name, None)
            return None
        return self.clock() - self.since.setdefault(name, self.clock())


@dataclass(slots=True)
class AlertWatch:
    """Finds troubles, and has owners told of them.

    Args:
        wakeups: AlertsTold where there is something to be sent.
        webhook: The second way; None where there is none.
        renewed: Returns what tells by the settings as they are now; None where they are the same.
    """

    database: Database
    sources: AlertSources
    telling: Telling
    wakeups: Wakeups
    webhook: AlertWebhook | None = None
    memory: LookMemory = field(default_factory=LookMemory)
    renewed: Callable[[], Telling | None] = lambda: None

    async def run(self) -> NoReturn:
        """Look every few seconds, until cancelled; what a webhook is told keeps nobody waiting."""
        async with asyncio.TaskGroup() as tasks:
            if self.webhook is not None:
                tasks.create_task(self.webhook.run(), name="alerts' webhook")
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    await self.look()
                except Exception as exc:  # noqa: BLE001 - whatever it is, people go on being answered
                    tell_of_failed_look(exc)

    def renew(self) -> None:
        """Go by the settings as they are now."""
        if (telling := self.renewed()) is not None:
            self.telling = telling
            if self.webhook is not None:
                self.webhook.telling = telling

    async def look(self) -> AlertsTold:
        """Look once, and tell what has changed.

        Raises:
            StorageError: What was found could not be stored; the next look finds it again.
        """
        self.renew()
        facts, found = await self._facts()
        judgement = judged(facts)
        if found is None:
            if self.webhook is not None:
                new = {key: judgement.seen[key] for key in judgement.seen.keys() - self.memory.open}
                await self.webhook.tell_unstored(new)
            return AlertsTold()
        self.memory.open = frozenset(
            (each.kind, each.subject) for each in found if each.over_at is None
        )
        told = await self._tell(judgement) if judgement.seen or found else AlertsTold()
        # Only now: what could not be entered is found again by the next look.
        self.memory.outage = None
        if self.webhook is not None:
            self.webhook.unstored.clear()
        return told

    async def _tell(self, judgement: Judgement) -> AlertsTold:
        posted = frozenset(self.webhook.unstored) if self.webhook is not None else frozenset()
        told = await self.database.write(self.telling.apply, judgement, posted)
        for conversation_id in told.chats:
            self.wakeups.outbox(conversation_id)
        log_told(told)
        return told

    async def test(self) -> tuple[int, bool | None]:
        """Send a test each way: to how many chats, and whether the webhook took it.

        None for the webhook where there is none.

        Raises:
            StorageError: The rows cannot be stored.
        """
        key = f"{time.time():.0f}"
        chats = await self.database.write(self.telling.test, key)
        for conversation_id in chats:
            self.wakeups.outbox(conversation_id)
        return len(chats), None if self.webhook is None else await self.webhook.test()

    async def _facts(self) -> tuple[AlertFacts, list[Alert] | None]:
        """Return what there is to judge by, and `alerts.to_tell`; None where nothing is stored."""
        sources = self.sources
        accounts, stored, found, state = await self._stored()
        if (for_s := self.memory.lasts("database", is_so=state != "writable")) is not None:
            # It stands here until chats could be told of it.
            self.memory.outage = state, for_s
        models, line, rests = sources.models()
        labels, answering = (frozenset(each.label for each in some) for some in (models, line))
        # Where another replica makes the backups, what lies here says nothing.
        is_ours = stored is not None and stored.makes_backups
        backup_s = await asyncio.to_thread(sources.backup) if is_ours else None
        facts = AlertFacts(
            settings=self.telling.settings,
            adapters={
                each.name: (each, self._connecting_s(each)) for each in sources.health.adapters
            },
            accounts=accounts,
            models=Models(
                labels,
                dict(rests.failing),
                frozenset(rests.answered),
                frozenset(rests.accepted),
                answering,
            ),
            room=await self._room(),
            database=self.memory.outage,
            stored=stored,
            upkeep=Upkeep(backup_s, sources.refused()),
        )
        return facts, found

    async def _room(self) -> Mapping[Path, int | None]:
        room = await asyncio.to_thread(room_on, self.sources.places)
        unseen = frozenset(place for place, free in room.items() if free is None)
        for place in sorted(unseen - self.memory.unseen):
            log.warning("disk_not_seen", place=str(place))
        self.memory.unseen = unseen
        return room

    async def _stored(
        self,
    ) -> tuple[Mapping[tuple[str, str], AccountHealth], Stored | None, list[Alert] | None, str]:
        """Return what the database says, and whether it can be written."""
        sources = self.sources
        if (state := await sources.health.database_state()) != "writable":
            return {}, None, None, state
        try:
            accounts = await sources.health.watch.look()
            budgets = await sources.budgets.uses(LOW_SHARE)
            replica_id = sources.health.replica.id
            stored, found = await self.database.read(stored_facts, budgets, replica_id)
        except StorageError as exc:
            return {}, None, None, f"not readable: {exc}"
        return accounts, stored, found, state

    def _connecting_s(self, supervised: Supervised) -> float | None:
        is_working = supervised.connected or supervised.is_standby
        is_connecting = supervised.stopped is None and not is_working
        return self.memory.lasts(supervised.name, is_so=is_connecting)


def alert_routes(watch: AlertWatch | None) -> list[web.RouteDef]:
    """Return the control route of `parley alerts test`; for the Unix socket only."""

    async def test(_: web.Request) -> web.Response:
        if watch is None:
            return web.json_response({"error": "alerts.enabled is false"}, status=409)
        try:
            chats, is_posted = await watch.test()
        except StorageError as exc:
            return web.json_response({"error": str(exc)}, status=409)
        return web.json_response({"result": {"chats": chats, "webhook": is_posted}})

    return [web.post(f"/control/{TEST_ALERTS}", test)]


def room_on(places: Sequence[Path]) -> dict[Path, int | None]:
    """Return the free bytes of each place's disk; None where it cannot be seen. Blocks."""
    return {place: _free_on(place) for place in places}


def _free_on(place: Path) -> int | None:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        # Its disk was taken away, perhaps: who looks tells of it once.
        return None


def stored_facts(
    conn: Connection, budgets: Sequence[BudgetUse], replica_id: int
) -> tuple[Stored, list[Alert]]:
    """Read what the database says to this replica, and what may be told of alerts."""
    stored = Stored(
        unsent=health.unsent_by_account(conn, outbox.NOTICES),
        given_up=health.given_up(conn, DAY_S),
        strangers=health.waiting(conn, "strangers").count,
        budgets=budgets,
        makes_backups=health.oldest_replica(conn) == replica_id,
    )
    return stored, alerts.to_tell(conn, WITH_AN_END)


def judged(facts: AlertFacts) -> Judgement:
    """Return what is there, and what nobody can tell."""
    seen: dict[Key, Evidence] = {}
    unsure: set[Key] = set()
    for kind in TROUBLES.values():
        for each in kind.look(facts):
            key = kind.id, each.subject
            if isinstance(each, Unsure):
                unsure.add(key)
            else:
                seen[key] = each
    unknown = OF_DATABASE if facts.stored is None else frozenset()
    accounts = frozenset(facts.adapters) | {":".join(each) for each in facts.accounts}
    return Judgement(seen, frozenset(unsure), unknown, accounts)
