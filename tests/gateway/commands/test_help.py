"""`/help` and the menus, word for word; what is said to a word that is no command."""

import pytest

from gateway.commands.help import help_text, unknown_text
from gateway.commands.registry import menu

EVERYBODYS = """\
Write to me in plain words. I also know these commands:

- `/new`: start afresh; the old conversation stays on record
- `/stop`: stop the current answer and drop queued messages
- `/approve`: approve an action that needs permission: by its number, once or for this conversation
- `/deny`: refuse it
- `/answer`: answer my question, in words or by the number of a choice
- `/status`: show the state of this conversation
- `/memory`: show what I remember; keep, forget or change an entry
- `/usage`: show the tokens and the cost of this conversation
- `/insights`: show how this conversation went over the last 30 days
- `/compress`: condense the conversation so far; name a topic to keep more of it
- `/model`: show the models, or choose the one that answers here
- `/retry`: ask the last question again
- `/help`: show this list"""


def test_help_lists_every_command() -> None:
    """With what it does, one line each, in an order that people learn."""
    assert help_text() == EVERYBODYS


def test_help_tells_an_owner_more() -> None:
    """Two lines, after the others."""
    pair, tools = help_text(to_owner=True).removeprefix(EVERYBODYS).split("\n")[1:]
    assert pair == "- `/pair`: decide who may write to me"
    assert tools == "- `/mcp`: decide which tools of MCP servers I may use"


def test_the_menus_are_the_same_list() -> None:
    """Telegram, Discord, the web page and `parley chat` show what `/help` lists for everybody."""
    lines = EVERYBODYS.splitlines()[2:]
    assert [f"- `/{name}`: {line}" for name, line in menu()] == lines


@pytest.mark.parametrize(
    ("word", "meant"),
    [("stauts", "status"), ("STAUTS", "status"), ("hepl", "help"), ("foo", None), ("x`y", None)],
)
def test_an_unknown_command_is_answered_with_the_nearest(word: str, meant: str | None) -> None:
    """Where there is one; the word cannot break the markup."""
    text = unknown_text(word)
    assert (f"Did you mean `/{meant}`?" in text) == (meant is not None)
    assert text.startswith(f"I know no command `/{word.replace('`', chr(39))}`.")
