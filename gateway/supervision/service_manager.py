"""Notifies systemd (sd_notify): ready, stopping, reloading, and its watchdog.

Only progress feeds the watchdog: the event loop runs, the database answers, the worker passes
through its loop. A database error counts as an answer, since a restart would not fix it; a hanging
database does not. Without NOTIFY_SOCKET nothing here runs. Source: sd_notify(3).
"""

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.errors import StorageError
from gateway.logging.recent import TAPS, End
from gateway.replicas.replica import Replica
from gateway.storage.database import Database
from gateway.storage.queue import leases

log = structlog.get_logger()

STATUS_EVERY_S = 30.0
"""Interval of status messages without a watchdog, in seconds."""
FEEDS = 4
"""Checks per watchdog period; one check may take as long as the pause between two."""
_TOLD = {
    "gateway_ready": "READY=1\nSTATUS=receiving and answering",
    "gateway_stopping": "STOPPING=1\nSTATUS=finishing what has begun",
    "settings_reloaded": "READY=1",
    "settings_refused": "READY=1",
    "reload_failed": "READY=1",
}
"""Messages to systemd by log event."""


def service_manager(environ: MutableMapping[str, str] | None = None) -> "ServiceManager | None":
    """Return the manager named by the environment, and remove it for child processes.

    Source of the variables: sd_notify(3), sd_watchdog_enabled(3).
    """
    environ = os.environ if environ is None else environ
    names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    address, every, process = (environ.pop(name, "") for name in names)
    if not address.startswith(("/", "@")):
        return None
    is_ours = process in {"", str(os.getpid())}
    watched = is_ours and every.isascii() and every.isdigit() and int(every) > 0
    return ServiceManager(address, int(every) / 1e6 if watched else None)


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The program that runs Parley as a service.

    Attributes:
        socket: NOTIFY_SOCKET; "@" starts an abstract name.
        watchdog_s: Seconds without a message after which it restarts Parley; None for never.
    """

    socket: str
    watchdog_s: float | None = None

    def tell(self, text: str) -> None:
        """Send a message without waiting, or drop it."""
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        # Without a free descriptor, too: the watchdog then expires.
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
            sender.settimeout(0.0)
            sender.sendto(text.encode(), re.sub("^@", "\0", self.socket))

    def hear(self, event: Mapping[str, Any]) -> None:
        """Send the message for a log event."""
        name = str(event["event"])
        if name == "reload_begun":
            self.tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        else:
            self.tell(_TOLD[name])


@dataclass(slots=True)
class Pulse:
    """Feeds the watchdog while there is progress.

    Attributes:
        worker_still_s: Returns the seconds since the worker's last pass.
    """

    manager: ServiceManager
    database: Database
    replica: Replica
    worker_still_s: Callable[[], float]
    stalled: str = ""
    _end: End = field(init=False)

    def __post_init__(self) -> None:
        # Forward log events to the manager from here on.
        self._end = TAPS.listen([*_TOLD, "reload_begun"], self.manager.hear)

    async def run(self) -> None:
        """Check for progress and feed the watchdog until cancelled."""
        watchdog_s = self.manager.watchdog_s
        every_s = STATUS_EVERY_S if watchdog_s is None else watchdog_s / FEEDS
        try:
            while True:
                self._note(await self.look(every_s))
                await asyncio.sleep(every_s)
        finally:
            self._end()

    async def look(self, within_s: float) -> str:
        """Return the name of the stalled part; empty if none is."""
        try:
            async with asyncio.timeout(within_s):
                # An error is an answer; `/readyz` reports it.
                with suppress(StorageError):
                    await self.database.write(leases.heartbeat, self.replica.id)
        except TimeoutError:
            return "the database does not answer"
        except Exception:
            # One failure skips one feed of several; a lasting one lets the watchdog end the
            # process.
            log.exception("progress_look_broke")
            return "whether the database answers cannot be looked up"
        if self.worker_still_s() > within_s * 2:
            return "the worker stands still"
        return ""

    def _note(self, stalled: str) -> None:
        if stalled != self.stalled:
            self.stalled = stalled
            if stalled:
                log.error("progress_stalled", reason=stalled)
            else:
                log.warning("progress_resumed")
            self.manager.tell(f"STATUS={stalled or 'receiving and answering'}")
        if not stalled and self.manager.watchdog_s is not None:
            self.manager.tell("WATCHDOG=1")
