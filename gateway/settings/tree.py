"""The settings: one frozen tree of sections, and the keys that it has.

docs/configuration.md says what each key means; a test compares it with the tree. The environment,
the error messages and `parley config show` use these keys. `load_settings` reads the values.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, SecretStr, create_model, field_validator

from adapters.registry import AccountSettings, account_types
from adapters.web.platform import WebSettings
from agent.settings import (
    AgentSettings,
    AuxiliarySettings,
    CachingSettings,
    CompressionSettings,
    ContextSettings,
    ModelSettings,
    PluginSettings,
    Section,
    ToolSettings,
)

S = TypeVar("S", bound=type[Section])


def _with_fields(fields: Mapping[str, Any]) -> Callable[[S], S]:
    """Add fields to a section: one for each registered platform."""

    def extended(section: S) -> S:
        made = {"__base__": section, "__module__": __name__, **fields}
        return cast("S", create_model(section.__name__, __doc__=section.__doc__, **made))

    return extended


class BudgetSettings(Section):
    """Spending limits per day in US dollars; null: none."""

    daily_usd: float | None = Field(default=None, ge=0)
    sender_daily_usd: float | None = Field(default=None, ge=0)


class QuotaSettings(Section):
    """Limits for one sender in 24 hours (messages) and since midnight (tokens); not for owners."""

    messages_per_day: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)


class QueueSettings(Section):
    """From an accepted message to its turn."""

    mode: Literal["collect", "followup", "interrupt"] = "collect"
    debounce_ms: int = Field(default=400, ge=0, le=60_000)
    max_pending: int = Field(default=100, ge=1, le=100_000)
    max_concurrent_turns: int = Field(default=64, ge=1, le=10_000)
    max_attempts: Annotated[int, "next-turn"] = Field(default=3, ge=1, le=100)
    grace_s: float = Field(default=30, ge=0, le=3600)


class SessionSettings(Section):
    """When a new session starts, and who shares one."""

    reset: Literal["none", "daily", "idle", "both"] = "none"
    timezone: str = "UTC"
    at_hour: int = Field(default=4, ge=0, le=23)
    idle_minutes: int = Field(default=1440, ge=1)
    # It names the conversation that a message belongs to, as the message comes in.
    groups: Annotated[Literal["per_user", "shared"], "live"] = "per_user"

    @field_validator("timezone")
    @classmethod
    def _timezone_exists(cls, name: str) -> str:
        try:
            return name if name == "UTC" else ZoneInfo(name).key
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise ValueError("must be an IANA time zone, such as Europe/Berlin") from exc


class GroupRule(Section):
    """When the bot answers in a group, whom, and whether it reads the rest along."""

    respond: Literal["mention", "always", "never"] = "mention"
    context: bool = False
    senders: Literal["allowed", "anyone"] = "allowed"


@_with_fields(dict.fromkeys(account_types(), (tuple[str, ...], ())))
class AccessSettings(Section):
    """Who may talk to the bot, with a list of ids for each platform, and what it listens to."""

    # Ids are numbers on some platforms.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    mode: Literal["pairing", "allowlist", "open"] = "pairing"
    owners: tuple[str, ...] = ()
    groups: Mapping[str, GroupRule] = Field(default={})
    rate_per_min: int = Field(default=60, ge=0, le=100_000)

    def listed(self, platform: str) -> tuple[str, ...]:
        """Return the ids of those who may talk on a platform."""
        ids: tuple[str, ...] = getattr(self, platform) if platform in account_types() else ()
        return ids


class AttachmentSettings(Section):
    """Files that come with messages."""

    # The page tells it to browsers that are open.
    max_bytes: Annotated[int, "restart"] = Field(default=20_000_000, ge=0, le=50_000_000)


@_with_fields({
    name: (GenericAlias(tuple, (account, ...)), (account(),))
    for name, account in account_types().items()
})
class PlatformSettings(Section):
    """The accounts of each platform; an account is on when it has its token."""

    def accounts(self, platform: str) -> tuple[AccountSettings, ...]:
        """Return the blocks of one platform."""
        blocks: tuple[AccountSettings, ...] = getattr(self, platform)
        return blocks

    def on(self) -> list[tuple[str, AccountSettings]]:
        """Return (platform, block) of each account that has its token, in the order of lists."""
        return [
            (name, block)
            for name in account_types()
            for block in self.accounts(name)
            if block.is_on
        ]


MOST_DAYS = 100_000
Days = Annotated[int, Field(ge=1, le=MOST_DAYS)]


def is_server(url: str) -> bool:
    """Whether a `storage.url` names a server, not a file."""
    return url.startswith(("postgresql://", "postgres://"))


class StorageSettings(Section):
    """Where the data is; `url` null: SQLite in PARLEY_HOME."""

    url: SecretStr | None = None
    direct_url: SecretStr | None = None
    connections: int = Field(default=6, ge=2, le=64)
    migrate: Literal["run", "wait"] = "run"
    raw_days: Annotated[Days, "live"] = 30


class RetentionSettings(Section):
    """Days for which data is kept; null: until `parley forget`."""

    transcript_days: Days | None = None
    files_days: Days | None = None
    files_max_bytes: int | None = Field(default=None, ge=0, le=10**15)
    # Budgets sum up the current day, which is two by the clock of another place.
    ledger_days: int | None = Field(default=None, ge=2, le=MOST_DAYS)
    audit_days: Days | None = None

    @property
    def limits_files(self) -> bool:
        """Whether any file may go."""
        return self.files_days is not None or self.files_max_bytes is not None


class BackupSettings(Section):
    """Backups on a timer; `to` null: none, else a folder, which may be relative to PARLEY_HOME."""

    to: Path | None = None
    every_h: int = Field(default=24, ge=1, le=8_784)
    keep: int = Field(default=7, ge=1, le=10_000)


class AlertSettings(Section):
    """Which chats and webhook owners' alerts go to (docs/alerts.md)."""

    # The part of the gateway that posts is started or not.
    enabled: Annotated[bool, "restart"] = True
    to: tuple[str, ...] = ()
    webhook: Annotated[SecretStr | None, "restart"] = None
    webhook_secret: SecretStr | None = None
    webhook_when: Literal["unheard", "always"] = "unheard"
    disk_free_bytes: int = Field(default=500_000_000, ge=0, le=10**15)


