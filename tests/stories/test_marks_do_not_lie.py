"""No mark lies: a gateway that was reloaded is the same as one that was started with the change.

A gateway is started. Each key that is marked live or next-turn is changed in its file, one after
another, and it is reloaded. Then each part of it holds what the same part holds of a gateway that
was started with that file; and some part differs from before: the key is seen to have an effect.
"""

import copy
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Literal, get_args, get_origin

import annotated_types
import pytest
import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from adapters.registry import account_types
from agent.safety.redaction import Redactor
from gateway.app import Gateway, assembled
from gateway.reload.reloading import AgentOrigin, Known, Reloading, Source
from gateway.settings.loading import Loaded, load_settings
from gateway.settings.tree import INDEX, Key, Keys, Settings, dotted
from gateway.storage.migrations import open_database
from gateway.supervision import credentials
from gateway.wiring import (
    build_accounts,
    build_agent,
    build_line,
    build_writers,
    models_of,
)
from tests.support.process import free_port
from tests.support.thorough import amount

NOBODY = f"http://127.0.0.1:{free_port()}/v1"
FACTS = {"input_usd": 1.0, "output_usd": 2.0}
MODEL = {"provider": "openai", "base_url": NOBODY, "api_key": "sk-aaaa-1111-bbbb", "facts": FACTS}
BASE: dict[str, Any] = {
    "model": {"name": "m-1", **MODEL},
    "fallbacks": [{"name": "m-2", **MODEL}],
    "auxiliary": {"compression": {"model": "m-3", **MODEL}},
    "agent": {
        "prefill": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    },
    "tools": {
        "enabled": ["todo", "memory", "fetch_url", "delegate_task", "terminal", "read_file"],
        "policy": {"rules": [{"then": "ask", "tool": "todo"}]},
        "sandbox": {"backend": "none"},
        "terminal": {"confine": False, "allow_root": True},
    },
    "alerts": {"webhook": "https://example.org/hook"},
    "platforms": {
        "telegram": [{"token": "123456:AAabcdefghijklmnopqrstuvwxyz0123456"}],
        "discord": [{"token": "MTIzNDU2Nzg5.GabcdE.abcdefghijklmnopqrstuvwxyz"}],
        "slack": [{"bot_token": "xoxb-1234-abcdefgh", "app_token": "xapp-1-A0-abcdefgh"}],
    },
}
CHANGED: dict[str, Any] = {
    # What is there beside the value that its type would give.
    "model.provider": "openrouter",
    "fallbacks.provider": "openrouter",
    "auxiliary.compression.provider": "openrouter",
    "model.base_url": NOBODY.replace("/v1", "/v2"),
    "fallbacks.base_url": NOBODY.replace("/v1", "/v2"),
    "auxiliary.compression.base_url": NOBODY.replace("/v1", "/v2"),
    "fallbacks": [],
    "model.api_keys": ["sk-cccc-2222-dddd"],
    "fallbacks.api_keys": ["sk-cccc-2222-dddd"],
    "auxiliary.compression.api_keys": ["sk-cccc-2222-dddd"],
    "agent.prefill": [],
    "agent.workspace": "/",
    "context.engine": "rounds",
    "sessions.timezone": "Europe/Berlin",
    "access.owners": ["telegram:77"],
    "access.groups": {"*": {"respond": "always"}},
    "alerts.to": ["telegram:default:77"],
    "tools.policy.rules": [],
    "tools.policy.own_records": ["foreign_tool"],
    "tools.policy.without": ["tainted-notes"],
    "tools.enabled": ["todo"],
    "tools.terminal.readable": ["/opt/x"],
    "agent.max_turn_s": 60,
    "platforms.telegram.base_url": NOBODY,
    "platforms.telegram.base_file_url": NOBODY,
    "platforms.telegram.webhook_url": "https://example.org/telegram/default",
    "platforms.slack.base_url": f"{NOBODY}/api/",
    "platforms.telegram.token": "123456:ZZabcdefghijklmnopqrstuvwxyz0123456",
}
BESIDE: dict[str, dict[str, Any]] = {
    # What has to be there for a key to have an effect.
    "context.rounds": {"context": {"engine": "rounds"}},
}
NOT_THERE = {
    # Settings of a fallback that only those of `model` hold for (`gateway.settings.rules.doubts`).
    "fallbacks.retry_for_s",
    "fallbacks.max_output_tokens",
}
"""Keys without any effect: a start warns of them."""
ELSEWHERE = {
    "logging.level": "test_reloading.py::test_the_level_of_the_log_changes",
    # A list of pairs: it changes as a whole.
    "agent.prefill.role": "agent.prefill",
    # Nothing is confined here, which not every machine can do.
    "tools.sandbox.backend": "tools.terminal.timeout_s, which is handed over with it",
    # Whoever runs the tests as root may not take it back.
    "tools.terminal.allow_root": "tools.terminal.timeout_s, which is handed over with it",
}
"""Keys that cannot be changed alone, or whose effect is in no part of the gateway, and what proves
them."""


