"""The register of chat commands: what a command is and is given, and which one a message is.

A file of this folder is a command, or a few that are one idea. Nothing else names it: menus,
`/help`, routes and rate limits follow from the decorator above its function (docs/commands.md).
"""

import pkgutil
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar

from sqlalchemy import Connection

import gateway.commands
from adapters.messages import Choice, InboundMessage, MessageRef
from agent.models.catalog import Prices, facts_of
from agent.money.cache_simulator import CacheRules
from agent.settings import FactsSettings
from gateway.access.pairing import Happening, Pairing
from gateway.agent_ports.journal import Journal
from gateway.context.parts import TurnParts
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import AskedQuestion
from gateway.storage.queue.inbox import InboxEntry
from gateway.storage.queue.leases import Held
from gateway.storage.reports.spending import CachePrices

LAST = 1000
Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """The current figures of a conversation's model and its context engine.

    Attributes:
        window_tokens: Of the main model; a provider may give the account less of it.
        threshold_tokens: Where compression starts; None if it is off or the engine does not say.
        fixed_tokens: Estimate of system prompt and tool schemas.
        chosen: Whether it was chosen for the conversation, with `/model`.
        gone: The model that was chosen and is no longer configured; may be empty.
        compresses: Whether the view is compacted at all (`compression.enabled`).
        summaries: The models that write summaries, with their windows and whether they rest.
        tools_off: Why enabled tools are off; empty if none is.
    """

    name: str
    window_tokens: int
    threshold_tokens: int | None
    engine: str
    fixed_tokens: int
    chosen: bool = False
    gone: str = ""
    compresses: bool = True
    summaries: str = ""
    tools_off: str = ""


@dataclass(frozen=True, slots=True)
class MoneyRules:
    """Prices and limits.

    Attributes:
        prices: Of the models in use, by the name in the ledger.
        rules: Of their prompt caches, instead of those of the catalog.
        sender_daily_usd: Limit of a sender; None for no limit.
        daily_usd: Limit of all senders together; chats do not show the amount.
    """

    prices: Mapping[str, Prices] = field(default_factory=dict)
    rules: Mapping[str, CacheRules] = field(default_factory=dict)
    sender_daily_usd: float | None = None
    daily_usd: float | None = None
    timezone: str = "UTC"

    def rates(self, name: str) -> CachePrices | None:
        """Return prices and cache rules of a model; None if they are not known."""
        facts = replace(facts_of(name, FactsSettings()), prices=self.prices.get(name))
        known = CachePrices.of(facts)
        return known and known._replace(rules=self.rules.get(name, known.rules))


@dataclass(frozen=True, slots=True)
class CommandServices:
    """What every immediate command may use.

    Attributes:
        figures: Returns the current figures of a chosen model; None for the default one.
    """

    figures: Callable[[str | None], StatusFacts]
    money: MoneyRules
    pairing: Pairing


@dataclass(frozen=True, slots=True)
class CommandContext:
    """An immediate command, in the transaction that enters it into the inbox.

    Attributes:
        conversation: Of its sender here; for an answer the one where the question was asked.
        argument: The text after its word.
    """

    conn: Connection
    message: InboundMessage
    conversation: int
    seq: int
    argument: str
    is_owner: bool
    services: CommandServices

    @property
    def sender(self) -> str:
        """The sender as "platform:id"."""
        return f"{self.message.address.platform}:{self.message.sender}"

    @property
    def may_act(self) -> bool:
        """Whether tools may touch the world for the sender."""
        access = self.services.pairing.owners.access
        return self.is_owner or access.may_act(self.conn, [self.sender])

    @property
    def is_private(self) -> bool:
        """Whether the sender alone reads the answer."""
        return self.message.chat_kind == "dm"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of an immediate command; all but the text takes effect after the commit.

    Attributes:
        stops: Whether the conversation's running turn ends.
        dropped: Messages that will not be answered.
        wake: Conversations that get a text as well.
        choices: Buttons below the text.
    """

    text: str
    stops: bool = False
    dropped: Sequence[MessageRef] = ()
    happened: Happening | None = None
    wake: frozenset[int] = frozenset()
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuedContext:
    """A queued command, in the transaction that looks for the conversation's next turn."""

    conn: Connection
    held: Held
    entry: InboxEntry


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A command that has a turn of its own; `argument` is the text after its word."""

    journal: Journal
    argument: str
    parts: TurnParts


# Compared by identity: two routes may have the same `when`.
@dataclass(frozen=True, slots=True, eq=False)
class Route(Generic[Given, Result]):
    """When a command is called, with what, and what it returns."""

    when: Literal["at once", "queued", "as a turn"]


DIRECT_ONLY = "Please send me that in a direct message: others can read it here."
IMMEDIATE: Route[CommandContext, CommandResult] = Route("at once")
"""Answered while its message is admitted, past the queue."""
REPLY: Route[CommandContext, CommandResult] = Route("at once")
"""The same, in the conversation where the question was asked that it answers."""
QUEUED: Route[QueuedContext, AskedQuestion | str] = Route("queued")
"""Carried out in its place in the queue: it asks the agent something, or answers with a text."""
NEW_BEGINNING: Route[QueuedContext, AskedQuestion | str] = Route("queued")
"""The same; it does not wait for an answer to an earlier question, and takes files with it."""
TURN: Route[TurnContext, Awaitable[tuple[str, TurnEnd]]] = Route("as a turn")
"""Queued as well; takes a turn without an answer of the agent, and returns how that ends."""


def _unwritten(_: Any) -> Any:
    """The function of a `Command` that decorates nothing; `by_word` refuses it at the start."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Command(Generic[Given, Result]):
    """A chat command, and the decorator that makes one of a function.

    Attributes:
        name: Its word: 1 to 32 small letters, the form that Telegram accepts.
        help: For `/help` and the menus of platforms; at most 256 characters.
        position: Its place in lists; equal ones are sorted by name.
        aliases: Other words for it, which lists omit.
        urgent: It has a wide limit of its own instead of `access.rate_per_min`.
        owner_only: Others do not have this command, and menus omit it.
    """

    name: str
    help: str
    route: Route[Given, Result]
    position: int = LAST
    aliases: tuple[str, ...] = ()
    urgent: bool = False
    owner_only: bool = False
    run: Callable[[Given], Result] = _unwritten

    def __call__(self, run: Callable[[Given], Result]) -> "Command[Given, Result]":
        """Return the command with this function."""
        return replace(self, run=run)


