"""What differs between the settings of a running gateway and those that stand in its file now.

`effective` is the tree that the gateway goes by after a reload: the new values, but for what waits
for a restart.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel

from adapters.registry import AccountSettings, account_types
from agent.safety.redaction import Redactor
from gateway.errors import SettingsError
from gateway.settings.fingerprints import fingerprints_of
from gateway.settings.loading import secret_values
from gateway.settings.tree import KeyPath, Mark, Settings, flatten, mark_of, name_of

SettingsQuestion = Literal["secrets", "reload", "differences", "running", "restart"]
"""What a running gateway is asked about its settings (`gateway.http.control.ask_settings`)."""


class SettingChange(NamedTuple):
    """A key with another value; values are JSON, of secrets only their fingerprints.

    Attributes:
        key: As people write it.
        mark: When the new value takes effect.
    """

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


def effective(running: Settings, found: Settings) -> Settings:
    """Return the found settings, in which what waits for a restart is as it runs."""
    merged: Settings = _merged(running, found, ())
    return merged


def named(settings: Settings) -> dict[str, tuple[KeyPath, Any]]:
    """Return the place and value of each key by the name that people write."""
    return {name_of(path, settings): (path, value) for path, value in flatten(settings)}


def _in_order_of(running: Settings, found: Settings) -> Settings:
    """Return the found settings with the accounts in the order of those that run, new ones last."""
    ordered = {}
    for platform in account_types():
        place = {each.name: n for n, each in enumerate(running.platforms.accounts(platform))}
        ordered[platform] = tuple(
            sorted(
                found.platforms.accounts(platform),
                key=lambda each: place.get(each.name, len(place)),
            )
        )
    platforms = found.platforms.model_copy(update=ordered)
    return found.model_copy(update={"platforms": platforms})


def _differences(
    before: BaseModel, after: BaseModel, path: KeyPath
) -> Iterator[tuple[KeyPath, Any, Any]]:
    for name in type(after).model_fields:
        here, one, other = (*path, name), getattr(before, name), getattr(after, name)
        if isinstance(one, BaseModel):
            yield from _differences(one, other, here)
        elif _is_same_list(one, other):
            for number, (block, new) in enumerate(zip(one, other, strict=True)):
                yield from _differences(block, new, (*here, number))
        elif one != other:
            yield here, one, other


def _is_same_list(one: Any, other: Any) -> bool:
    """Whether two values are lists of the same blocks, or of as many without names."""
    if not (_is_blocks(one) and _is_blocks(other) and len(one) == len(other)):
        return False
    return [getattr(each, "name", "") for each in one] == [
        getattr(each, "name", "") for each in other
    ] or not isinstance(one[0], AccountSettings)


def _is_blocks(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], BaseModel)


def _mark(path: KeyPath, running: Settings, found: Settings) -> Mark:
    """Return the mark of a key; accounts that come or go are there after a restart."""
    if path[0] == "platforms" and not (len(path) > 2 and _stays_on(path, running, found)):
        return "restart"
    return mark_of(path)


def _stays_on(path: KeyPath, running: Settings, found: Settings) -> bool:
    platform, number = str(path[1]), int(path[2])
    one = running.platforms.accounts(platform)[number]
    return one.is_on and found.platforms.accounts(platform)[number].is_on


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
    """Return the lines of a refusal, each with the line that its key stands in. Blocks."""
    places = _places(file)
    return [_placed(line, places) for line in str(problem).splitlines()]


def _placed(line: str, places: dict[str, int]) -> str:
    name = line.partition(": ")[0]
    while name:
        if name in places:
            return f"line {places[name]}: {line}"
        name = name.rpartition(".")[0]
    return line


def _places(file: Path) -> dict[str, int]:
    """Return in which line each key of a YAML file stands; nothing where it cannot be read."""
    try:
        root = yaml.compose(file.read_text("utf-8-sig"), yaml.SafeLoader)
        # Aliases make a few lines as many keys as they like, also without an end.
        return dict(islice(_lines(root, ()), _MOST_PLACES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


_MOST_PLACES = 10_000


def _lines(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                here = (*path, str(key.value))
                yield ".".join(here), key.start_mark.line + 1
                yield from _lines(value, here)
        case yaml.SequenceNode():
            for number, value in enumerate(node.value):
                here = (*path, str(number))
                yield ".".join(here), value.start_mark.line + 1
                yield from _lines(value, here)
