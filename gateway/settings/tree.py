"""The settings: one frozen tree of sections, and its keys.

docs/configuration.md explains the keys; a test compares it with the tree. The environment, error
messages and `parley config show` use these keys. `load_settings` reads the values.
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
    """Add fields to a section, one per registered platform."""

    def extended(section: S) -> S:
        made = {"__base__": section, "__module__": __name__, **fields}
        return cast("S", create_model(section.__name__, __doc__=section.__doc__, **made))

    return extended


class BudgetSettings(Section):
    """Daily spending limits in US dollars; null for none."""

    daily_usd: float | None = Field(default=None, ge=0)
    sender_daily_usd: float | None = Field(default=None, ge=0)


class QuotaSettings(Section):
    """Limits per sender for messages in 24 hours and tokens since midnight; owners have none."""

    messages_per_day: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)


class QueueSettings(Section):
    """How queued messages become turns."""

    mode: Literal["collect", "followup", "interrupt"] = "collect"
    debounce_ms: int = Field(default=400, ge=0, le=60_000)
    max_pending: int = Field(default=100, ge=1, le=100_000)
    max_concurrent_turns: int = Field(default=64, ge=1, le=10_000)
    max_attempts: Annotated[int, "next-turn"] = Field(default=3, ge=1, le=100)
    grace_s: float = Field(default=30, ge=0, le=3600)


class SessionSettings(Section):
    """When a new session starts and who shares one."""

    reset: Literal["none", "daily", "idle", "both"] = "none"
    timezone: str = "UTC"
    at_hour: int = Field(default=4, ge=0, le=23)
    idle_minutes: int = Field(default=1440, ge=1)
    # Live, since it selects an incoming message's conversation.
    groups: Annotated[Literal["per_user", "shared"], "live"] = "per_user"

    @field_validator("timezone")
    @classmethod
    def _timezone_exists(cls, name: str) -> str:
        try:
            return name if name == "UTC" else ZoneInfo(name).key
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise ValueError("must be an IANA time zone, such as Europe/Berlin") from exc


class GroupRule(Section):
    """When and whom the bot answers in a group, and whether it notes other messages."""

    respond: Literal["mention", "always", "never"] = "mention"
    context: bool = False
    senders: Literal["allowed", "anyone"] = "allowed"


@_with_fields(dict.fromkeys(account_types(), (tuple[str, ...], ())))
class AccessSettings(Section):
    """Who may use the bot (a list of ids per platform) and which messages it reads."""

    # Some platforms have numeric ids.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    mode: Literal["pairing", "allowlist", "open"] = "pairing"
    owners: tuple[str, ...] = ()
    groups: Mapping[str, GroupRule] = Field(default={})
    rate_per_min: int = Field(default=60, ge=0, le=100_000)

    def listed(self, platform: str) -> tuple[str, ...]:
        """Return the allowed ids of a platform."""
        ids: tuple[str, ...] = getattr(self, platform) if platform in account_types() else ()
        return ids


class AttachmentSettings(Section):
    """Files that come with messages."""

    # Open pages already know the value.
    max_bytes: Annotated[int, "restart"] = Field(default=20_000_000, ge=0, le=50_000_000)


@_with_fields({
    name: (GenericAlias(tuple, (account, ...)), (account(),))
    for name, account in account_types().items()
})
class PlatformSettings(Section):
    """The accounts of each platform; an account is active if it has a token."""

    def accounts(self, platform: str) -> tuple[AccountSettings, ...]:
        """Return a platform's account blocks."""
        blocks: tuple[AccountSettings, ...] = getattr(self, platform)
        return blocks

    def on(self) -> list[tuple[str, AccountSettings]]:
        """Return (platform, block) of each active account in list order."""
        return [
            (name, block)
            for name in account_types()
            for block in self.accounts(name)
            if block.is_on
        ]


MOST_DAYS = 100_000
Days = Annotated[int, Field(ge=1, le=MOST_DAYS)]


def is_server(url: str) -> bool:
    """Whether a `storage.url` names a server rather than a file."""
    return url.startswith(("postgresql://", "postgres://"))


class StorageSettings(Section):
    """Where data is stored; `url` null means SQLite in PARLEY_HOME."""

    url: SecretStr | None = None
    direct_url: SecretStr | None = None
    connections: int = Field(default=6, ge=2, le=64)
    migrate: Literal["run", "wait"] = "run"
    raw_days: Annotated[Days, "live"] = 30


class RetentionSettings(Section):
    """Days to keep data; null means until `parley forget`."""

    transcript_days: Days | None = None
    files_days: Days | None = None
    files_max_bytes: int | None = Field(default=None, ge=0, le=10**15)
    # At least 2, since the budgets' day may span two dates in another time zone.
    ledger_days: int | None = Field(default=None, ge=2, le=MOST_DAYS)
    audit_days: Days | None = None

    @property
    def limits_files(self) -> bool:
        """Whether any files expire."""
        return self.files_days is not None or self.files_max_bytes is not None


class BackupSettings(Section):
    """Scheduled backups; `to` is a folder (may be relative to PARLEY_HOME), null for none."""

    to: Path | None = None
    every_h: int = Field(default=24, ge=1, le=8_784)
    keep: int = Field(default=7, ge=1, le=10_000)


class AlertSettings(Section):
    """The chats and the webhook that receive alerts (docs/alerts.md)."""

    # Restart, since it decides whether the poster is started.
    enabled: Annotated[bool, "restart"] = True
    to: tuple[str, ...] = ()
    webhook: Annotated[SecretStr | None, "restart"] = None
    webhook_secret: SecretStr | None = None
    webhook_when: Literal["unheard", "always"] = "unheard"
    disk_free_bytes: int = Field(default=500_000_000, ge=0, le=10**15)


