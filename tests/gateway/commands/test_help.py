"""`/help` and the menus; what is said to a word that is no command."""

from collections.abc import Sequence

import pytest

from gateway.commands.help import help_text, unknown_text
from gateway.commands.registry import AnyCommand, commands, menu


def lines_of(listed: Sequence[AnyCommand]) -> list[str]:
    """Return the lines of `/help` about some commands."""
    return [f"- `/{each.name}`: {each.help}" for each in listed]


def test_help_lists_every_command() -> None:
    """With what it does, one line each."""
    begin, listed = help_text().split("\n\n")
    assert begin == "Write to me in plain words. I also know these commands:"
    assert listed.splitlines() == lines_of(commands())


def test_help_lists_the_commands_of_owners_to_an_owner() -> None:
    """Nobody else sees them."""
    _, listed = help_text(to_owner=True).split("\n\n")
    assert listed.splitlines() == lines_of(commands(with_owners=True))
    assert {each.name for each in commands(with_owners=True)} > {each.name for each in commands()}


def test_the_menus_are_the_same_list() -> None:
    """Telegram, Discord, the web page and `parley chat` show what `/help` lists for everybody."""
    assert menu() == tuple((each.name, each.help) for each in commands())


def test_lists_are_in_the_order_that_people_learn() -> None:
    """Each command names its position."""
    positions = [each.position for each in commands(with_owners=True)]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("stauts", "status"), ("STAUTS", "status"), ("hepl", "help"), ("foo", None), ("x`y", None)],
)
def test_an_unknown_command_is_answered_with_the_nearest(word: str, meant: str | None) -> None:
    """Where there is one; the word cannot break the markup."""
    text = unknown_text(word)
    assert (f"Did you mean `/{meant}`?" in text) == (meant is not None)
    assert text.startswith(f"I know no command `/{word.replace('`', chr(39))}`.")