def keys_of(section: str) -> list[Key]:
    """Return the keys of a section that are gone by without a restart, and hold a value."""
    # Accounts come and go with a restart.
    accounts = {f"platforms.{name}" for name in account_types()}
    return [
        key
        for key in Keys(Settings)
        if key.pattern[0] == section
        and key.kind != "section"
        and key.mark != "restart"
        and dotted(key.pattern) not in {*NOT_THERE, *ELSEWHERE, *accounts}
    ]


def field_of(pattern: tuple[str, ...]) -> FieldInfo:
    """Return the field of a key."""
    model: type[BaseModel] = Settings
    field: FieldInfo | None = None
    for step in pattern:
        if step == INDEX:
            continue
        field = model.model_fields[step]
        inner = [each for each in _types(field.annotation) if _is_section(each)]
        model = inner[0] if inner else model
    assert field is not None
    return field


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for each in get_args(annotation):
        yield from _types(each)


def _is_section(each: Any) -> bool:
    return isinstance(each, type) and issubclass(each, BaseModel)


def other_value(key: Key, now: Any) -> Any:
    """Return a value for a key that is allowed and is not what it has."""
    if (name := dotted(key.pattern)) in CHANGED:
        return CHANGED[name]
    field = field_of(key.pattern)
    types = list(_types(field.annotation))
    choices = [each for kind in types if get_origin(kind) is Literal for each in get_args(kind)]
    if options := [value for value in choices if value != now]:
        return options[-1]
    if bool in types:
        return not now
    if int in types or float in types:
        return _other_number(field, now)
    if key.kind == "json":
        return {"x_key": 1} if dict in map(get_origin, types) else ["4711"]
    return "another-text-4711"


def _other_number(field: FieldInfo, now: float | None) -> float:
    """Return a number within the limits of a field."""
    limits = [each for each in field.metadata if isinstance(each, annotated_types.BaseMetadata)]
    tops = [value for each in limits if (value := getattr(each, "le", None)) is not None]
    lows = [getattr(each, "ge", getattr(each, "gt", None)) for each in limits]
    high, low = (
        min(tops, default=10**9),
        max((each for each in lows if each is not None), default=0),
    )
    if high <= 1:
        return (low + high) / 2 if now != (low + high) / 2 else high
    return low + 1 if now is None else now + 1 if now + 1 <= high else now - 1


