"""Differences between two settings trees, with keyed fingerprints instead of secrets.

A running gateway compares its settings with its file.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, SecretStr

from adapters.registry import AccountSettings
from agent.safety.redaction import Redactor
from gateway.errors import SettingsError
from gateway.settings.loading import replace_closed, secret_values
from gateway.settings.tree import KeyPath, Mark, Settings, flatten, mark_of, name_of, placed, plain

KEY_FILE = "fingerprint.key"
"""File in PARLEY_HOME, readable only by its owner. An existing key is never replaced."""
KEY_BYTES = 32
SHOWN_CHARS = 8
"""Hexadecimal digits of the hash: enough to distinguish secrets, too few to find one."""
KEY_CHARS = 4
"""Digits of the key's hash, since fingerprints under different keys are not comparable."""


class SettingChange(NamedTuple):
    """A changed key as people write it; values are JSON, secrets are fingerprints."""

    key: str
    before: str
    after: str
    mark: Mark


def changes(running: Settings, found: Settings) -> list[SettingChange]:
    """Return the differing keys in tree order, ignoring the order of accounts."""
    write = _writer(running.home, {*secret_values(running), *secret_values(found)})
    return [
        SettingChange(name_of(path, running), write(old), write(new), mark)
        for path, old, new, mark in _differences(running, found, ())
    ]


def effective(running: Settings, found: Settings) -> Settings:
    """Return the running settings with all changes that need no restart."""
    settings: Settings = running
    for path, _, new, mark in _differences(running, found, ()):
        if mark != "restart":
            settings = placed(settings, path, new)
    return settings


def fingerprinted(settings: Settings) -> dict[str, str]:
    """Return each setting by name, as JSON with fingerprints instead of secrets."""
    write = _writer(settings.home, secret_values(settings))
    return {".".join(map(str, path)): write(value) for path, value in flatten(settings)}


def _writer(home: Path, known: Iterable[str]) -> Callable[[Any], str]:
    """Return a function that formats a setting as JSON, each secret as `hmac-KEY:HASH`.

    The random key belongs to the home, so readers of the audit log cannot test guesses. The first
    call creates it.
    """
    file, redactor = home / KEY_FILE, Redactor(known)
    try:
        key = kept_secret(file, KEY_BYTES).encode()
    except OSError as exc:
        raise SettingsError(f"{file} cannot be read or made: {exc.strerror}") from exc
    name = hashlib.sha256(key).hexdigest()[:KEY_CHARS]

    def fingerprint(secret: SecretStr) -> str:
        digest = hmac.new(key, secret.get_secret_value().encode(), hashlib.sha256).hexdigest()
        return f"hmac-{name}:{digest[:SHOWN_CHARS]}"

    def write(value: Any) -> str:
        # A non-secret setting may contain a secret, such as a password in a URL.
        return redactor.text(orjson.dumps(plain(value, fingerprint), default=str).decode())

    return write


def kept_secret(file: Path, size: int) -> str:
    """Return the random secret in a file; the first call creates it, readable only by its owner."""
    if not file.exists():
        replace_closed(file, (secrets.token_urlsafe(size) + "\n").encode())
    return file.read_text(encoding="utf-8", errors="replace").strip()


def _differences(
    running: BaseModel, found: BaseModel, path: KeyPath
) -> Iterator[tuple[KeyPath, Any, Any, Mark]]:
    """Yield path, both values and mark of each difference."""
    for name in type(running).model_fields:
        here, old, new = (*path, name), getattr(running, name), getattr(found, name)
        if isinstance(old, BaseModel):
            yield from _differences(old, new, here)
        elif path == ("platforms",):
            yield from _different_accounts(old, new, here)
        elif old != new and _is_blocks(old) and _is_blocks(new) and len(old) == len(new):
            for number, (block, other) in enumerate(zip(old, new, strict=True)):
                yield from _differences(block, other, (*here, number))
        elif old != new:
            yield here, old, new, mark_of(here)


def _is_blocks(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], BaseModel)


def _different_accounts(
    running: tuple[AccountSettings, ...], found: tuple[AccountSettings, ...], path: KeyPath
) -> Iterator[tuple[KeyPath, Any, Any, Mark]]:
    """Compare accounts by name; new and removed ones need a restart."""
    named = {each.name: each for each in found}
    if {each.name for each in running} != named.keys():
        yield path, running, found, "restart"
    for number, block in enumerate(running):
        new = named.get(block.name, block)
        for place, before, after, mark in _differences(block, new, (*path, number)):
            yield place, before, after, mark if block.is_on and new.is_on else "restart"
