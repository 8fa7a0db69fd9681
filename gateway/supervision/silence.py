"""Notices when an account has fallen silent.

An account is silent when it has had something to send for `SILENT_AFTER_S` and sent nothing in
that time. What does not count:

- what waits because the platform asked for it, or because a budget is used up: the time begins
  anew when that wait is over;
- a chat that had failed for `SILENT_AFTER_S` when another chat of the account was sent something:
  the account works, that chat has a trouble of its own;
- the time before this process began.

Once silent, an account is so until it sends something, or until nothing of it waits any more. So
each silence is told twice, when it begins and when it is over, and never in between.
"""

import time
from collections.abc import Iterable, Mapping
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
"""How long a silence, and its end, can go unnoticed."""


@dataclass(slots=True)
class AccountTimes:
    """When things happened to one account, in monotonic seconds.

    Attributes:
        began: When this process began to look after it.
        sent: When the platform last took something; None before the first time.
        received: When something that came in was last stored; None before the first time.
        failing: Since when each conversation has failed whose newest attempt did.
        asked: Until when each conversation waits because somebody asked for it.
        error: Why the newest message was not taken; None since one was.
    """

    began: float
    sent: float | None = None
    received: float | None = None
    failing: dict[int, float] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    error: str | None = None

    def silent_since(self, waiting: Backlog, now: float) -> float:
        """Return since when nothing was sent although this conversation waits; `now` for no time.

        Its row's age comes from the database's clock, so it counts only as far as it is the
        shorter time.
        """
        failing = self.failing.get(waiting.conversation)
        if self.sent is not None and failing is not None and failing + SILENT_AFTER_S <= self.sent:
            return now
        begins = self.began if self.sent is None else self.sent
        asked = self.asked.get(waiting.conversation, begins)
        return min(max(begins, asked, now - waiting.age_s), now)

    def forget_all_but(self, conversations: Iterable[int]) -> None:
        """Forget failures, except those of conversations with unsent rows."""
        # Else what failed once would stay in memory for as long as the process lives.
        kept = set(conversations)
        self.failing = {each: at for each, at in self.failing.items() if each in kept}
        self.asked = {each: at for each, at in self.asked.items() if each in kept}


class Traffic:
    """Notes what accounts send and receive, in memory: it costs the path no statement.

    Args:
        clock: Monotonic seconds; `began` is when it was asked first.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self._accounts: dict[Account, AccountTimes] = {}

    def of(self, account: Account) -> AccountTimes:
        """Return what is known of an account."""
        times = self._accounts.get(account)
        if times is None:
            times = self._accounts[account] = AccountTimes(self.began)
        return times

    def sent(self, account: Account, conversation: int) -> None:
        """Note that the platform took a message."""
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
        """Note that a message was not taken.

        Args:
            asked_s: In how many seconds it may be tried again; None where nobody asked to wait.
        """
        times, now = self.of(account), self.clock()
        times.error = error
        if asked_s is None:
            times.failing.setdefault(conversation, now)
        else:
            times.asked[conversation] = now + asked_s


@dataclass(frozen=True, slots=True)
class AccountHealth:
    """How an account stands; times in seconds, None for what is not or was never.

    Attributes:
        waiting: Rows of the outbox that are still to be shown.
        oldest_unsent_s: Age of the oldest of them.
        last_sent_s: How long ago the platform last took something from this process.
        last_received_s: How long ago this process last stored something from the platform.
        silent_s: For how long it has been silent.
        pool: How its connections are used (`PoolUse`); None where it has none.
        last_error: Why the newest message was not taken; None since one was.
    """

    waiting: int
    oldest_unsent_s: float | None
    last_sent_s: float | None
    last_received_s: float | None
    silent_s: float | None
    pool: Mapping[str, int | None] | None
    last_error: str | None = None


class Watch:
    """Looks, now and then, whether an account has fallen silent.

    Args:
        replica: Of several, each looks at what it has to send itself.
    """

    def __init__(
        self,
        database: Database,
        adapters: Mapping[Account, Adapter],
        traffic: Traffic,
        replica: Replica,
    ) -> None:
        self.traffic = traffic
        self.replica = replica
        self.database = database
        self._adapters = adapters
        self._silent: dict[Account, float] = {}

    @property
    def silent_s(self) -> dict[Account, float]:
        """For how long each account is silent, as the last look has found it; 0 for who is not."""
        now = self.traffic.clock()
        return {each: now - self._silent.get(each, now) for each in self._adapters}

    async def look(self) -> dict[Account, AccountHealth]:
        """Return how all accounts stand, and tell what has changed; one statement.

        Raises:
            StorageUnavailable: The outbox cannot be read.
        """
        waiting: dict[Account, list[Backlog]] = {account: [] for account in self._adapters}
        for each in await self.database.read(sending.waiting, self.replica.shared_id):
            # Rows of accounts that are switched off wait, too, and nobody is to be told.
            if (account := (each.platform, each.account)) in waiting:
                waiting[account].append(each)
        return {account: self._judge(account, rows) for account, rows in waiting.items()}

    def _judge(self, account: Account, waiting: list[Backlog]) -> AccountHealth:
        """Return how an account stands; tell of it where that has changed."""
        times, now = self.traffic.of(account), self.traffic.clock()
        times.forget_all_but(each.conversation for each in waiting)
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
            pool=None if (pool := self._adapters[account].pool) is None else pool.figures(),
            last_error=times.error,
        )
        self._note(account, before, since, health.waiting)
        return health

    def _note(
        self, account: Account, before: float | None, since: float | None, waiting: int
    ) -> None:
        """Remember a change, and write the one line that it gets."""
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
            # What waited may also have been given up: then it is over now, and not at a message
            # that was taken.
            over = self.traffic.clock() if sent is None or sent <= before else sent
            log.warning(
                "account_recovered",
                platform=platform,
                account=name,
                silent_s=round(over - before, 1),
                waiting=waiting,
            )