def with_value(tree: dict[str, Any], pattern: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return settings in which a key has another value, in the first of several blocks."""
    made = copy.deepcopy(tree)
    node: Any = made
    for step in pattern[:-1]:
        # A lone account stands where the list is expected.
        if step == INDEX:
            node = node[0] if isinstance(node, list) else node
        else:
            node = node.setdefault(step, {})
    node[pattern[-1]] = value
    return made


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return one laid over the other."""
    both = dict(other)
    for name, value in one.items():
        is_map = isinstance(value, Mapping) and isinstance(both.get(name), Mapping)
        both[name] = merged(value, both[name]) if is_map else value
    return both


LEAVES = (str, bytes, int, float, bool, type(None), Path, Enum, type)
_HELD_BY_ALL = (Settings, ModuleType, Gateway, Source, AgentOrigin, Reloading, Redactor)
"""What holds the whole tree, or nothing of it: it proves nothing. A redactor knows old secrets."""


def parts_of(gateway: Gateway) -> dict[str, str]:
    """Return all that the parts of a gateway hold, by the way there."""
    alerts = gateway.platforms.alerts
    roots = {
        # Made at each look.
        "telling": None if alerts is None else alerts.telling(),
        "intake": gateway.intake,
        "worker": gateway.worker,
        "delivery": gateway.delivery,
        "beside": gateway.beside,
        "platforms": gateway.platforms,
        "pruner": gateway.reloading.parts.pruner,
    }
    found: dict[str, str] = {}
    seen: set[int] = set()
    waiting = list(roots.items())
    for way, thing in waiting:
        if isinstance(thing, SecretStr):
            found[way] = thing.get_secret_value()
        elif isinstance(thing, LEAVES):
            found[way] = repr(thing)
        elif not isinstance(thing, _HELD_BY_ALL) and id(thing) not in seen:
            # Values are the same wherever they stand; of all else each is looked into once.
            if not isinstance(thing, BaseModel | tuple | frozenset):
                seen.add(id(thing))
            waiting += [(f"{way}.{name}", each) for name, each in _held(thing)]
    return found


def _held(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a thing holds, with its name there."""
    match thing:
        case BaseModel():
            yield from ((name, getattr(thing, name)) for name in type(thing).model_fields)
        case Mapping():
            yield from ((str(key), value) for key, value in thing.items())
        case tuple() | list():
            yield from ((str(number), each) for number, each in enumerate(thing))
        case set() | frozenset():
            yield "members", repr(sorted(map(repr, thing)))
        case MethodType():
            yield "self", thing.__self__
        case partial():
            yield from (("function", thing.func), ("args", thing.args), ("named", thing.keywords))
        case FunctionType():
            cells = [each.cell_contents for each in thing.__closure__ or () if not _is_empty(each)]
            yield from zip(thing.__code__.co_freevars, cells, strict=False)
        case _:
            yield from _fields(thing)


def _fields(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object of ours; the database knows no settings."""
    module = type(thing).__module__
    ours = module.partition(".")[0] in {"gateway", "agent", "adapters"}
    if not ours or module.startswith("gateway.storage"):
        return
    yield "class", type(thing)
    slots = [name for each in type(thing).__mro__ for name in getattr(each, "__slots__", ())]
    for name in dict.fromkeys([*getattr(thing, "__dict__", {}), *slots]):
        if hasattr(thing, name):
            yield name, getattr(thing, name)


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def read(home: Path, tree: dict[str, Any]) -> Loaded:
    """Return settings as a start reads them from the file."""
    (home / "parley.yaml").write_text(yaml.safe_dump(tree))
    return load_settings(environ={"PARLEY_HOME": str(home)})


@asynccontextmanager
async def started(home: Path, tree: dict[str, Any], database: Path) -> AsyncIterator[Gateway]:
    """Assemble a gateway of a settings file, with a database of its own."""
    loaded = read(home, tree)

    def again(known: Known) -> Loaded:
        return load_settings(environ={"PARLEY_HOME": str(home)}, known=known)

    settings = loaded.settings
    line, writers = build_line(settings), build_writers(settings)
    await credentials.learn_windows([*line, *writers])
    origin = AgentOrigin(line=line, writers=writers, source=Source(loaded, again))
    agent = build_agent(settings, line)
    async with open_database(database) as opened:
        try:
            async with assembled(
                settings, opened, agent, build_accounts(settings), origin
            ) as gateway:
                yield gateway
        finally:
            for model in models_of(line):
                await model.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody receives here, so no adapter is waited for."""
    monkeypatch.setattr(credentials, "PLATFORMS_WITHIN_S", 0.0)


async def fresh(home: Path, tree: dict[str, Any], name: str) -> dict[str, str]:
    """Return what the parts hold of a gateway that is started with these settings."""
    async with started(home, tree, home / f"{name}.db") as gateway:
        return parts_of(gateway)


def trees_of(section: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return for each key of a section: its name, settings, and the same with another value."""
    found = []
    for key in keys_of(section):
        name = dotted(key.pattern)
        beside = next((more for start, more in BESIDE.items() if name.startswith(start)), {})
        base = merged(beside, BASE)
        now: Any = Settings.model_validate({"home": "/nowhere", **base})
        for step in key.pattern:
            now = now[0] if step == INDEX else getattr(now, step)
        found.append((name, base, with_value(base, key.pattern, other_value(key, now))))
    return found


@pytest.mark.parametrize("section", [name for name in Settings.model_fields if keys_of(name)])
async def test_what_is_reloaded_is_as_if_it_was_started(section: str, tmp_path: Path) -> None:
    """Key by key: all parts hold what those of a start hold, and it is not what they held.

    At the desk every fourth key of a section.
    """
    lies: list[str] = []
    trees = trees_of(section)[:: amount(4, 1)]
    first = trees[0][1]
    before, again = [await fresh(tmp_path, first, f"before-{n}") for n in range(2)]
    noise = {way for way in before if before[way] != again.get(way)}
    async with started(tmp_path, first, tmp_path / "reloaded.db") as gateway:
        for number, (name, base, tree) in enumerate(trees):
            without = before if base == first else await fresh(tmp_path, base, f"base-{number}")
            after = await fresh(tmp_path, tree, f"after-{number}")
            done = await gateway.reloading.reload()
            assert not done.problems, (name, done.problems)
            found = parts_of(gateway)
            if not any(without.get(way) != after.get(way) for way in {*without, *after} - noise):
                lies.append(f"{name}: no part holds it")
            ways = sorted(
                way for way in {*after, *found} - noise if found.get(way) != after.get(way)
            )
            lies += [
                f"{name}: {way} holds {found.get(way)}, not {after.get(way)}" for way in ways[:5]
            ]
    assert lies == []


def test_each_key_that_is_proved_elsewhere_is_a_key() -> None:
    """And so are those without any effect."""
    names = set(Keys(Settings).names())
    assert {*NOT_THERE, *ELSEWHERE, *CHANGED} <= names
