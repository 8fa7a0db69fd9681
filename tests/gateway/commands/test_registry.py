"""The register of commands: which there are, and which one a text is."""

import inspect
import re
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands import registry
from gateway.commands.registry import (
    IMMEDIATE,
    NEW_BEGINNING,
    QUEUED,
    REPLY,
    TURN,
    AnyCommand,
    CommandContext,
    QueuedContext,
    TurnContext,
    by_word,
    commands,
    parse,
)

ALL = commands(with_owners=True)
ALIASES = {word: each for word, each in by_word().items() if word != each.name}
GIVEN = {
    IMMEDIATE: CommandContext,
    REPLY: CommandContext,
    QUEUED: QueuedContext,
    NEW_BEGINNING: QueuedContext,
    TURN: TurnContext,
}
"""The argument that each route calls a command's function with."""


def named(text: str) -> str | None:
    """Return the name of the command that a text is."""
    command = parse(text).command
    return command and command.name


@pytest.mark.parametrize("command", ALL, ids=lambda each: each.name)
def test_each_command_is_recognised(command: AnyCommand) -> None:
    """Alone, addressed to the bot, with words behind it, with blanks around it."""
    name = command.name
    for text in (f"/{name}", f"/{name}@parley_bot", f"  /{name}\n", f"/{name} now, please\nthanks"):
        assert named(text) == name
    assert named(f"/{name.capitalize()}") == name


@pytest.mark.parametrize(
    ("text", "behind"),
    [
        ("/new", ""),
        ("/new ", ""),
        ("/new@bot  Hi\nyou ", "Hi\nyou"),
        (" /Pair@my_bot  approve ABCD2345 ", "approve ABCD2345"),
        ("no command", ""),
        ("/foo bar", ""),
    ],
)
def test_what_stands_behind_a_command(text: str, behind: str) -> None:
    """The rest of the text, without the blanks around it."""
    assert parse(text).argument == behind


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "stop",
        "/",
        "//stop",
        "/stopp",
        "/stop-now",
        "/usr/bin",
        "/stop!",
        "say /stop",
        "/ stop",
    ],
)
def test_anything_else_is_a_message(text: str) -> None:
    """A word that is no command goes to the agent."""
    assert parse(text).command is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("/stauts", "stauts"),
        ("/foo bar\nbaz", "foo"),
        ("/stop-now", "stop-now"),
        ("/status", ""),
        ("/compact", ""),
        ("/usr/bin", ""),
        ("/usr/bin is full", ""),
        ("/", ""),
        ("/ stop", ""),
        ("//stop", ""),
        ("/stop!", ""),
        ("/5 of them", ""),
        ("/foo@other_bot", ""),
        ("/" + "x" * 33, ""),
    ],
)
def test_what_looks_like_a_command_and_is_none(text: str, word: str) -> None:
    """A single word behind the slash; paths and other texts are messages."""
    assert parse(text).unknown == word


@pytest.mark.parametrize(
    ("text", "is_so"), [("/status@other_bot now", True), ("/status", False), ("/usr@x/y", False)]
)
def test_a_command_may_name_a_bot(text: str, is_so: bool) -> None:
    """The platform has taken the bot's own name out: it is another one."""
    assert parse(text).names_a_bot == is_so


@pytest.mark.parametrize(("alias", "command"), ALIASES.items())
def test_an_alias_is_its_command(alias: str, command: AnyCommand) -> None:
    """With what stands behind it; `/start` comes from Telegram by itself, also with a payload."""
    assert parse(f"/{alias} ref_123").command is command
    assert alias not in dict(registry.menu())


def test_the_aliases() -> None:
    """One that Telegram sends, one that people try."""
    assert (by_word()["start"].name, by_word()["compact"].name) == ("help", "compress")


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    """Every text is a known command or a message."""
    said = parse(text)
    assert said.command is None or text.strip().startswith("/")
    assert not (said.command and said.unknown)


@pytest.mark.parametrize("command", ALL, ids=lambda each: each.name)
def test_a_command_takes_what_its_route_gives(command: AnyCommand) -> None:
    """Its function has one argument, of the route's type; the function of a turn is a coroutine."""
    hints = get_type_hints(command.run)
    assert [each for name, each in hints.items() if name != "return"] == [GIVEN[command.route]]
    assert inspect.iscoroutinefunction(command.run) == (command.route is TURN)


def test_what_else_the_pipeline_asks_of_commands() -> None:
    """Urgent ones have a limit of their own; only owners know those of owners."""
    named = by_word()
    assert named["stop"].urgent
    assert named["status"].urgent
    assert named["mcp"].owner_only
    assert named["pair"].owner_only


@pytest.mark.parametrize("command", ALL, ids=lambda each: each.name)
def test_commands_fit_into_telegrams_menu(command: AnyCommand) -> None:
    """Names of 1 to 32 small letters, descriptions of 1 to 256 characters."""
    assert re.fullmatch("[a-z]{1,32}", command.name)
    assert 1 <= len(command.help) <= 256


@pytest.mark.parametrize(
    ("text", "unknown"), [("/pair list", "pair"), ("/Pair", "Pair"), ("/pairs", "pairs")]
)
def test_for_everybody_else_owners_commands_are_none(text: str, unknown: str) -> None:
    """They are answered as any word that is no command."""
    said = parse(text)
    assert said.said_by(owner=True) is said
    assert said.said_by(owner=False).command is None
    assert said.said_by(owner=False).unknown == unknown
