"""The register of platforms: it finds `adapters/<name>/platform.py` of every folder.

Nothing else lists the platforms: settings, lists of members, checks of ids, prompt hints, levels of
loggers and adapters are derived from it. docs/adapters.md explains how to add a platform.
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
"""The gateway's own chat. It always exists, its settings are the block of this name, and it has no
accounts: users sign in (adapters/door.py)."""
LAST = 100
DEFAULT_ACCOUNT = "default"
CHECK_WITHIN_S = 5.0


class PlatformSection(BaseModel):
    """Base of every platform block: frozen, unknown keys are errors.

    A word in an annotation says when a change takes effect (`Mark` in gateway/settings/tree.py).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class AccountSettings(PlatformSection):
    """Base of the block of one account: a bot or an app. It is on once it has its token.

    `reactions`: whether a message is marked as received, answered or failed. `allow_bots`: ids of
    other bots whose messages are read like those of users. `switch`: the key of its token.
    """

    switch: ClassVar[str] = "token"

    # A name is a part of the stored conversations of its account.
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
    """A token that an account needs, and that its set-up asks for.

    Attributes:
        key: In the account's block.
        looks_like: A regular expression for the whole token; only to notice a mixed-up one.
        found_at: The page that shows it.
        steps: What to do there: "Bot, Reset Token".
    """

    key: str
    title: str
    looks_like: str
    found_at: str
    steps: str


@dataclass(frozen=True, slots=True)
class AccountReport:
    """A platform's check of the tokens of an account.

    Attributes:
        text: One sentence for the operator, without secrets. It names the setting of a refused
            token.
        lacks: Further switches to turn on: a sentence each, with the link.
        greeting: An address that opens a chat with the bot; a code behind it is sent there.
    """

    outcome: Literal["accepted", "refused", "unreachable", "not_checked"]
    text: str
    bot: str = ""
    lacks: tuple[str, ...] = ()
    greeting: str = ""


@dataclass(frozen=True, slots=True)
class Platform:
    """The entry of a platform in the register.

    Its module imports no SDK, so that a platform that is not used costs nothing.

    Attributes:
        name: Of its folder, of its settings and in session keys: "telegram".
        prompt_hint: How answers are shown, for the model: "You are in …".
        account: The settings of one account; None for the built-in chat.
        id_pattern: A regular expression for the whole id of a user, as `chat_pattern` of a chat.
        id_name: The name of a user's id for people.
        sdk: Top-level packages that this platform's folder alone may import; their loggers are
            quiet below WARNING.
        answers_strangers: A stranger's mention is answered with the way to be let in; for platforms
            where a bot's profile does not show how to write to it.
        credentials: Tokens that an account needs, in the order of the set-up.
        position: Its place in lists, before that of its name.
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
    """The gateway's parts for each adapter that it builds.

    Attributes:
        history: Of the web chat, as are `door` and `elsewhere`.
        commands: The command menu: (name, description), names without a slash.
        share: Of each account's budgets.
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
    """Return all platforms, including the built-in one, in the order of lists."""
    folders = (each.name for each in pkgutil.iter_modules(adapters.__path__) if each.ispkg)
    modules = [f"adapters.{folder}.platform" for folder in folders]
    # A folder without the file, such as `rendering`, is not a platform.
    found = [import_module(module).PLATFORM for module in modules if find_spec(module)]
    return tuple(sorted(found, key=lambda each: (each.position, each.name)))


@cache
def account_types() -> dict[str, type[AccountSettings]]:
    """Return the settings of an account by platform, without the built-in chat."""
    return {each.name: each.account for each in platforms() if each.account is not None}


@cache
def by_name() -> dict[str, Platform]:
    """Return all platforms by name."""
    return {each.name: each for each in platforms()}


def account_of(settings: PlatformSection) -> str:
    """Return the name of the account of a block; the built-in chat has one account."""
    return settings.name if isinstance(settings, AccountSettings) else DEFAULT_ACCOUNT


def renderer(platform: str, settings: PlatformSection) -> Renderer:
    """Return `Adapter.render` of the adapter that will be built from these settings."""
    render: Renderer = load(platform).renderer(settings)
    return render


def load(platform: str, name: str = "adapter") -> ModuleType:
    """Import the adapter of a platform, or another of its modules, with its SDK."""
    # By a string: an SDK takes 10 to 75 MB, and only those of configured platforms are loaded.
    return import_module(f"adapters.{platform}.{name}")


def credential(secret: SecretStr | None, setting: str) -> str:
    """Return a token or secret, or raise AdapterRefused with the name of the setting."""
    value = secret.get_secret_value().strip() if secret else ""
    if not value:
        raise AdapterRefused(f"{setting} is not set")
    return value


async def check(platform: str, settings: AccountSettings) -> AccountReport:
    """Check an account's tokens by `check(settings)` of the platform's `client`, within 5 s.

    That one raises as `Receives.run`.
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
    """Return the name of the token that a text looks like, "" if it may be the right one."""
    fits = {
        (each.name, one.key): f"{each.title}'s {one.title}"
        for each in platforms()
        for one in each.credentials
        if re.fullmatch(one.looks_like, text)
    }
    return "" if (platform, key) in fits else next(iter(fits.values()), "")


def build(platform: str, settings: PlatformSection, host: Host) -> Adapter:
    """Return an adapter by `build(settings, host)` of the platform's `adapter`."""
    adapter: Adapter = load(platform).build(settings, host)
    return adapter