class LoggingSettings(Section):
    """What is logged, and where to; `file` null: PARLEY_HOME/logs/parley.jsonl, false: none."""

    level: Annotated[Literal["debug", "info", "warning", "error"], "live"] = "info"
    format: Literal["auto", "console", "json"] = "auto"
    file: Path | Literal[False] | None = None

    @field_validator("file", mode="before")
    @classmethod
    def _path_or_false(cls, value: Any) -> Any:
        if value is None or value is False or isinstance(value, Path):
            return value
        if not isinstance(value, str) or not value:
            raise ValueError("must be a path, false or null")
        # An unknown user stays as written.
        return value.lower() != "false" and Path(os.path.expanduser(value))  # noqa: PTH111


class MetricsSettings(Section):
    """`/metrics` on the web port; `token`: for callers from other machines."""

    token: SecretStr | None = None


class TelemetrySettings(Section):
    """Traces for an OpenTelemetry collector; `otlp_endpoint`: of OTLP over HTTP, null for none."""

    otlp_endpoint: str | None = None


Mark = Literal["live", "next-turn", "restart"]
"""When a changed setting takes effect in a running gateway; in the annotation of its field.

live: within a second or so of the reload. next-turn: for turns that begin after the reload.
restart: at the next start of the gateway. Stories prove the first two key by key (tests/stories).
"""


