"""The state of a running gateway, gathered on demand for `/readyz` and findings."""

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
"""A budget used to this share is reported."""
DATABASE = "the database"


@dataclass(frozen=True, slots=True)
class Models:
    """State of the models of this process, by their labels.

    Attributes:
        answered: Their newest call was answered.
        accepted: Their key was accepted last.
        line: The configured ones that answer people.
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
        database: "writable", or why it is not.
        adapters: Their states in words, by `Supervised.name`.
        lasting_s: How long adapters have been without a connection, and the database away.
        accounts: Empty while the database is away.
        servers: Why each MCP server is not connected; "" if it is.
        budgets: Those used to `LOW_SHARE` or more.
        refused: The settings file that a reload refused, and its first mistake.
        makes_backups: Whether this replica does: the one of all that has run for longest.
        began_s: For how long this process has run.
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
        """Gather it; each call is a commit.

        Args:
            whole: False for `/readyz`, which may be asked every second: omit what only alerts and
                reports read from the database.
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
        # A refused one is not about to connect.
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
        """Return "writable", or why the database is not; try a commit."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self.database.write(leases.heartbeat, self.watch.replica.id)
        except TimeoutError:
            return f"no commit within {WRITE_TIMEOUT_S:g} s"
        except StorageError as exc:
            return f"not writable: {exc}"
        return "writable"

    def _lasts(self, name: str, *, is_so: bool) -> float:
        """Return how long a state has lasted, by the checks of this process."""
        if not is_so:
            self._since.pop(name, None)
            return 0.0
        return self.clock() - self._since.setdefault(name, self.clock())
