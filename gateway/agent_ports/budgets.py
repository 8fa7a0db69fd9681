"""Daily budgets, checked before every model call.

The ledger stores spent amounts. This process holds the minimum cost of calls in flight; other
replicas see it once it is booked (docs/costs.md, Budgets).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, tzinfo
from functools import partial
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import structlog

from agent.errors import SpendLimitReached
from agent.models.base import ChatModel
from gateway.errors import SettingsError
from gateway.settings.tree import BudgetSettings
from gateway.storage.database import Database
from gateway.storage.reports import spending

log = structlog.get_logger()

Release = Callable[[], None]
"""Releases a held amount."""

Scope = Literal["all", "sender"]

LEAST_USD = 1e-6
"""Least spending of a sender to be named as top spender."""
ROUNDING_USD = 1e-9
"""Upper bound of rounding errors in float sums."""


class Day(NamedTuple):
    """A calendar day in a time zone, from `start` (inclusive) to `end` (exclusive), both aware."""

    start: datetime
    end: datetime


def day_of(day: date, zone: tzinfo) -> Day:
    """Return the start and end of a day, which may not be 24 hours long."""
    tomorrow = day + timedelta(days=1)
    return Day(datetime.combine(day, time.min, zone), datetime.combine(tomorrow, time.min, zone))


def today(zone: tzinfo) -> Day:
    """Return the current day."""
    return day_of(datetime.now(zone).date(), zone)


def refuse_unpriced(settings: BudgetSettings, models: Sequence[ChatModel]) -> None:
    """Check that every budget can be enforced.

    Raises:
        SettingsError: A budget is set but a model's price is unknown; one line per model.
    """
    limits = settings.model_dump(include={"daily_usd", "sender_daily_usd"})
    wanted = [f"budget.{name}" for name, usd in limits.items() if usd is not None]
    if not wanted:
        return
    budget = " and ".join(wanted) + (" is set" if len(wanted) == 1 else " are set")
    names = dict.fromkeys(model.name for model in models if model.facts.prices is None)
    remedy = "set input_usd and output_usd in the `facts` of its block, such as model.facts"
    problems = [
        f"{budget}, but the price of {name} is not known: {remedy} (0 for a free model)"
        for name in names
    ]
    if problems:
        raise SettingsError("\n".join(problems))


class Limit(NamedTuple):
    """A budget; `sender` is None for the shared one."""

    scope: Scope
    usd: float
    sender: str | None


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The used part of a budget today.

    Attributes:
        refuses: Whether nothing is left or a call was refused.
        top: For a shared budget: the top spender with the amount, or None.
    """

    limit: Limit
    used_usd: float
    until: datetime
    refuses: bool
    top: tuple[str, float] | None = None

    @property
    def share(self) -> float:
        """The spent share, 1 for all of it."""
        return self.used_usd / self.limit.usd if self.limit.usd else 1.0


