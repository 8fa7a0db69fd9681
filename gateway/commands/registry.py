"""The register of chat commands: what a command is, which there are, and which one a message is.

A file of this folder is a command, or a few that are one idea. Nothing else names it: the decorator
above its function says all that menus, `/help`, routes and rate limits follow from
(docs/commands.md).
"""

import pkgutil
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar

from sqlalchemy import Connection

import gateway.commands
from adapters.messages import Choice, InboundMessage, MessageRef
from gateway.access.pairing import Happening, Pairing
from gateway.agent_ports.journal import Journal
from gateway.commands.status_figures import MoneyRules, StatusFacts
from gateway.context.parts import TurnParts
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import AskedQuestion
from gateway.storage.queue.inbox import InboxEntry
from gateway.storage.queue.leases import Held

LAST = 1000
Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CommandServices:
    """What every immediate command may use.

    Attributes:
        figures: Returns what is said about the model that was chosen, None for the default, as it
            is now.
    """

    figures: Callable[[str | None], StatusFacts]
    money: MoneyRules
    pairing: Pairing


@dataclass(frozen=True, slots=True)
class CommandContext:
    """An immediate command that was entered into the inbox, in the transaction that enters it.

    Attributes:
        conversation: That of its sender here; for an answer the one where the question was asked.
        seq: Its place in the inbox.
        argument: What stands behind its word; empty for nothing.
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
        """The sender, as turns, questions and the ledger have it."""
        return f"{self.message.address.platform}:{self.message.sender}"

    @property
    def may_act(self) -> bool:
        """Whether tools may touch the world for the sender."""
        access = self.services.pairing.access
        return self.is_owner or access.may_act(self.conn, [self.sender])

    @property
    def is_private(self) -> bool:
        """Whether nobody but the sender reads the answer."""
        return self.message.chat_kind == "dm"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What an immediate command leads to; but for the text it counts once that is committed.

    Attributes:
        stops: Whether the conversation's running turn ends.
        dropped: Messages that nobody will answer any more.
        wake: Conversations that are told something as well.
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
    """A command that has a turn of its own.

    Attributes:
        argument: What stands behind its word; empty for nothing.
    """

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
"""Carried out in its place in the queue: it asks the agent something, or is told a text."""
NEW_BEGINNING: Route[QueuedContext, AskedQuestion | str] = Route("queued")
"""The same; it waits for no answer to an earlier question, and files that come with it belong to
what it asks."""
TURN: Route[TurnContext, Awaitable[tuple[str, TurnEnd]]] = Route("as a turn")
"""Queued as well; takes a turn in which the agent answers nobody, and tells how that ends."""


def _unwritten(_: Any) -> Any:
    """Stand where a `Command` decorates nothing; `by_word` refuses such a one at the start."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Command(Generic[Given, Result]):
    """A chat command, and the decorator that makes one of a function.

    Attributes:
        name: Its word: 1 to 32 small letters, which is what Telegram takes.
        help: What it does, for `/help` and the menus of platforms; at most 256 characters.
        position: Where it stands in lists; equal ones stand by name.
        aliases: Other words for it, which no list shows.
        urgent: It passes whatever `access.rate_per_min` says; a wide limit of its own holds.
        owner_only: For everybody else there is no such command, and no menu shows it.
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
        """Return the command that this function carries out."""
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
    """Return what lists show, in order; an owner's list has what is for owners alone as well."""
    named = [command for word, command in by_word().items() if word == command.name]
    return [command for command in named if with_owners or not command.owner_only]


def menu() -> tuple[tuple[str, str], ...]:
    """Return what the menus of platforms show: (name, help)."""
    return tuple((command.name, command.help) for command in commands())


_COMMAND = re.compile(r"/([a-z]+)(?:@\w+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)
_LOOKS_LIKE = re.compile(r"/([a-z][a-z0-9_-]{0,31})(?:\s.*)?", re.DOTALL | re.IGNORECASE)
_FOR_ANOTHER = re.compile(r"/\w+@\w+(?:\s.*)?", re.DOTALL)
"""The platform takes the bot's own name out of a command (adapters/telegram/inbound.py)."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a text says as a command.

    Attributes:
        command: Which one it is; None for a message to the agent.
        argument: What stands behind the word of a command; empty for nothing.
        word: Of what looks like a command, as it was written; empty for anything else. "/usr/bin"
            and "/" before what is no single word are messages.
        names_a_bot: Whether it names another bot ("/status@other_bot").
    """

    command: AnyCommand | None = None
    argument: str = ""
    word: str = ""
    names_a_bot: bool = False

    @property
    def unknown(self) -> str:
        """The word of what looks like a command and is none; empty for anything else."""
        return "" if self.command else self.word

    def said_by(self, *, owner: bool) -> "Parsed":
        """Return what it is from this sender: only owners have the commands of owners."""
        is_kept = owner or self.command is None or not self.command.owner_only
        return self if is_kept else replace(self, command=None, argument="")


def parse(text: str) -> Parsed:
    """Return what a text says as a command; called once for each message."""
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