class Settings(Section):
    """The whole tree. `home` is PARLEY_HOME: absolute, not necessarily there yet.

    Each section has a `Mark`, which its keys share but for those that have one of their own.
    """

    # Values may be secrets: pydantic's own text of an error must not hold them.
    model_config = ConfigDict(hide_input_in_errors=True)

    home: Annotated[Path, "restart"]
    model: Annotated[ModelSettings, "next-turn"] = ModelSettings()
    fallbacks: Annotated[tuple[ModelSettings, ...], "next-turn"] = ()
    agent: Annotated[AgentSettings, "next-turn"] = AgentSettings()
    compression: Annotated[CompressionSettings, "next-turn"] = CompressionSettings()
    auxiliary: Annotated[AuxiliarySettings, "next-turn"] = AuxiliarySettings()
    context: Annotated[ContextSettings, "next-turn"] = ContextSettings()
    prompt_caching: Annotated[CachingSettings, "next-turn"] = CachingSettings()
    budget: Annotated[BudgetSettings, "live"] = BudgetSettings()
    quotas: Annotated[QuotaSettings, "live"] = QuotaSettings()
    queue: Annotated[QueueSettings, "live"] = QueueSettings()
    sessions: Annotated[SessionSettings, "next-turn"] = SessionSettings()
    access: Annotated[AccessSettings, "live"] = AccessSettings()
    attachments: Annotated[AttachmentSettings, "next-turn"] = AttachmentSettings()
    tools: Annotated[ToolSettings, "next-turn"] = ToolSettings()
    # Their code is loaded, and what it does at its start is done.
    plugins: Annotated[PluginSettings, "restart"] = PluginSettings()
    platforms: Annotated[PlatformSettings, "live"] = PlatformSettings()
    web: Annotated[WebSettings, "restart"] = WebSettings()
    storage: Annotated[StorageSettings, "restart"] = StorageSettings()
    retention: Annotated[RetentionSettings, "live"] = RetentionSettings()
    backup: Annotated[BackupSettings, "restart"] = BackupSettings()
    alerts: Annotated[AlertSettings, "live"] = AlertSettings()
    logging: Annotated[LoggingSettings, "restart"] = LoggingSettings()
    metrics: Annotated[MetricsSettings, "restart"] = MetricsSettings()
    telemetry: Annotated[TelemetrySettings, "restart"] = TelemetrySettings()


KeyPath = tuple[str | int, ...]
Kind = Literal["section", "blocks", "json", "value"]
INDEX = "*"


@dataclass(frozen=True, slots=True)
class Key:
    """One place in the tree.

    Attributes:
        pattern: Names from the root; `INDEX` is any position in a list of blocks.
        kind: "blocks" is a list of sections, "json" another list or a map.
        block: The section that each value of a map is, if they are sections.
    """

    pattern: tuple[str, ...]
    kind: Kind
    secret: bool
    default: Any
    mark: Mark
    block: type[BaseModel] | None = None

    @property
    def lone_block(self) -> bool:
        """Whether one block may be given in place of the list."""
        return self.kind == "blocks" and bool(self.default)


class Keys:
    """All keys below a settings model."""

    def __init__(self, root: type[BaseModel]) -> None:
        self._keys = {key.pattern: key for key in _walk(root, (), None)}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def find(self, path: KeyPath) -> Key | None:
        """Return the key at a path, whose position may be left out if there is one block."""
        return self._keys.get(_pattern(self.complete(path)[0]))

    def complete(self, path: KeyPath) -> tuple[KeyPath, KeyPath | None]:
        """Insert the position 0 that may be left out if there is one block.

        Returns:
            The full path, and the path of the list whose position was left out, if any.
        """
        for end in range(1, len(path)):
            key = self._keys.get(_pattern(path[:end]))
            if key and key.lone_block and not isinstance(path[end], int):
                return (*path[:end], 0, *path[end:]), path[:end]
        return path, None

    def around(self, path: KeyPath) -> Key:
        """Return the innermost key at a path or around it.

        Raises:
            KeyError: Nothing around the path is a key.
        """
        for end in range(len(path), 0, -1):
            if key := self.find(path[:end]):
                return key
        raise KeyError(dotted(path))

    def is_secret(self, path: KeyPath) -> bool:
        """Whether the value at a path is secret, or its key unknown."""
        try:
            return self.around(path).secret
        except KeyError:
            return True

    def names(self) -> list[str]:
        """Return every key without positions."""
        return [dotted(key.pattern) for key in self if key.pattern[-1] != INDEX]


def _pattern(path: KeyPath) -> tuple[str, ...]:
    return tuple(INDEX if isinstance(step, int) else step for step in path)


@cache
def all_keys() -> Keys:
    """Return the keys of the settings."""
    return Keys(Settings)


def mark_of(path: KeyPath) -> Mark:
    """Return when a change of a key takes effect; entries of a map have the mark of the map."""
    return all_keys().around(path).mark


def dotted(path: tuple[str | int, ...]) -> str:
    """Join a path with dots, without `INDEX`."""
    return ".".join(str(step) for step in path if step != INDEX)