AnyCommand = Command[Any, Any]


@cache
def by_word() -> Mapping[str, AnyCommand]:
    """Return all commands by names and aliases, in the order of lists.

    Raises:
        ValueError: Two commands have the same word, or one decorates no function.
    """
    files = pkgutil.iter_modules(gateway.commands.__path__, f"{gateway.commands.__name__}.")
    there = [each for file in files for each in vars(import_module(file.name)).values()]
    found: dict[str, AnyCommand] = {}
    named = (each for each in there if isinstance(each, Command))
    for command in sorted(named, key=lambda each: (each.position, each.name)):
        if command.run is _unwritten:
            raise ValueError(f"/{command.name} has no function")
        for word in (command.name, *command.aliases):
            if found.setdefault(word, command) is not command:
                raise ValueError(f"two commands are called /{word}")
    return found


def commands(*, with_owners: bool = False) -> list[AnyCommand]:
    """Return the commands of lists, in order; those for owners alone only with `with_owners`."""
    named = [command for word, command in by_word().items() if word == command.name]
    return [command for command in named if with_owners or not command.owner_only]


def menu() -> tuple[tuple[str, str], ...]:
    """Return the entries of platforms' menus: (name, help)."""
    return tuple((command.name, command.help) for command in commands())


_COMMAND = re.compile(r"/([a-z]+)(?:@\w+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)
_LOOKS_LIKE = re.compile(r"/([a-z][a-z0-9_-]{0,31})(?:\s.*)?", re.DOTALL | re.IGNORECASE)
_FOR_ANOTHER = re.compile(r"/\w+@\w+(?:\s.*)?", re.DOTALL)
"""Adapters remove the bot's own name from a command (adapters/telegram/inbound.py)."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text, read as a command.

    Attributes:
        command: None for a message to the agent.
        argument: The text after the word of a command.
        word: The word, as written, of a text that looks like a command; else empty. "/usr/bin" is a
            message.
        names_a_bot: Whether it names another bot ("/status@other_bot").
    """

    command: AnyCommand | None = None
    argument: str = ""
    word: str = ""
    names_a_bot: bool = False

    @property
    def unknown(self) -> str:
        """The word of a text that looks like a command but is not; else empty."""
        return "" if self.command else self.word

    def said_by(self, *, owner: bool) -> "Parsed":
        """Return the reading for this sender: only owners have the commands of owners."""
        is_kept = owner or self.command is None or not self.command.owner_only
        return self if is_kept else replace(self, command=None, argument="")


def parse(text: str) -> Parsed:
    """Read a text as a command; called once for each message."""
    text = text.strip()
    if not text.startswith("/"):
        return Parsed()
    match, like = _COMMAND.fullmatch(text), _LOOKS_LIKE.fullmatch(text)
    command = by_word().get(match[1].lower()) if match else None
    return Parsed(
        command,
        argument=(match[2] or "") if match and command else "",
        word=like[1] if like else "",
        names_a_bot=_FOR_ANOTHER.fullmatch(text) is not None,
    )
