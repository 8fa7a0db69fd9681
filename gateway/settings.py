"""The settings: one frozen tree, read once at start; the only file that reads the environment.

Lowest first: defaults, parley.yaml, `PARLEY_SECTION__KEY`, command line. docs/configuration.md
lists every key.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import platformdirs
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from adapters.settings import DiscordSettings, SlackSettings, TelegramSettings, WebSettings
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
from gateway.complaints import complaint
from gateway.crosschecks import contradictions, doubts, without_effect
from gateway.errors import SettingsError
from gateway.providers import completions
from gateway.settingkeys import Keys, flatten
from gateway.sources import Sources

CONFIG_NAME = "parley.yaml"
MIN_MAPPED_CHARS = 8
"""Shorter values of the environment or the headers of an MCP server are words such as `true`."""


class BudgetSettings(Section):
    """Spending limits per day in US dollars; null: none."""

    daily_usd: float | None = Field(default=None, ge=0)
    sender_daily_usd: float | None = Field(default=None, ge=0)


class QueueSettings(Section):
    """From an accepted message to its turn."""

    mode: Literal["collect", "followup", "interrupt"] = "collect"
    debounce_ms: int = Field(default=400, ge=0, le=60_000)
    max_pending: int = Field(default=100, ge=1, le=100_000)
    max_concurrent_turns: int = Field(default=64, ge=1, le=10_000)
    max_attempts: int = Field(default=3, ge=1, le=100)
    give_up_after_s: float = Field(default=3600, ge=0)
    grace_s: float = Field(default=30, ge=0, le=3600)


class CommandSettings(Section):
    """What becomes of a text that looks like a command and is none."""

    unknown: Literal["answer", "model"] = "answer"


class DeliverySettings(Section):
    """How long an answer is tried for that cannot be delivered; then it is a dead letter."""

    retry_for_s: float = Field(default=86_400, gt=0, le=30 * 86_400)


class SessionSettings(Section):
    """When a session starts anew, and who shares one."""

    reset: Literal["none", "daily", "idle", "both"] = "none"
    timezone: str = "UTC"
    at_hour: int = Field(default=4, ge=0, le=23)
    idle_minutes: int = Field(default=1440, ge=1)
    groups: Literal["per_user", "shared"] = "per_user"

    @field_validator("timezone")
    @classmethod
    def _timezone_exists(cls, name: str) -> str:
        if name != "UTC":
            try:
                ZoneInfo(name)
            except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
                raise ValueError("must be an IANA time zone, such as Europe/Berlin") from exc
        return name


class GroupRule(Section):
    """What holds in a group: when to answer, whom, and whether the rest is read along.

    `respond`: to what addresses the bot, to everything, or never. `context`: what was said to
    others is told with the next answer there. `senders`: those who are allowed, or anyone there
    (without tools that have side effects).
    """

    respond: Literal["mention", "always", "never"] = "mention"
    context: bool = False
    senders: Literal["allowed", "anyone"] = "allowed"


class AccessSettings(Section):
    """Who may talk to the bot; ids as the platform writes them.

    `groups`: rules by `platform:chat`, `platform:*` or `*`, the closest one holds. `rate_per_min`:
    messages that one sender may send in a minute; 0 for any number, owners are exempt.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    mode: Literal["pairing", "allowlist", "open"] = "pairing"
    owners: tuple[str, ...] = ()
    telegram: tuple[str, ...] = ()
    discord: tuple[str, ...] = ()
    slack: tuple[str, ...] = ()
    groups: Mapping[str, GroupRule] = Field(default={})
    rate_per_min: int = Field(default=60, ge=0, le=100_000)


class AttachmentSettings(Section):
    """Files that come with messages; `text_chars`: as much of a text file is shown to the model."""

    max_bytes: int = Field(default=20_000_000, ge=0, le=50_000_000)
    text_chars: int = Field(default=50_000, ge=0, le=1_000_000)


class PlatformSettings(Section):
    """The accounts of each platform; an account is on when it has its token."""

    telegram: tuple[TelegramSettings, ...] = (TelegramSettings(),)
    discord: tuple[DiscordSettings, ...] = (DiscordSettings(),)
    slack: tuple[SlackSettings, ...] = (SlackSettings(),)

    @property
    def is_any_on(self) -> bool:
        """Whether any account is to be run."""
        return (
            any(block.is_on for block in self.telegram)
            or any(block.is_on for block in self.discord)
            or any(block.is_on for block in self.slack)
        )


MOST_DAYS = 100_000
MOST_BYTES = 10**15
Days = Annotated[int, Field(ge=1, le=MOST_DAYS)]