def flatten(model: BaseModel, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and value of every key that holds a value, in the order of the tree."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from flatten(value, (*path, name))
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, block in enumerate(value):
                yield from flatten(block, (*path, name, index))
        else:
            yield (*path, name), value


def secrets_in(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, SecretStr]]:
    """Yield every secret of a value of the tree, with its place."""
    match value:
        case SecretStr():
            yield path, value
        case BaseModel():
            for name in type(value).model_fields:
                yield from secrets_in(getattr(value, name), (*path, name))
        case tuple() | list():
            for n, item in enumerate(value):
                yield from secrets_in(item, (*path, n))
        case dict():
            for name, item in value.items():
                yield from secrets_in(item, (*path, name))


def in_map(path: KeyPath) -> bool:
    """Whether a value is in a map, so that it may be a plain word though its type is secret."""
    return all_keys().find(path[:-1] if isinstance(path[-1], int) else path) is None


def plain(value: Any, secret: Callable[[SecretStr], str], text: Callable[[str], str] = str) -> Any:
    """Return a value of the tree as JSON data, its secrets by `secret`, other texts by `text`."""
    match value:
        case SecretStr():
            return secret(value)
        case str() | Path():
            return text(str(value))
        case BaseModel():
            return plain(dict(value), secret, text)
        case dict():
            return {str(key): plain(inner, secret, text) for key, inner in value.items()}
        case tuple() | list():
            return [plain(inner, secret, text) for inner in value]
        case _:
            return value


def name_of(path: KeyPath, root: Any) -> str:
    """Return a path as people write it: without the position of a lone block.

    `root` is the settings, or maps and lists of the same shape, which may lack the path.
    """
    steps: list[str | int] = []
    for end, step in enumerate(path):
        key = all_keys().find(path[:end])
        if not (isinstance(step, int) and key and key.lone_block and len(root or ()) <= 1):
            steps.append(step)
        root = at_step(root, step)
    return dotted(tuple(steps))


def named(settings: Settings) -> dict[str, tuple[KeyPath, Any]]:
    """Return path and value of each key by the name that people write."""
    return {name_of(path, settings): (path, value) for path, value in flatten(settings)}


def at_step(value: Any, step: str | int) -> Any:
    """Return the value at one step, or None."""
    if isinstance(value, BaseModel):
        return getattr(value, str(step), None)
    if isinstance(value, dict):
        return value.get(step)
    is_there = isinstance(value, tuple | list) and isinstance(step, int) and step < len(value)
    return value[step] if is_there else None


def placed(value: Any, path: KeyPath, new: Any) -> Any:
    """Return a value of the tree with another one at a place in it; nothing else is copied."""
    if not path:
        return new
    inner = placed(at_step(value, path[0]), path[1:], new)
    if isinstance(value, BaseModel):
        return value.model_copy(update={str(path[0]): inner})
    if isinstance(value, dict):
        return {**value, path[0]: inner}
    return type(value)(inner if at == path[0] else each for at, each in enumerate(value))


def _walk(section: type[BaseModel], path: tuple[str, ...], around: Mark | None) -> Iterator[Key]:
    """Yield the keys of a section; `around` is the mark of those that have none of their own."""
    for name, field in section.model_fields.items():
        here = (*path, name)
        mark = next((each for each in field.metadata if each in get_args(Mark)), around)
        if mark is None:
            raise KeyError(f"{name} has no mark")
        parts = list(_parts(field.annotation))
        models = (each for each in parts if isinstance(each, type) and issubclass(each, BaseModel))
        inner = next(models, None)
        if Mapping in parts or dict in parts:
            secret = SecretStr in parts or (inner is not None and has_secrets(inner))
            yield Key(here, "json", secret, field.get_default(), mark, inner)
        elif inner is None:
            kind: Kind = "json" if tuple in parts else "value"
            yield Key(here, kind, SecretStr in parts, field.get_default(), mark)
        else:
            if tuple in parts:
                yield Key(here, "blocks", secret=False, default=field.get_default(), mark=mark)
                here = (*here, INDEX)
            yield Key(here, "section", secret=False, default=None, mark=mark)
            yield from _walk(inner, here, mark)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation: containers, and what they hold."""
    yield get_origin(annotation) or annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def has_secrets(block: type[BaseModel], *names: str) -> bool:
    """Whether a section holds secrets, in these fields or in any."""
    fields = [block.model_fields[name] for name in names or block.model_fields]
    return any(SecretStr in _parts(field.annotation) for field in fields)
