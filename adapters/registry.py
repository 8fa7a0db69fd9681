"""The register of platforms: it finds `adapters/<name>/platform.py` of every folder.

Nothing else lists the platforms. What depends on them is derived from here: the settings, the list
of members of each platform, the checks of ids, the prompt's hint, the levels of the SDKs' loggers,
the adapters that are started. docs/adapters.md tells how to add a platform.
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
"""The gateway's own chat. It is always there, its settings are the block of this name, and it has
no accounts: who somebody is its door says (adapters/door.py)."""
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
    other bots that are listened to like people. The class names in `switch` the key of its token.
    """

    switch: ClassVar[str] = "token"

    # A name is a part of the stored conversations of its account.
    name: Annotated[str, "restart"] = DEFAULT_ACCOUNT
    reactions: bool = True
    allow_bots: tuple[str, ...] = ()

    @property
    def is_on(self) -> bool:
        """Whether the account is to be run."""
        return getattr(self, self.switch) is not None

    def missing(self) -> Iterator[tuple[str, str]]:
        """Yield (key without a value, `key: value` that requires it)."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Credential:
    """A token that an account needs, as somebody who sets it up is asked for it.

    Attributes:
        key: Of the account's block.
        looks_like: A regular expression for the whole of it; only to tell one that was mixed up.
        found_at: The page on which people get it.
        steps: What they do there: "Bot, Reset Token".
    """

    key: str
    title: str
    looks_like: str
    found_at: str
    steps: str


@dataclass(frozen=True, slots=True)
class AccountReport:
    """What a platform says of the tokens of an account.

    Attributes:
        text: One sentence for the operator; it holds no secret. Where a token is refused it names
            the setting.
        bot: The bot's name, as people see it; empty where it is not known.
        lacks: What else has to be switched on: a sentence each, with the link.
        greeting: An address that opens a chat with the bot; a code behind it is sent there. Empty
            where the platform has none.
    """

    outcome: Literal["accepted", "refused", "unreachable", "not_checked"]
    text: str
    bot: str = ""
    lacks: tuple[str, ...] = ()
    greeting: str = ""


@dataclass(frozen=True, slots=True)
class Platform:
    """What the rest of Parley has to know about a platform.

    Its module imports no SDK, so that a platform that is not used costs nothing.

    Attributes:
        name: Of its folder, of its settings and in session keys: "telegram".
        title: As people write it: "Telegram".
        prompt_hint: What the model is told about how answers are shown: "You are in …".
        account: The settings of one account; None for the built-in chat.
        id_pattern: What a person's id looks like, as a regular expression for the whole of it.
        id_name: What people call such an id.
        chat_pattern: The same for the id of a chat.
        sdk: Top-level packages that this platform's folder alone may import; their loggers are
            quiet below WARNING.
        answers_strangers: Whether a stranger's mention is answered with the way to be let in; for
            platforms where a bot's profile does not show how to write to it.
        credentials: Tokens that an account cannot do without, in the order in which one gets them.
        position: Where it stands in lists that people read; equal ones stand by name.
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
    """What the gateway hands to each adapter that it builds.

    Attributes:
        history: What was said, for chats that are read from the database.
        commands: The command menu: (name, description), names without a slash.
        door: Who may come in to the built-in chat.
        share: What part of each account's budgets is this process's.
        elsewhere: Other processes that serve that chat.
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
    """Return all platforms, the built-in one as well, in the order of lists."""
    folders = (each.name for each in pkgutil.iter_modules(adapters.__path__) if each.ispkg)
    modules = [f"adapters.{folder}.platform" for folder in folders]
    # A folder without the file, such as `rendering`, is no platform.
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
    """Return how an account shows text: `renderer(settings)` of the platform's `adapter`.

    It is `Adapter.render` of the adapter that will be built from these settings, known before.
    """
    render: Renderer = load(platform).renderer(settings)
    return render


def load(platform: str) -> ModuleType:
    """Import the adapter of a platform, and its SDK with it; a later call has it at hand."""
    return _module(platform, "adapter")


def _module(platform: str, name: str) -> ModuleType:
    # By a string: an SDK takes 10 to 75 MB, and only those of configured platforms are loaded.
    return import_module(f"adapters.{platform}.{name}")


def credential(secret: SecretStr | None, setting: str) -> str:
    """Return a token or secret that an account cannot do without.

    Raises:
        AdapterRefused: It is not set; `setting` says where it belongs.
    """
    value = secret.get_secret_value().strip() if secret else ""
    if not value:
        raise AdapterRefused(f"{setting} is not set")
    return value


async def check(platform: str, settings: AccountSettings) -> AccountReport:
    """Ask a platform about the tokens of an account, without receiving anything; within 5 s.

    That is `check(settings)` in the platform's `client`; one without it is not asked.
    """
    found = find_spec(f"adapters.{platform}.client") is not None
    client = await asyncio.to_thread(_module, platform, "client") if found else None
    if (asked := getattr(client, "check", None)) is None:
        return AccountReport("not_checked", "not checked: there is no question to ask")
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
    """Return whose token a text is by its looks, where it is not the one that was asked for.

    Empty where it may be the right one: platforms change how their tokens look.
    """
    known = [
        (each.name, one, f"{each.title}'s {one.title}")
        for each in platforms()
        for one in each.credentials
    ]
    fits = [(name, one.key, words) for name, one, words in known if _fits(one, text)]
    if any((name, own) == (platform, key) for name, own, _ in fits):
        return ""
    return fits[0][2] if fits else ""


def _fits(credential: Credential, text: str) -> bool:
    return re.fullmatch(credential.looks_like, text) is not None


def build(platform: str, settings: PlatformSection, host: Host) -> Adapter:
    """Return an adapter for these settings: `build(settings, host)` of the platform's `adapter`.

    Raises:
        AdapterRefused: The settings lack what it cannot do without.
    """
    adapter: Adapter = load(platform).build(settings, host)
    return adapter
