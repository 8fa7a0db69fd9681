"""What differs between two trees of settings, with a keyed fingerprint in place of each secret.

A running gateway compares its settings with those in its file now. `effective` is the tree that it
uses after a reload: the new values, but for what waits for a restart.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
import yaml
from pydantic import BaseModel, SecretStr

from adapters.registry import AccountSettings, account_types
from agent.safety.redaction import Redactor
from gateway.errors import SettingsError
from gateway.settings.loading import replace_closed, secret_values
from gateway.settings.tree import KeyPath, Mark, Settings, flatten, mark_of, name_of, plain

SettingsQuestion = Literal["secrets", "reload", "differences", "running", "restart"]
"""What a running gateway is asked about its settings (`gateway.http.control.ask_settings`)."""
KEY_FILE = "fingerprint.key"
"""In PARLEY_HOME, readable by its owner only. An existing key is never replaced."""
KEY_BYTES = 32
SHOWN_CHARS = 8
"""Hexadecimal digits of the hash: enough to tell two secrets apart, too few to find one."""
KEY_CHARS = 4
"""Digits of the key's own hash: fingerprints with two keys cannot be compared."""


class SettingChange(NamedTuple):
    """A key with another value, as people write it; values are JSON, of secrets fingerprints."""

    key: str
    before: str
    after: str
    mark: Mark


def changes(running: Settings, found: Settings) -> list[SettingChange]:
    """Return the keys that differ, in the order of the tree; that of accounts says nothing."""
    found = _in_order_of(running, found)
    redactor = Redactor({*secret_values(running), *secret_values(found)})
    fingerprints = fingerprints_of(running.home)
    return [
        SettingChange(
            name_of(path, found),
            fingerprints.of(before, redactor),
            fingerprints.of(after, redactor),
            _mark(path, running, found),
        )
        for path, before, after in _differences(running, found, ())
    ]


