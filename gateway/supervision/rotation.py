"""Secrets that were replaced while the gateway runs: what the settings refer to, read again.

It is a part of each reload (gateway/reload/reloading.py). Models take their new keys with the next
call; accounts of platforms are restarted with theirs. MCP servers and plugins were given theirs at
the start: for them the log says that a restart is needed.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from agent.errors import CredentialsRefused, CreditUsedUp, ModelError, SecretUnreadable
from agent.models.base import ChatModel, Renewable, checked_key
from agent.models.recovery import Rests
from gateway.settings.references import references_in, told
from gateway.settings.tree import Settings, dotted

log = structlog.get_logger()

_OF_MODELS = frozenset({"model", "fallbacks", "auxiliary"})
_READ_EACH_TIME = frozenset({("web", "oidc", "client_secret")})
ASKED_WITHIN_S = 5.0
"""How long providers have to say whether they take a new key."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of the secrets, by the settings that refer to them.

    Attributes:
        renewed: Those with another value, which is used from now on.
        restart: Those with another value that is used after a restart.
        refused: Keys with another value, which is used from now on, and which the provider refuses.
        unreadable: Those that cannot be read, and why; the value before goes on.
        references: How many there are.
    """

    renewed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    references: int = 0


@dataclass(frozen=True, slots=True)
class SettingsReloaded:
    """What became of the settings when they were read again, by their keys.

    Attributes:
        live: Those that are gone by from now on.
        next_turn: Those that turns go by that begin from now on.
        restart: Those that differ from what is gone by, and wait for a restart.
        problems: Why nothing was changed, one line for each mistake.
        adapters: Accounts that were restarted, and how they stand.
        warnings: What may not work as it is meant.
    """

    live: tuple[str, ...] = ()
    next_turn: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    secrets: Reloaded = field(default_factory=Reloaded)


_WORDS = {
    "live": "in effect now",
    "next_turn": "in effect with the next turn",
    "restart": "needs a restart",
    "adapters": "restarted",
    "warnings": "warning",
    "renewed": "in use",
    "refused": "in use, but refused",
    "unreadable": "not taken, the value before goes on",
}


def reload_lines(done: Mapping[str, Any]) -> list[str]:
    """Describe a reload of settings, or of secrets alone: a line for each key that changed.

    Args:
        done: The fields of a `SettingsReloaded` or a `Reloaded`.
    """
    lines = [f"{words}: {each}" for name, words in _WORDS.items() for each in done.get(name, ())]
    return lines + (reload_lines(done["secrets"]) if "secrets" in done else [])


@dataclass(slots=True)
class Rotation:
    """Reads the secrets of a running gateway again; `Reloading` sees to it that one does at a time.

    Attributes:
        models: That may take other keys.
        rests: Which of them rest: one with another key need not.
        restarts_accounts: Whether accounts are restarted for their new tokens; else the process has
            to be.
    """

    settings: Settings
    models: Sequence[ChatModel]
    rests: Rests
    restarts_accounts: bool = False

    def take(self, settings: Settings, models: Sequence[ChatModel]) -> None:
        """Go on with the secrets of other settings, and with the models that were made of them."""
        self.settings, self.models = settings, models

    async def reload(self) -> Reloaded:
        """Read every secret that is referred to; has models use what is new, and asks about it."""
        done = await self._told_apart(await asyncio.to_thread(self._read))
        trouble = done.restart or done.refused or done.unreadable
        log.log(
            logging.WARNING if trouble else logging.INFO,
            "secrets_reloaded",
            renewed=list(done.renewed),
            restart_needed=list(done.restart),
            refused=list(done.refused),
            unreadable=list(done.unreadable),
        )
        return done

    def _read(self) -> Reloaded:
        renewed: list[str] = []
        restart: list[str] = []
        unreadable: list[str] = []
        found = list(references_in(self.settings))
        for path, secret in found:
            is_key = path[0] in _OF_MODELS
            try:
                value = secret.read()
                if secret.take(checked_key(value) if is_key else value):
                    is_token = path[0] == "platforms" and self.restarts_accounts
                    at_once = is_key or is_token or path in _READ_EACH_TIME
                    (renewed if at_once else restart).append(dotted(path))
            except SecretUnreadable as exc:
                unreadable.append(f"{dotted(path)}: {told(secret.reference)} {exc}")
        return Reloaded(tuple(renewed), tuple(restart), (), tuple(unreadable), len(found))

    async def _told_apart(self, done: Reloaded) -> Reloaded:
        """Have models take their keys; returns which of them a provider refuses."""
        names = {id(secret): dotted(path) for path, secret in references_in(self.settings)}
        taking = [each for each in self.models if isinstance(each, Renewable) and each.take_key()]
        for model in taking:
            self.rests.clear(model)
        answers = await asyncio.gather(*map(_is_refused, taking))
        for model, is_refused in zip(taking, answers, strict=True):
            if is_refused:
                self.rests.note_failure(model.label, CredentialsRefused("the new key is refused"))
            else:
                self.rests.note_accepted(model.label)
        # A model may have its key since it was refused the one before: that is no news.
        refused = {
            names.get(id(model.secret), model.label)
            for model, is_refused in zip(taking, answers, strict=True)
            if is_refused
        }
        renewed = tuple(name for name in done.renewed if name not in refused)
        lines = tuple(f"{name}: the provider refuses it" for name in sorted(refused))
        return replace(done, renewed=renewed, refused=lines)


async def _is_refused(model: ChatModel) -> bool:
    try:
        async with asyncio.timeout(ASKED_WITHIN_S):
            await model.look_up()
    except CredentialsRefused as exc:
        return not isinstance(exc, CreditUsedUp)
    except (ModelError, TimeoutError):
        # Nobody knows: it is asked with the next message.
        return False
    return False
