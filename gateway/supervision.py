"""Keeps adapters running: restart with back-off, stop on refused credentials, never drag others."""

import asyncio
import time
from dataclasses import dataclass

import structlog

from adapters.base import Adapter
from adapters.errors import AdapterDisconnected, AdapterRefused

log = structlog.get_logger()

LONGEST_PAUSE_S = 60.0
STABLE_S = 60.0
"""An adapter that ran this long begins its back-off anew."""


@dataclass(slots=True)
class Supervised:
    """An adapter under supervision.

    Attributes:
        stopped: Why it will not run again.
        trouble: Why its last run ended.
    """

    adapter: Adapter
    stopped: str | None = None
    trouble: str | None = None

    @property
    def name(self) -> str:
        """`platform:account`."""
        return f"{self.adapter.platform}:{self.adapter.account}"

    @property
    def state(self) -> str:
        """What /readyz shows: connected, connecting, or why it was stopped."""
        if self.stopped is not None:
            return f"stopped: {self.stopped}"
        return "connected" if self.adapter.connected else "connecting"

    @property
    def is_settled(self) -> bool:
        """Whether it is known how its first run went."""
        return self.adapter.connected or bool(self.stopped or self.trouble)

    async def run(self) -> None:
        """Run the adapter until cancelled or refused; its failures stay here."""
        failures = 0
        while self.stopped is None:
            started = time.monotonic()
            try:
                await self.adapter.run()
            except AdapterRefused as exc:
                self.stopped = str(exc)
                log.error("adapter_stopped", adapter=self.name, reason=str(exc))  # noqa: TRY400
                return
            except AdapterDisconnected as exc:
                self.trouble = str(exc)
                log.warning("adapter_disconnected", adapter=self.name, reason=str(exc))
            except Exception as exc:
                self.trouble = type(exc).__name__
                log.exception("adapter_failed", adapter=self.name)
            failures = 1 if time.monotonic() - started > STABLE_S else failures + 1
            await asyncio.sleep(min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S))
