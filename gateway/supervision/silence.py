"""Detects accounts that have fallen silent.

An account is silent when it has had something to send for `SILENT_AFTER_S` and sent nothing in
that time. What does not count:

- waits that the platform asked for, or for a used-up budget: the time starts over after them;
- a chat that had failed for `SILENT_AFTER_S` when another chat of the account was sent something:
  the account works, that chat has a trouble of its own;
- the time before this process began.

A silence lasts until the account sends something, or nothing of it waits any more; its beginning
and its end are logged, once each.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from adapters.base import Adapter, Clock
from gateway.replicas.replica import Replica
from gateway.storage.database import Database
from gateway.storage.queue import sending
from gateway.storage.queue.sending import Backlog

log = structlog.get_logger()

Account = tuple[str, str]
"""Platform and account."""

SILENT_AFTER_S = 60.0
LOOK_EVERY_S = 5.0
"""A silence, and its end, can go unnoticed for this long."""


@dataclass(slots=True)
class AccountTimes:
    """When things happened to one account, in monotonic seconds.

    Attributes:
        sent: When the platform last accepted something; None before the first time.
        received: When something that came in was last stored; None before the first time.
        failing: By conversation whose newest attempt failed: since when.
        asked: By conversation that was asked to wait: until when.
        error: Why the newest message was not accepted; None if it was.
    """

    began: float
    sent: float | None = None
    received: float | None = None
    failing: dict[int, float] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    error: str | None = None

    def silent_since(self, waiting: Backlog, now: float) -> float:
        """Return since when nothing was sent although this conversation waits; `now` for no time.

        Its row's age comes from the database's clock: it counts only if it is the shorter time.
        """
        failing = self.failing.get(waiting.conversation)
        if self.sent is not None and failing is not None and failing + SILENT_AFTER_S <= self.sent:
            return now
        begins = self.began if self.sent is None else self.sent
        asked = self.asked.get(waiting.conversation, begins)
        return min(max(begins, asked, now - waiting.age_s), now)


class Traffic:
    """Notes what accounts send and receive, in memory: it costs the path no statement."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self._accounts: dict[Account, AccountTimes] = {}

    def of(self, account: Account) -> AccountTimes:
        """Return the times of an account."""
        times = self._accounts.get(account)
        if times is None:
            times = self._accounts[account] = AccountTimes(self.began)
        return times

    def sent(self, account: Account, conversation: int) -> None:
        """Note that the platform accepted a message."""
        times = self.of(account)
        times.sent, times.error = self.clock(), None
        times.failing.pop(conversation, None)
        times.asked.pop(conversation, None)

    def received(self, account: Account) -> None:
        """Note that a message came in and is stored."""
        self.of(account).received = self.clock()

    def failed(
        self, account: Account, conversation: int, error: str, asked_s: float | None = None
    ) -> None:
        """Note that a message was not accepted; `asked_s`: how long the platform asked to wait."""
        times, now = self.of(account), self.clock()
        times.error = error
        if asked_s is None:
            times.failing.setdefault(conversation, now)
        else:
            times.asked[conversation] = now + asked_s


@dataclass(frozen=True, slots=True)
class AccountHealth:
    """State of an account; times in seconds, None for what never happened.

    Attributes:
        waiting: Unsent rows of the outbox.
        oldest_unsent_s: Age of the oldest of them.
        last_sent_s: How long ago the platform last accepted something from this process.
        last_received_s: How long ago this process last stored something from the platform.
        pool: Use of its connections (`PoolUse`); None if it has no pool.
        last_error: Why the newest message was not accepted; None if it was.
    """

    waiting: int
    oldest_unsent_s: float | None
    last_sent_s: float | None
    last_received_s: float | None
    silent_s: float | None
    pool: Mapping[str, int | None] | None
    last_error: str | None = None


@dataclass(slots=True)
class Watch:
    """Checks whether accounts have fallen silent; each replica checks what it sends itself."""

    database: Database
    adapters: Mapping[Account, Adapter]
    traffic: Traffic
    replica: Replica
    _silent: dict[Account, float] = field(default_factory=dict)

    @property
    def silent_s(self) -> dict[Account, float]:
        """For how long each account has been silent at the last check; 0 if it is not."""
        now = self.traffic.clock()
        return {each: now - self._silent.get(each, now) for each in self.adapters}

    async def look(self) -> dict[Account, AccountHealth]:
        """Return the state of all accounts, and log what has changed; one statement.

        Raises:
            StorageUnavailable: The outbox cannot be read.
        """
        waiting: dict[Account, list[Backlog]] = {account: [] for account in self.adapters}
        for each in await self.database.read(sending.waiting, self.replica.shared_id):
            # Rows of accounts that are switched off wait, too; they are not reported.
            if (account := (each.platform, each.account)) in waiting:
                waiting[account].append(each)
        return {account: self._judge(account, rows) for account, rows in waiting.items()}

    def _judge(self, account: Account, waiting: list[Backlog]) -> AccountHealth:
        """Return the state of an account; log it if it has changed."""
        times, now = self.traffic.of(account), self.traffic.clock()
        # Else what failed once would stay in memory as long as the process lives.
        unsent = {each.conversation for each in waiting}
        times.failing = {each: at for each, at in times.failing.items() if each in unsent}
        times.asked = {each: at for each, at in times.asked.items() if each in unsent}
        before = self._silent.get(account)
        since = before
        if before is None:
            first = min((times.silent_since(each, now) for each in waiting), default=now)
            since = first if now - first >= SILENT_AFTER_S else None
        elif not waiting or (times.sent is not None and times.sent > before):
            since = None
        health = AccountHealth(
            waiting=sum(each.rows for each in waiting),
            oldest_unsent_s=max((each.age_s for each in waiting), default=None),
            last_sent_s=None if times.sent is None else now - times.sent,
            last_received_s=None if times.received is None else now - times.received,
            silent_s=None if since is None else now - since,
            pool=None if (pool := self.adapters[account].pool) is None else pool.figures(),
            last_error=times.error,
        )
        self._note(account, before, since, health.waiting)
        return health

    def _note(
        self, account: Account, before: float | None, since: float | None, waiting: int
    ) -> None:
        platform, name = account
        if before is None and since is not None:
            self._silent[account] = since
            log.error(
                "account_silent",
                platform=platform,
                account=name,
                silent_s=round(self.traffic.clock() - since, 1),
                waiting=waiting,
            )
        elif before is not None and since is None:
            del self._silent[account]
            sent = self.traffic.of(account).sent
            # If what waited was given up, it is over now, not when a message was accepted.
            over = self.traffic.clock() if sent is None or sent <= before else sent
            log.warning(
                "account_recovered",
                platform=platform,
                account=name,
                silent_s=round(over - before, 1),
                waiting=waiting,
            )
