"""Gathers the state of a running gateway on demand, for `/readyz` and findings."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adapters.base import Clock
from agent.models.recovery import Failing
from agent.processes.descriptors import is_scarce
from agent.tools.registry import ServerState
from gateway.agent_ports.budgets import Budgets, BudgetUse
from gateway.errors import StorageError
from gateway.storage.database import Database
from gateway.storage.queue import leases
from gateway.storage.reports import health
from gateway.supervision.accounts import Supervised
from gateway.supervision.silence import Account, AccountHealth, Watch

WRITE_TIMEOUT_S = 2.0
LOW_SHARE = 0.8
"""Share of a used budget that is reported."""
DATABASE = "the database"


@dataclass(frozen=True, slots=True)
class Models:
    """State of this process's models, by label.

    Attributes:
        answered: Models whose newest call succeeded.
        accepted: Models whose key was accepted last.
        line: The configured models that answer people.
    """

    configured: frozenset[str] = frozenset()
    failing: Mapping[str, Failing] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    accepted: frozenset[str] = frozenset()
    line: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """The state of a running gateway at one moment.

    Attributes:
        database: "writable", or the reason why not.
        adapters: States as text, by `Supervised.name`.
        lasting_s: Duration of lost connections of adapters and the database.
        accounts: Health of the accounts; empty while the database is unavailable.
        servers: Why each MCP server is not connected; "" if connected.
        budgets: Budgets used to `LOW_SHARE` or more.
        refused: The settings file refused by a reload, with its first mistake.
        makes_backups: Whether this replica makes the backups; the oldest one does.
        began_s: Uptime of this process.
    """

    database: str = "writable"
    is_scarce: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)
    lasting_s: Mapping[str, float] = field(default_factory=dict)
    accounts: Mapping[Account, AccountHealth] = field(default_factory=dict)
    servers: Mapping[str, str] = field(default_factory=dict)
    models: Models = Models()
    budgets: Sequence[BudgetUse] = ()
    refused: tuple[str, str] | None = None
    makes_backups: bool = True
    began_s: float = 0.0


@dataclass(slots=True)
class Vitals:
    """Gathers the state of a running gateway.

    Args:
        refused: See `LiveFacts.refused`.
    """

    adapters: Sequence[Supervised]
    watch: Watch
    budgets: Budgets
    servers: Callable[[], Sequence[ServerState]]
    models: Callable[[], Models]
    refused: Callable[[], tuple[str, str] | None]
    clock: Clock = time.monotonic
    _since: dict[str, float] = field(default_factory=dict)

    @property
    def database(self) -> Database:
        """The gateway's database."""
        return self.watch.database

    async def live(self, *, whole: bool = True) -> LiveFacts:
        """Gather the state; each call makes a commit.

        Args:
            whole: False for `/readyz`, which may be called every second: omit facts that only
                alerts and reports need.
        """
        state = await self.database_state()
        accounts: Mapping[Account, AccountHealth] = {}
        budgets: Sequence[BudgetUse] = ()
        is_oldest = False
        if state == "writable":
            try:
                accounts = await self.watch.look()
                if whole:
                    budgets = await self.budgets.uses(LOW_SHARE)
                    oldest = await self.database.read(health.oldest_replica)
                    is_oldest = oldest == self.watch.replica.id
            except StorageError as exc:
                state, accounts = f"not readable: {exc}", {}
        adapters = {each.name: each.state for each in self.adapters}
        traffic = self.watch.traffic
        # A refused adapter is not about to connect.
        away = {name: said.startswith("connecting") for name, said in adapters.items()}
        away[DATABASE] = state != "writable"
        return LiveFacts(
            database=state,
            is_scarce=is_scarce(),
            adapters=adapters,
            lasting_s={name: self._lasts(name, is_so=is_so) for name, is_so in away.items()},
            accounts=accounts,
            servers={each.name: each.problem or "" for each in self.servers()},
            models=self.models(),
            budgets=budgets,
            refused=self.refused(),
            makes_backups=is_oldest,
            began_s=traffic.clock() - traffic.began,
        )

    async def database_state(self) -> str:
        """Try a commit; return "writable" or the reason why not."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self.database.write(leases.heartbeat, self.watch.replica.id)
        except TimeoutError:
            return f"no commit within {WRITE_TIMEOUT_S:g} s"
        except StorageError as exc:
            return f"not writable: {exc}"
        return "writable"

    def _lasts(self, name: str, *, is_so: bool) -> float:
        """Return the duration of a state, by this process's checks."""
        if not is_so:
            self._since.pop(name, None)
            return 0.0
        return self.clock() - self._since.setdefault(name, self.clock())