class StorageSettings(Section):
    """Where the data lies; `url` null: SQLite in PARLEY_HOME."""

    url: str | None = None
    raw_days: Days = 30


class RetentionSettings(Section):
    """How long what is stored is kept, in days; null: until `parley forget`.

    `transcript_days`: messages out of view, and conversations that rest for so long. `audit_days`:
    what `parley audit list` shows. `search`: "transcript" for as long as the messages, or days.
    """

    transcript_days: Days | None = None
    files_days: Days | None = None
    files_max_bytes: int | None = Field(default=None, ge=0, le=MOST_BYTES)
    journal_days: Days | None = None
    outbox_days: Days | None = None
    # Budgets sum up the current day, which is two by the clock of another place.
    ledger_days: int | None = Field(default=None, ge=2, le=MOST_DAYS)
    audit_days: Days | None = None
    search: Literal["transcript"] | Days = "transcript"

    @field_validator("search", mode="wrap")
    @classmethod
    def _transcript_or_days(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            return read(value)
        except ValidationError as exc:
            raise ValueError(f"must be 'transcript' or an integer from 1 to {MOST_DAYS}") from exc

    @property
    def limits_files(self) -> bool:
        """Whether any file may go."""
        return self.files_days is not None or self.files_max_bytes is not None


class LoggingSettings(Section):
    """What is logged, and where to; `file` null: PARLEY_HOME/logs/parley.jsonl, false: none."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"
    file: Path | Literal[False] | None = None

    @field_validator("file", mode="before")
    @classmethod
    def _path_or_false(cls, value: Any) -> Any:
        if value is None or value is False or isinstance(value, Path):
            return value
        if not isinstance(value, str) or not value:
            raise ValueError("must be a path, false or null")
        if value.lower() == "false":
            return False
        try:
            return Path(value).expanduser()
        except RuntimeError as exc:
            raise ValueError("must not name a user that there is not") from exc


class Settings(Section):
    """The whole tree. `home` is PARLEY_HOME: absolute, not necessarily there yet."""

    # Values may be secrets: pydantic's own text of an error must not hold them.
    model_config = ConfigDict(hide_input_in_errors=True)

    home: Path
    model: ModelSettings = ModelSettings()
    fallbacks: tuple[ModelSettings, ...] = ()
    agent: AgentSettings = AgentSettings()
    compression: CompressionSettings = CompressionSettings()
    auxiliary: AuxiliarySettings = AuxiliarySettings()
    context: ContextSettings = ContextSettings()
    prompt_caching: CachingSettings = CachingSettings()
    budget: BudgetSettings = BudgetSettings()
    queue: QueueSettings = QueueSettings()
    delivery: DeliverySettings = DeliverySettings()
    commands: CommandSettings = CommandSettings()
    sessions: SessionSettings = SessionSettings()
    access: AccessSettings = AccessSettings()
    attachments: AttachmentSettings = AttachmentSettings()
    tools: ToolSettings = ToolSettings()
    plugins: PluginSettings = PluginSettings()
    platforms: PlatformSettings = PlatformSettings()
    web: WebSettings = WebSettings()
    storage: StorageSettings = StorageSettings()
    retention: RetentionSettings = RetentionSettings()
    logging: LoggingSettings = LoggingSettings()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load_settings` found.

    Attributes:
        settings: The effective values.
        values: The same by dotted key, in the order of the tree.
        origins: Dotted key → "default", the file, the variable or the option it comes from.
        warnings: Old spellings and values without effect, for the operator.
        config_file: The file that was read; None if there is none.
    """

    settings: Settings
    values: dict[str, Any]
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()
    config_file: Path | None = None


def load_settings(
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read all sources once.

    Args:
        config: The file named by `--config`; it must exist. None: PARLEY_CONFIG, else parley.yaml
            in PARLEY_HOME if it is there.
        environ: Instead of the process environment.
        overrides: Command-line options, dotted key → value; None means not given. "home" as well.

    Raises:
        SettingsError: One line for each problem, all of them at once.
    """
    environ = os.environ if environ is None else environ
    options = dict(overrides or {})
    home, home_origin = _home(environ, options.pop("home", None))
    keys = Keys(Settings)
    sources = Sources(keys)
    config_file = _add_config(sources, config, environ, home)
    sources.add_environment(environ)
    sources.add_options(options)
    settings, added = _with_providers(_validated(sources, keys, home), environ)
    settings, added_to_auxiliary = _with_auxiliary(settings, environ)
    values = {sources.name(path): value for path, value in flatten(settings)}
    origins = {sources.name(path): sources.origin(path) for path, _ in flatten(settings)}
    origins |= {"home": home_origin, **added, **added_to_auxiliary}
    _refuse([
        f"{key}: {text} ({_origin(key, origins)})" for key, text in contradictions(settings, values)
    ])
    warnings = (*sources.warnings, *without_effect(keys, values), *doubts(settings))
    return Loaded(settings, values, origins, warnings, config_file)


def _origin(name: str, origins: Mapping[str, str]) -> str:
    """Return where a key comes from; of a list of blocks, where its first block does."""
    inside = (origin for key, origin in origins.items() if key.startswith(f"{name}."))
    return origins.get(name) or next(inside, "default")


def secret_values(settings: Settings) -> tuple[str, ...]:
    """Return every configured secret, for the redaction of logs."""
    return tuple(secret for _, value in flatten(settings) for secret in _secrets_in(value))


def _secrets_in(value: Any) -> Iterator[str]:
    """Yield the secrets of a value; what stands in a map may also be a plain word."""
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case tuple() | list():
            for item in value:
                yield from _secrets_in(item)
        case BaseModel():
            for _, inner in flatten(value):
                yield from _secrets_in(inner)
        case dict():
            for item in value.values():
                yield from (text for text in _secrets_in(item) if len(text) >= MIN_MAPPED_CHARS)


def _home(environ: Mapping[str, str], option: str | Path | None) -> tuple[Path, str]:
    if option:
        return _expanded(option, "--home").absolute(), "--home"
    if named := environ.get("PARLEY_HOME"):
        return _expanded(named, "PARLEY_HOME").absolute(), "PARLEY_HOME"
    return Path(platformdirs.user_data_dir("parley")), "default"


def _expanded(path: str | Path, origin: str) -> Path:
    """Return a path whose "~" stands for the home of a user.

    Raises:
        SettingsError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise SettingsError(f"{origin}: {str(path)!r} names a user that there is not") from exc


def _add_config(
    sources: Sources, config: Path | None, environ: Mapping[str, str], home: Path
) -> Path | None:
    named = config or environ.get("PARLEY_CONFIG") or None
    origin = "--config" if config else "PARLEY_CONFIG"
    path = _expanded(named, origin) if named else home / CONFIG_NAME
    if named or _is_there(path):
        sources.add_file(path, str(path) if named else CONFIG_NAME)
        return path
    return None


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise SettingsError(f"{path}: cannot be read: {exc.strerror}") from exc
    return True


def _validated(sources: Sources, keys: Keys, home: Path) -> Settings:
    tree = sources.tree()
    problems = list(sources.problems)
    try:
        settings = Settings.model_validate({**tree, "home": home})
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            path = error["loc"]
            problems.append(complaint(error, keys, sources.name(path), sources.origin(path)))
        raise SettingsError("\n".join(problems)) from exc
    _refuse(problems)
    return settings


def _with_providers(
    settings: Settings, environ: Mapping[str, str]
) -> tuple[Settings, dict[str, str]]:
    """Complete every model block; return the origins of what was added as well."""
    origins: dict[str, str] = {}
    blocks = []
    names = ["model", *(f"fallbacks.{index}" for index in range(len(settings.fallbacks)))]
    for name, block in zip(names, (settings.model, *settings.fallbacks), strict=True):
        added = completions(block, environ, name)
        blocks.append(
            block.model_copy(update={field: value for field, (value, _) in added.items()})
        )
        origins |= {f"{name}.{field}": origin for field, (_, origin) in added.items()}
    update = {"model": blocks[0], "fallbacks": tuple(blocks[1:])}
    return settings.model_copy(update=update), origins


def _with_auxiliary(
    settings: Settings, environ: Mapping[str, str]
) -> tuple[Settings, dict[str, str]]:
    """Complete the summary model's block where it has a provider, server or key of its own."""
    block = settings.auxiliary.compression
    if block.provider == "main" or (
        block.provider == "auto" and not (block.base_url or block.api_key)
    ):
        return settings, {}
    name = "auxiliary.compression"
    own = ModelSettings(provider=block.provider, base_url=block.base_url, api_key=block.api_key)
    added = completions(own, environ, name)
    completed = block.model_copy(update={field: value for field, (value, _) in added.items()})
    update = {"auxiliary": AuxiliarySettings(compression=completed)}
    origins = {f"{name}.{field}": origin for field, (_, origin) in added.items()}
    return settings.model_copy(update=update), origins


def _refuse(problems: list[str]) -> None:
    if problems:
        raise SettingsError("\n".join(problems))
