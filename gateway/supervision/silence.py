"""Detects accounts that have fallen silent.

An account is silent when it had something to send for `SILENT_AFTER_S` and sent nothing in that
time. Not counted:

- waits that the platform asked for, or for a used-up budget: the time starts over after them;
- a chat that has failed for `SILENT_AFTER_S` while another chat of the account was served: only
  that chat has a problem;
- the time before this process began.

A silence lasts until the account sends something or has nothing left to send; its start and end are
each logged once.
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
"""Interval of checks, in seconds."""


@dataclass(slots=True)
class AccountTimes:
    """Event times of one account, in monotonic seconds.

    Attributes:
        sent: When the platform last accepted a message; None before the first.
        received: When an update was last stored; None before the first.
        failing: Start of consecutive failures, by conversation.
        asked: End of a wait requested by the platform, by conversation.
        error: Why the newest message was refused; None if it was accepted.
    """

    began: float
    sent: float | None = None
    received: float | None = None
    failing: dict[int, float] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    error: str | None = None

    def silent_since(self, waiting: Backlog, now: float) -> float:
        """Return when the silence began for this waiting conversation; `now` if there is none.

        The row's age comes from the database's clock, so it counts only if it is shorter.
        """
        failing = self.failing.get(waiting.conversation)
        if self.sent is not None and failing is not None and failing + SILENT_AFTER_S <= self.sent:
            return now
        begins = self.began if self.sent is None else self.sent
        asked = self.asked.get(waiting.conversation, begins)
        return min(max(begins, asked, now - waiting.age_s), now)


class Traffic:
    """Records in memory when accounts send and receive."""

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
        """Record that the platform accepted a message."""
        times = self.of(account)
        times.sent, times.error = self.clock(), None
        times.failing.pop(conversation, None)
        times.asked.pop(conversation, None)

    def received(self, account: Account) -> None:
        """Record that an incoming message was stored."""
        self.of(account).received = self.clock()

    def failed(
        self, account: Account, conversation: int, error: str, asked_s: float | None = None
    ) -> None:
        """Record a refused message; `asked_s` is the wait requested by the platform."""
        times, now = self.of(account), self.clock()
        times.error = error
        if asked_s is None:
            times.failing.setdefault(conversation, now)
        else:
            times.asked[conversation] = now + asked_s


@dataclass(frozen=True, slots=True)
class AccountHealth:
    """State of an account; times in seconds, None for never.

    Attributes:
        waiting: Unsent rows of the outbox.
        oldest_unsent_s: Age of the oldest unsent row.
        last_sent_s: Time since the platform last accepted a message from this process.
        last_received_s: Time since this process last stored an update from the platform.
        pool: Use of its connections (`PoolUse`); None without a pool.
        last_error: Why the newest message was refused; None if it was accepted.
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
    """Checks for silent accounts; each replica checks its own."""

    database: Database
    adapters: Mapping[Account, Adapter]
    traffic: Traffic
    replica: Replica
    _silent: dict[Account, float] = field(default_factory=dict)

    @property
    def silent_s(self) -> dict[Account, float]:
        """Duration of each account's silence at the last check; 0 if not silent."""
        now = self.traffic.clock()
        return {each: now - self._silent.get(each, now) for each in self.adapters}

    async def look(self) -> dict[Account, AccountHealth]:
        """Return the state of all accounts and log changes; one statement.

        Raises:
            StorageUnavailable: The outbox cannot be read.
        """
        waiting: dict[Account, list[Backlog]] = {account: [] for account in self.adapters}
        for each in await self.database.read(sending.waiting, self.replica.shared_id):
            # Waiting rows of inactive accounts are not reported.
            if (account := (each.platform, each.account)) in waiting:
                waiting[account].append(each)
        return {account: self._judge(account, rows) for account, rows in waiting.items()}

    def _judge(self, account: Account, waiting: list[Backlog]) -> AccountHealth:
        """Return the state of an account; log a change."""
        times, now = self.traffic.of(account), self.traffic.clock()
        # Drop settled conversations, which would stay in memory forever.
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
            # If the waiting rows were given up, the silence ends now.
            over = self.traffic.clock() if sent is None or sent <= before else sent
            log.warning(
                "account_recovered",
                platform=platform,
                account=name,
                silent_s=round(over - before, 1),
                waiting=waiting,
            )
