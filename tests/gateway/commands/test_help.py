"""`/help` and the menus, word for word; what is said to a word that is no command."""

import pytest

from gateway.commands.help import help_text, unknown_text
from gateway.commands.registry import menu

EVERYBODYS = """\
Write to me in plain words. I also know these commands:

- `/new`: start afresh; the old conversation stays on record
- `/stop`: stop the answer in progress and drop what waits
- `/approve`: say yes to what I may not do alone; with its number, once or for the conversation
- `/deny`: say no to it
- `/answer`: answer my question with words or the number of a choice
- `/status`: show how this conversation stands
- `/memory`: show what I remember; forget or change an entry by its number
- `/usage`: show what this conversation took and cost so far
- `/insights`: show how this conversation fared in the last 30 days
- `/compress`: condense what was said so far; name a topic to dwell on it
- `/model`: show the models, or name the one that is to answer here
- `/retry`: ask the last question again
- `/help`: show this list"""


def test_help_lists_every_command() -> None:
    """With what it does, one line each, in an order that people learn."""
    assert help_text() == EVERYBODYS


def test_help_tells_an_owner_more() -> None:
    """One line, behind the others."""
    assert help_text(to_owner=True) == f"{EVERYBODYS}\n- `/pair`: say who may write to me"


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