class Budgets:
    """The budgets of all senders, as known to this replica."""

    def __init__(self, database: Database, settings: BudgetSettings, timezone: str) -> None:
        self.database = database
        self._settings = settings
        self._zone = ZoneInfo(timezone)
        # Sender and minimum cost of each call in flight.
        self._holds: dict[object, tuple[str, float]] = {}
        self._releases = 0
        self._told: set[tuple[datetime, Limit]] = set()

    def take(self, settings: BudgetSettings, timezone: str) -> None:
        """Change the budgets for later calls."""
        self._settings, self._zone = settings, ZoneInfo(timezone)
        # A changed limit may not be exhausted.
        usd = {"all": settings.daily_usd, "sender": settings.sender_daily_usd}
        self._told = {(day, limit) for day, limit in self._told if limit.usd == usd[limit.scope]}

    def for_sender(self, sender: str) -> "TurnSpending":
        """Return the budgets for a turn of a sender ("platform:id")."""
        return TurnSpending(self, sender)

    async def exhausted(self, sender: str) -> bool:
        """Whether a sender's budget is exhausted; background work then does not start."""
        limits = list(self._limits(sender))
        if not limits:
            return False
        used = await self._used(today(self._zone), limits)
        return any(spent >= limit.usd - ROUNDING_USD for limit, spent in used)

    async def uses(self, least_share: float) -> list[BudgetUse]:
        """Return the budgets that are used to at least this share or that refuse calls.

        Omit a budget of 0, which refuses on purpose.
        """
        day = today(self._zone)
        since, each_usd = day.start.timestamp(), self._settings.sender_daily_usd
        told = {limit for began, limit in self._told if began == day.start}
        senders = await self.database.read(spending.usd_by_sender, since)
        limits = []
        if each_usd:
            least = each_usd * least_share
            spenders = [sender for sender, usd in senders.items() if usd >= least]
            limits += [Limit("sender", each_usd, sender) for sender in spenders]
        if self._settings.daily_usd:
            limits.append(Limit("all", self._settings.daily_usd, None))
        limits = list(dict.fromkeys([*limits, *(limit for limit in told if limit.usd)]))
        used = await self._used(day, limits)
        found = [
            BudgetUse(limit, usd, day.end, limit in told or usd >= limit.usd - ROUNDING_USD)
            for limit, usd in used
        ]
        found = [each for each in found if each.refuses or each.share >= least_share]
        top = next(((name, usd) for name, usd in senders.items() if usd >= LEAST_USD), None)
        return [each if each.limit.sender else replace(each, top=top) for each in found]

    async def hold(self, sender: str, forecast_usd: float | None) -> Release:
        """Hold the minimum cost of a call until the returned function is called.

        A call of unknown cost is allowed while something is left; a free call always.

        Raises:
            SpendLimitReached: A budget does not allow the call.
            StorageUnavailable: The ledger cannot be read.
        """
        if forecast_usd != 0:
            await self._check(sender, forecast_usd)
        # No await since the sums were read.
        call = object()
        self._holds[call] = sender, forecast_usd or 0.0
        return partial(self._release, call)

    def _release(self, call: object) -> None:
        del self._holds[call]
        self._releases += 1

    async def _check(self, sender: str, forecast_usd: float | None) -> None:
        limits = list(self._limits(sender))
        if not limits:
            return
        day = today(self._zone)
        for limit, used in await self._used(day, limits):
            left = limit.usd - used
            if left <= ROUNDING_USD or (forecast_usd or 0.0) > left + ROUNDING_USD:
                self._tell(limit, day, used)
                raise SpendLimitReached(limit.scope, limit.usd, day.end)

    def _limits(self, sender: str) -> Iterator[Limit]:
        """Yield the budgets; the sender's own first, since its notice says more."""
        if self._settings.sender_daily_usd is not None:
            yield Limit("sender", self._settings.sender_daily_usd, sender)
        if self._settings.daily_usd is not None:
            yield Limit("all", self._settings.daily_usd, None)

    async def _used(self, day: Day, limits: Sequence[Limit]) -> list[tuple[Limit, float]]:
        """Return the spent and held amount of each budget."""
        start = day.start.timestamp()
        while True:
            releases = self._releases
            spent = [
                await self.database.read(spending.spent_usd, start, limit.sender)
                for limit in limits
            ]
            # A call that ended meanwhile may be missing in both sums: read again.
            if releases == self._releases:
                break
        return [
            (limit, usd + self._held(limit.sender))
            for limit, usd in zip(limits, spent, strict=True)
        ]

    def _held(self, sender: str | None) -> float:
        return sum(usd for whose, usd in self._holds.values() if sender in {None, whose})

    def _tell(self, limit: Limit, day: Day, used_usd: float) -> None:
        """Log an exhausted budget once a day."""
        if (day.start, limit) in self._told:
            return
        # Drop earlier days, so that the set does not grow.
        self._told = {told for told in self._told if told[0] == day.start}
        self._told.add((day.start, limit))
        log.warning(
            "spend_limit_reached",
            scope=limit.scope,
            sender=limit.sender,
            limit_usd=limit.usd,
            used_usd=round(used_usd, 6),
            until=day.end.isoformat(),
        )


class TurnSpending:
    """`agent.ports.Spending` of one turn; close it when the last call is booked."""

    def __init__(self, budgets: Budgets, sender: str) -> None:
        self._budgets = budgets
        self._sender = sender
        self._release: Release | None = None

    @asynccontextmanager
    async def call(self, forecast_usd: float | None) -> AsyncIterator[None]:
        """Hold a call's minimum cost until it is booked: at the turn's next call or its end."""
        self.close()
        self._release = await self._budgets.hold(self._sender, forecast_usd)
        try:
            yield
        except BaseException:
            # A failed call is booked separately.
            self.close()
            raise

    async def exhausted(self) -> bool:
        """Whether a budget is exhausted."""
        return await self._budgets.exhausted(self._sender)

    def close(self) -> None:
        """Release the held cost of the last call."""
        if self._release is not None:
            self._release()
            self._release = None
