"""The registry of chat commands: their type, their arguments, and the parser of messages.

Each file of this folder defines one command, or a few that belong together. Menus, `/help`, routes
and rate limits follow from the decorator on its function (docs/commands.md).
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
        window_tokens: Window of the main model; a provider may grant the account less.
        threshold_tokens: Compression threshold; None if off or unknown.
        fixed_tokens: Estimated size of system prompt and tool schemas.
        chosen: Whether the conversation chose it with `/model`.
        gone: A chosen model that is no longer configured; may be empty.
        compresses: Whether compression is on (`compression.enabled`).
        summaries: The summary models, with their windows and whether they are paused.
        tools_off: Why enabled tools are unavailable; may be empty.
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
        prices: Prices of the models in use, by ledger name.
        rules: Their prompt cache rules, which override the catalog.
        sender_daily_usd: Limit per sender; None for no limit.
        daily_usd: Limit for all senders together; chats do not show the amount.
    """

    prices: Mapping[str, Prices] = field(default_factory=dict)
    rules: Mapping[str, CacheRules] = field(default_factory=dict)
    sender_daily_usd: float | None = None
    daily_usd: float | None = None
    timezone: str = "UTC"

    def rates(self, name: str) -> CachePrices | None:
        """Return prices and cache rules of a model; None if unknown."""
        facts = replace(facts_of(name, FactsSettings()), prices=self.prices.get(name))
        known = CachePrices.of(facts)
        return known and known._replace(rules=self.rules.get(name, known.rules))


@dataclass(frozen=True, slots=True)
class CommandServices:
    """The services that every immediate command may use.

    Attributes:
        figures: Returns the current figures of a chosen model; None for the default.
    """

    figures: Callable[[str | None], StatusFacts]
    money: MoneyRules
    pairing: Pairing


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The context of an immediate command, in the transaction that enters it into the inbox.

    Attributes:
        conversation: The sender's conversation; for an answer, the conversation of the question.
        argument: The text after the command word.
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
        """Whether tools may have side effects for the sender."""
        access = self.services.pairing.owners.access
        return self.is_owner or access.may_act(self.conn, [self.sender])

    @property
    def is_private(self) -> bool:
        """Whether only the sender reads the answer."""
        return self.message.chat_kind == "dm"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of an immediate command; except for the text, it takes effect after the commit.

    Attributes:
        stops: Whether to stop the conversation's running turn.
        dropped: Number of messages that will not be answered.
        wake: Other conversations with a new text.
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
    """The context of a queued command, in the transaction that finds the next turn."""

    conn: Connection
    held: Held
    entry: InboxEntry


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The context of a command with its own turn; `argument` is the text after its word."""

    journal: Journal
    argument: str
    parts: TurnParts


# Compared by identity: two routes may have the same `when`.
@dataclass(frozen=True, slots=True, eq=False)
class Route(Generic[Given, Result]):
    """When a command is called, with its context and result types."""

    when: Literal["at once", "queued", "as a turn"]


DIRECT_ONLY = "Please send me that in a direct message: others can read it here."
IMMEDIATE: Route[CommandContext, CommandResult] = Route("at once")
"""Answered during admission, bypassing the queue."""
REPLY: Route[CommandContext, CommandResult] = Route("at once")
"""The same, but in the conversation of the question that it answers."""
QUEUED: Route[QueuedContext, AskedQuestion | str] = Route("queued")
"""Runs at its place in the queue: asks the agent a question or answers with a text."""
NEW_BEGINNING: Route[QueuedContext, AskedQuestion | str] = Route("queued")
"""The same, but does not wait for an answer to an earlier question, and accepts files."""
TURN: Route[TurnContext, Awaitable[tuple[str, TurnEnd]]] = Route("as a turn")
"""Queued as well, but runs as a turn of its own and returns how the turn ends."""


def _unwritten(_: Any) -> Any:
    """Placeholder of a `Command` that decorates no function; `by_word` refuses it at start."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Command(Generic[Given, Result]):
    """A chat command, and the decorator that turns a function into one.

    Attributes:
        name: The command word: 1 to 32 lower-case letters, as Telegram requires.
        help: Description for `/help` and platform menus; at most 256 characters.
        position: Sort key in lists, before the name.
        aliases: Other words for it, omitted from lists.
        urgent: Whether it has its own wide rate limit instead of `access.rate_per_min`.
        owner_only: Whether only owners have it; menus omit it.
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
    """Return all commands by name and alias, in list order.

    Raises:
        ValueError: Two commands share a word, or one decorates no function.
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
    """List the commands in order; include owner commands only with `with_owners`."""
    named = [command for word, command in by_word().items() if word == command.name]
    return [command for command in named if with_owners or not command.owner_only]


def menu() -> tuple[tuple[str, str], ...]:
    """Return the entries of platform menus: (name, help)."""
    return tuple((command.name, command.help) for command in commands())


_COMMAND = re.compile(r"/([a-z]+)(?:@\w+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)
_LOOKS_LIKE = re.compile(r"/([a-z][a-z0-9_-]{0,31})(?:\s.*)?", re.DOTALL | re.IGNORECASE)
_FOR_ANOTHER = re.compile(r"/\w+@\w+(?:\s.*)?", re.DOTALL)
"""Adapters remove the bot's own name from a command (adapters/telegram/inbound.py)."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text parsed as a command.

    Attributes:
        command: None for a message to the agent.
        argument: The text after the word of a command.
        word: The word as written if the text looks like a command; else empty. "/usr/bin" is a
            message.
        names_a_bot: Whether it names another bot ("/status@other_bot").
    """

    command: AnyCommand | None = None
    argument: str = ""
    word: str = ""
    names_a_bot: bool = False

    @property
    def unknown(self) -> str:
        """The word of a text that looks like an unknown command; else empty."""
        return "" if self.command else self.word

    def said_by(self, *, owner: bool) -> "Parsed":
        """Return the result for this sender: only owners have owner commands."""
        is_kept = owner or self.command is None or not self.command.owner_only
        return self if is_kept else replace(self, command=None, argument="")


def parse(text: str) -> Parsed:
    """Parse a text as a command; called once per message."""
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