class LoggingSettings(Section):
    """Logging; `file` null means PARLEY_HOME/logs/parley.jsonl, false none."""

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
        # A path with an unknown user stays unchanged.
        return value.lower() != "false" and Path(os.path.expanduser(value))  # noqa: PTH111


class MetricsSettings(Section):
    """`/metrics` on the web port; other machines need `token`."""

    token: SecretStr | None = None


class TelemetrySettings(Section):
    """Traces for an OpenTelemetry collector at `otlp_endpoint` (OTLP over HTTP), null for none."""

    otlp_endpoint: str | None = None


Mark = Literal["live", "next-turn", "restart"]
"""When a changed setting takes effect in a running gateway; an annotation of its field.

live: about a second after the reload. next-turn: for turns that begin after it. restart: at the
next start. tests/stories prove the first two for each key.
"""


class Settings(Section):
    """The whole tree. `home` is PARLEY_HOME, absolute, which may not exist yet.

    Each section has a `Mark`, which its keys inherit unless they have their own.
    """

    # Keep values, which may be secrets, out of pydantic's error texts.
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
    # Restart, since plugin code is already loaded.
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
        pattern: Names from the root; `INDEX` matches any position in a list of blocks.
        kind: "blocks" is a list of sections, "json" any other list or map.
        block: The section type of a map's values, if they are sections.
    """

    pattern: tuple[str, ...]
    kind: Kind
    secret: bool
    default: Any
    mark: Mark
    block: type[BaseModel] | None = None

    @property
    def lone_block(self) -> bool:
        """Whether a single block may replace the list."""
        return self.kind == "blocks" and bool(self.default)


class Keys:
    """All keys below a settings model."""

    def __init__(self, root: type[BaseModel]) -> None:
        self._keys = {key.pattern: key for key in _walk(root, (), None)}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def find(self, path: KeyPath) -> Key | None:
        """Return the key at a path; a single block's position may be omitted."""
        return self._keys.get(_pattern(self.complete(path)[0]))

    def complete(self, path: KeyPath) -> tuple[KeyPath, KeyPath | None]:
        """Insert an omitted position 0 of a single block.

        Returns:
            The full path, and the path of the list whose position was omitted, if any.
        """
        for end in range(1, len(path)):
            key = self._keys.get(_pattern(path[:end]))
            if key and key.lone_block and not isinstance(path[end], int):
                return (*path[:end], 0, *path[end:]), path[:end]
        return path, None

    def around(self, path: KeyPath) -> Key:
        """Return the innermost key at or above a path.

        Raises:
            KeyError: No key contains the path.
        """
        for end in range(len(path), 0, -1):
            if key := self.find(path[:end]):
                return key
        raise KeyError(dotted(path))

    def is_secret(self, path: KeyPath) -> bool:
        """Whether the value at a path is secret or its key unknown."""
        try:
            return self.around(path).secret
        except KeyError:
            return True

    def names(self) -> list[str]:
        """Return all keys without positions."""
        return [dotted(key.pattern) for key in self if key.pattern[-1] != INDEX]


def _pattern(path: KeyPath) -> tuple[str, ...]:
    return tuple(INDEX if isinstance(step, int) else step for step in path)


@cache
def all_keys() -> Keys:
    """Return the keys of the settings."""
    return Keys(Settings)


def mark_of(path: KeyPath) -> Mark:
    """Return a key's mark; entries of a map have the map's."""
    return all_keys().around(path).mark


def dotted(path: tuple[str | int, ...]) -> str:
    """Join a path with dots, without `INDEX`."""
    return ".".join(str(step) for step in path if step != INDEX)


def flatten(model: BaseModel, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of every key with a value, in tree order."""
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
    """Yield path and secret of every secret in a value of the tree."""
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
    """Whether a value is in a map, where a secret-typed value may be an ordinary word."""
    return all_keys().find(path[:-1] if isinstance(path[-1], int) else path) is None


def plain(value: Any, secret: Callable[[SecretStr], str], text: Callable[[str], str] = str) -> Any:
    """Convert a value of the tree to JSON data, with `secret` for secrets, `text` for strings."""
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
    """Return a path as people write it, without a single block's position.

    `root` is the settings or equally shaped maps and lists, which may lack the path.
    """
    steps: list[str | int] = []
    for end, step in enumerate(path):
        key = all_keys().find(path[:end])
        if not (isinstance(step, int) and key and key.lone_block and len(root or ()) <= 1):
            steps.append(step)
        root = at_step(root, step)
    return dotted(tuple(steps))


def named(settings: Settings) -> dict[str, tuple[KeyPath, Any]]:
    """Return path and value of each key by its written name."""
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
    """Return a value of the tree with one nested value replaced."""
    if not path:
        return new
    inner = placed(at_step(value, path[0]), path[1:], new)
    if isinstance(value, BaseModel):
        return value.model_copy(update={str(path[0]): inner})
    if isinstance(value, dict):
        return {**value, path[0]: inner}
    return type(value)(inner if at == path[0] else each for at, each in enumerate(value))


def _walk(section: type[BaseModel], path: tuple[str, ...], around: Mark | None) -> Iterator[Key]:
    """Yield the keys of a section; `around` is the inherited mark."""
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
    """Yield the types in an annotation: containers and their contents."""
    yield get_origin(annotation) or annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def has_secrets(block: type[BaseModel], *names: str) -> bool:
    """Whether a section contains secrets."""
    fields = [block.model_fields[name] for name in names or block.model_fields]
    return any(SecretStr in _parts(field.annotation) for field in fields)
