"""The doctor inside of a running gateway, for its console: what is seen without asking anybody.

It looks when it is asked, and keeps what it saw. How MCP servers stand is told at once.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agent.tools.registry import ServerState
from gateway.console.register import Noticed
from gateway.doctor import checks, database, home, models, people, safety, settings, versions
from gateway.reload.reloading import AgentOrigin
from gateway.settings.loading import Loaded
from gateway.settings.tree import Settings
from gateway.storage.database import Database
from gateway.wiring import Configured


class RunningLooks:
    """Implements `gateway.console.register.Looks`.

    Args:
        origin: Where the settings come from, the models in use and the servers' tools.
        settings: Returns what the gateway goes by, where nobody reads settings again.
        health: Returns what the gateway says of itself.

    Attributes:
        last: What was seen at the last look; None before the first one.
        looked_at: When that was, in seconds since the epoch.
    """

    def __init__(
        self,
        origin: AgentOrigin,
        settings: Callable[[], Settings],
        database: Database,
        health: Callable[[], Awaitable[Mapping[str, Any]]],
    ) -> None:
        self.last: Sequence[Noticed] | None = None
        self.looked_at: float | None = None
        self._origin = origin
        self._settings = settings
        self._database = database
        self._health = health

    def servers(self) -> Sequence[ServerState]:
        """Return how each enabled MCP server stands now."""
        return self._origin.foreign.states()

    async def look(self) -> Sequence[Noticed]:
        """Make all checks that need no provider, beside the gateway's own work."""
        source = self._origin.source
        found = source.loaded if source else Loaded(self._settings(), {}, {})
        said = await self._health()
        self.last = await self._database.search(_looked, found, self._origin.line, said)
        self.looked_at = time.time()
        return self.last


def _looked(
    conn: Connection, found: Loaded, line: Sequence[Configured], said: Mapping[str, Any]
) -> list[Noticed]:
    # To be imported is to be registered.
    rooms = (settings, home, database, models, people, safety, versions)
    registered = {room.__name__.rpartition(".")[2] for room in rooms}
    examined = checks.Examined(found.settings.home, found, opened=conn, line=line, running=said)
    made = (checks.made(each, examined) for each in checks.in_order() if each.room in registered)
    return [
        Noticed(
            *(result.check.id, seen.level, seen.text, result.check.why),
            seen.remedy or result.check.remedy,
        )
        for result in made
        for seen in result.seen
    ]