class Fingerprints:
    """Writes settings as JSON, with a fingerprint `hmac-KEY:HASH` in place of each secret.

    The key is random and belongs to the home, so that readers of the audit log cannot test guesses.
    Rows of the unreleased 0.6 may have `sha256:HASH`.
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._name = hashlib.sha256(self._key).hexdigest()[:KEY_CHARS]

    def of_settings(self, settings: Settings) -> dict[str, str]:
        """Return each setting by its name, as JSON."""
        redactor = Redactor(secret_values(settings))
        found = flatten(settings)
        return {".".join(map(str, path)): self.of(value, redactor) for path, value in found}

    def of(self, value: Any, redactor: Redactor) -> str:
        """Return a value of the tree as JSON."""
        # A value may contain a secret though its setting is not one: a password in an address.
        return redactor.text(orjson.dumps(plain(value, self._written), default=str).decode())

    def _written(self, secret: SecretStr) -> str:
        text = secret.get_secret_value().encode()
        digest = hmac.new(self._key, text, hashlib.sha256).hexdigest()
        return f"hmac-{self._name}:{digest[:SHOWN_CHARS]}"


def fingerprints_of(home: Path) -> Fingerprints:
    """Return the writer for a home's fingerprints; the first call makes the key.

    Raises:
        SettingsError: The key cannot be read or made.
    """
    file = home / KEY_FILE
    try:
        return Fingerprints(kept_secret(file, KEY_BYTES))
    except OSError as exc:
        raise SettingsError(f"{file} cannot be read or made: {exc.strerror}") from exc


def kept_secret(file: Path, size: int) -> str:
    """Return the random secret of a file; the first call makes it, readable by its owner only.

    Raises:
        OSError: It cannot be read or made.
    """
    if not file.exists():
        replace_closed(file, (secrets.token_urlsafe(size) + "\n").encode())
    return file.read_text(encoding="utf-8", errors="replace").strip()


def named(settings: Settings) -> dict[str, tuple[KeyPath, Any]]:
    """Return the place and value of each key by the name that people write."""
    return {name_of(path, settings): (path, value) for path, value in flatten(settings)}


def _in_order_of(running: Settings, found: Settings) -> Settings:
    """Return the found settings with the accounts in the order of those that run, new ones last."""
    ordered = {}
    for platform in account_types():
        names = [each.name for each in running.platforms.accounts(platform)]
        place = {name: number for number, name in enumerate(names)}
        accounts = found.platforms.accounts(platform)
        ordered[platform] = tuple(sorted(accounts, key=lambda it: place.get(it.name, len(place))))
    platforms = found.platforms.model_copy(update=ordered)
    return found.model_copy(update={"platforms": platforms})


def _differences(
    before: BaseModel, after: BaseModel, path: KeyPath
) -> Iterator[tuple[KeyPath, Any, Any]]:
    for name in type(after).model_fields:
        here, one, other = (*path, name), getattr(before, name), getattr(after, name)
        if isinstance(one, BaseModel):
            yield from _differences(one, other, here)
        elif one != other and _blocks(one) and _blocks(one) == _blocks(other):
            for number, (block, new) in enumerate(zip(one, other, strict=True)):
                yield from _differences(block, new, (*here, number))
        elif one != other:
            yield here, one, other


def _blocks(value: Any) -> list[str]:
    """Return the name of each block of a list, of an account its own; nothing for other values."""
    if not (isinstance(value, tuple) and value and isinstance(value[0], BaseModel)):
        return []
    return [each.name if isinstance(each, AccountSettings) else "" for each in value]


def _mark(path: KeyPath, running: Settings, found: Settings) -> Mark:
    """Return the mark of a key; accounts that come or go are there after a restart."""
    if path[0] == "platforms":
        place, number = str(path[1]), path[2:3]
        both = (settings.platforms.accounts(place) for settings in (running, found))
        if not number or not all(accounts[int(number[0])].is_on for accounts in both):
            return "restart"
    return mark_of(path)


def effective(running: Settings, found: Settings) -> Settings:
    """Return the found settings, in which what waits for a restart is as it runs."""
    merged: Settings = _merged(running, found, ())
    return merged


def _merged(running: Any, found: Any, path: KeyPath) -> Any:
    """Return a section with its new values, but for those that wait for a restart."""
    values: dict[str, Any] = {}
    for name in type(found).model_fields:
        here, one, other = (*path, name), getattr(running, name), getattr(found, name)
        if isinstance(one, BaseModel):
            values[name] = _merged(one, other, here)
        elif path == ("platforms",):
            values[name] = tuple(_account(each, other, here) for each in one)
        else:
            values[name] = one if mark_of(here) == "restart" else other
    return running.model_copy(update=values)


def _account(
    running: AccountSettings, found: tuple[AccountSettings, ...], path: KeyPath
) -> AccountSettings:
    """Return the block of an account that runs; as it is, where it is to be switched on or off."""
    new = next((each for each in found if each.name == running.name), running)
    if new.is_on != running.is_on:
        return running
    merged: AccountSettings = _merged(running, new, path)
    return merged


def located(problem: SettingsError, file: Path) -> list[str]:
    """Return the lines of a refusal, each with the line of the file that its key is in. Blocks."""
    try:
        root = yaml.compose(file.read_text("utf-8-sig"), yaml.SafeLoader)
        # Aliases make a few lines as many keys as they like, also without an end.
        places = dict(islice(_lines(root, ()), _MOST_PLACES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        places = {}
    return [_placed(line, places) for line in str(problem).splitlines()]


_MOST_PLACES = 10_000


def _placed(line: str, places: dict[str, int]) -> str:
    name = line.partition(": ")[0]
    while name:
        if name in places:
            return f"line {places[name]}: {line}"
        name = name.rpartition(".")[0]
    return line


def _lines(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    match node:
        case yaml.MappingNode():
            items = [(str(key.value), key, value) for key, value in node.value]
        case yaml.SequenceNode():
            items = [(str(number), value, value) for number, value in enumerate(node.value)]
        case _:
            items = []
    for step, at, value in items:
        here = (*path, step)
        yield ".".join(here), at.start_mark.line + 1
        yield from _lines(value, here)
