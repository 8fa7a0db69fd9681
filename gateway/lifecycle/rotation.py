"""Secrets that were replaced while the gateway runs: read again on SIGHUP, or when asked to.

Only what the settings refer to can change (gateway/settings/references.py). Models take their new
keys with the next call. Platforms, MCP servers and plugins were given theirs at the start: for them
the log says that a restart is needed.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from agent.errors import CredentialsRefused, SecretUnreadable
from agent.models.base import ChatModel, Renewable
from agent.turn.recovery import Rests
from gateway.settings.references import references_in, told
from gateway.settings.tree import Settings, dotted

log = structlog.get_logger()

_OF_MODELS = frozenset({"model", "fallbacks", "auxiliary"})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of the secrets, by the settings that refer to them.

    Attributes:
        renewed: Those with another value, which is used from now on.
        restart: Those with another value that is used after a restart.
        unreadable: Those that cannot be read, and why; the value before goes on.
    """

    renewed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rotation:
    """Reads the secrets of a running gateway again.

    Attributes:
        settings: Whose secrets.
        models: That may take other keys.
        rests: Which of them rest: one with another key need not.
    """

    settings: Settings
    models: Sequence[ChatModel]
    rests: Rests
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reload(self) -> Reloaded:
        """Read every secret that is referred to; has models use what is new."""
        async with self._one:
            done = await asyncio.to_thread(self._read)
        log.log(
            logging.WARNING if done.restart or done.unreadable else logging.INFO,
            "secrets_reloaded",
            renewed=list(done.renewed),
            restart_needed=list(done.restart),
            unreadable=list(done.unreadable),
        )
        return done

    def _read(self) -> Reloaded:
        renewed: list[str] = []
        restart: list[str] = []
        unreadable: list[str] = []
        for path, secret in references_in(self.settings):
            try:
                if secret.read_again():
                    (renewed if path[0] in _OF_MODELS else restart).append(dotted(path))
            except SecretUnreadable as exc:
                unreadable.append(f"{dotted(path)}: {told(secret.reference)} {exc}")
        for model in self.models:
            try:
                if isinstance(model, Renewable) and model.take_key():
                    self.rests.clear(model)
            except CredentialsRefused as exc:
                unreadable.append(f"{model.label}: {exc}")
        return Reloaded(tuple(renewed), tuple(restart), tuple(unreadable))

    async def on_hang_up(self) -> None:
        """Reload at each SIGHUP, to the end.

        In the foreground of a terminal that signal means that the terminal was closed: there it
        ends the gateway, as it always did.
        """
        if sys.stdin is not None and sys.stdin.isatty():
            return
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, asked.set)
        try:
            while await asked.wait():
                asked.clear()
                await self.reload()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
