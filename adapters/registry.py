"""The registry of platforms: finds the `adapters/<name>/platform.py` of every folder.

No other code lists the platforms: settings, member lists, id checks, prompt hints, logger levels
and adapters are derived from it. docs/adapters.md explains how to add a platform.
"""

import asyncio
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, SecretStr

import adapters
from adapters.base import ALONE, Adapter, Elsewhere, History, Intake, Renderer, Share
from adapters.door import Door
from adapters.errors import AdapterDisconnected, AdapterRefused
from agent.network import UnusableEnvironment

BUILT_IN = "web"
"""The gateway's own chat. It always exists, its settings are the section of this name, and it has
no accounts: users sign in (adapters/door.py)."""
LAST = 100
DEFAULT_ACCOUNT = "default"
CHECK_WITHIN_S = 5.0


class PlatformSection(BaseModel):
    """Base of every platform section: frozen, unknown keys are errors.

    A word in an annotation says when a change takes effect (`Mark` in gateway/settings/tree.py).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class AccountSettings(PlatformSection):
    """Base settings of one account: a bot or an app. It is enabled once it has its token.

    `reactions`: whether to mark messages as received, answered or failed. `allow_bots`: ids of
    other bots whose messages are read like those of users. `switch`: the key of its token.
    """

    switch: ClassVar[str] = "token"

    # The account's name is part of its stored conversations.
    name: Annotated[str, "restart"] = DEFAULT_ACCOUNT
    reactions: bool = True
    allow_bots: tuple[str, ...] = ()

    @property
    def is_on(self) -> bool:
        """Whether the account has its token."""
        return getattr(self, self.switch) is not None

    def missing(self) -> Iterator[tuple[str, str]]:
        """Yield (key without a value, `key: value` that requires it)."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Credential:
    """A token that an account needs and that its setup requests.

    Attributes:
        looks_like: A regular expression for the whole token; only used to detect a mixed-up one.
        found_at: The page that shows it.
        steps: Instructions for that page: "Bot, Reset Token".
    """

    key: str
    title: str
    looks_like: str
    found_at: str
    steps: str


@dataclass(frozen=True, slots=True)
class AccountReport:
    """The result of checking an account's tokens.

    Attributes:
        text: One sentence for the operator, without secrets. It names the setting of a refused
            token.
        lacks: Further options to turn on: one sentence each, with the link.
        greeting: A URL that opens a chat with the bot; a code appended to it is sent there.
    """

    outcome: Literal["accepted", "refused", "unreachable", "not_checked"]
    text: str
    bot: str = ""
    lacks: tuple[str, ...] = ()
    greeting: str = ""


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform's entry in the registry.

    Its module imports no SDK, so that an unused platform costs nothing.

    Attributes:
        name: Name of its folder and settings, also used in session keys: "telegram".
        prompt_hint: How the platform displays answers, for the model: "You are in …".
        account: Settings class of one account; None for the built-in chat.
        id_pattern: A regular expression for a whole user id; `chat_pattern` is one for a chat id.
        sdk: Top-level packages that only this platform's folder may import; their loggers are
            silent below WARNING.
        answers_strangers: Whether to answer a stranger's mention with instructions to get access;
            for platforms whose bot profiles do not show how to contact the bot.
        credentials: Tokens that an account needs, in the order of the setup.
        position: Position in lists, sorted before the name.
    """

    name: str
    title: str
    prompt_hint: str
    account: type[AccountSettings] | None = None
    id_pattern: str = r"[A-Za-z0-9_]+"
    id_name: str = "id"
    chat_pattern: str = r"[A-Za-z0-9_]+"
    sdk: tuple[str, ...] = ()
    answers_strangers: bool = False
    credentials: tuple[Credential, ...] = ()
    position: int = LAST


@dataclass(frozen=True, slots=True)
class Host:
    """The gateway's services for each adapter that it builds.

    Attributes:
        history: For the web chat, like `door` and `elsewhere`.
        commands: The command menu: (name, description), names without a slash.
        share: This process's share of each account's budgets.
    """

    intake: Intake
    history: History
    commands: tuple[tuple[str, str], ...]
    max_file_bytes: int
    door: Door
    share: Share = field(default_factory=Share)
    elsewhere: Elsewhere = ALONE


@cache
def platforms() -> tuple[Platform, ...]:
    """Return all platforms, including the built-in one, in display order."""
    folders = (each.name for each in pkgutil.iter_modules(adapters.__path__) if each.ispkg)
    modules = [f"adapters.{folder}.platform" for folder in folders]
    # A folder without the file, such as `rendering`, is not a platform.
    found = [import_module(module).PLATFORM for module in modules if find_spec(module)]
    return tuple(sorted(found, key=lambda each: (each.position, each.name)))


@cache
def account_types() -> dict[str, type[AccountSettings]]:
    """Return the account settings class of each platform, without the built-in chat."""
    return {each.name: each.account for each in platforms() if each.account is not None}


@cache
def by_name() -> dict[str, Platform]:
    """Return all platforms by name."""
    return {each.name: each for each in platforms()}


def account_of(settings: PlatformSection) -> str:
    """Return the account name of a settings section; the built-in chat has one account."""
    return settings.name if isinstance(settings, AccountSettings) else DEFAULT_ACCOUNT


def renderer(platform: str, settings: PlatformSection) -> Renderer:
    """Return `Adapter.render` of the adapter that these settings would build."""
    render: Renderer = load(platform).renderer(settings)
    return render


def load(platform: str, name: str = "adapter") -> ModuleType:
    """Import a platform's adapter or another of its modules, with its SDK."""
    # By name: an SDK takes 10 to 75 MB, and only configured platforms are loaded.
    return import_module(f"adapters.{platform}.{name}")


def credential(secret: SecretStr | None, setting: str) -> str:
    """Return a token or secret; raise AdapterRefused with the setting's name if missing."""
    value = secret.get_secret_value().strip() if secret else ""
    if not value:
        raise AdapterRefused(f"{setting} is not set")
    return value


async def check(platform: str, settings: AccountSettings) -> AccountReport:
    """Check an account's tokens with `check(settings)` of the platform's `client`, within 5 s.

    Raises the errors of `Receives.run`.
    """
    found = find_spec(f"adapters.{platform}.client") is not None
    client = await asyncio.to_thread(load, platform, "client") if found else None
    if (asked := getattr(client, "check", None)) is None:
        return AccountReport("not_checked", "not checked: there is nothing to ask")
    try:
        async with asyncio.timeout(CHECK_WITHIN_S):
            report: AccountReport = await asked(settings)
    except (AdapterRefused, UnusableEnvironment) as exc:
        return AccountReport("refused", str(exc))
    except (AdapterDisconnected, TimeoutError) as exc:
        why = f" ({exc})" if str(exc) else ""
        title = by_name()[platform].title
        return AccountReport("unreachable", f"{title} does not answer now{why}")
    return report


def other_owner(text: str, platform: str, key: str) -> str:
    """Return the name of the token that a text resembles, or "" if it may be the right one."""
    fits = {
        (each.name, one.key): f"{each.title}'s {one.title}"
        for each in platforms()
        for one in each.credentials
        if re.fullmatch(one.looks_like, text)
    }
    return "" if (platform, key) in fits else next(iter(fits.values()), "")


def build(platform: str, settings: PlatformSection, host: Host) -> Adapter:
    """Build an adapter with `build(settings, host)` of the platform's `adapter` module."""
    adapter: Adapter = load(platform).build(settings, host)
    return adapter
