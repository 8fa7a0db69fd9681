"""`/help`: the list of commands, and the answer to a word that is none of them."""

import difflib

from agent.messages import quoted
from gateway.commands.registry import (
    IMMEDIATE,
    Command,
    CommandContext,
    CommandResult,
    by_word,
    commands,
)

ALIKE = 0.6
"""How alike two words are of which one is a slip of the other: difflib's own default."""


# Telegram sends `/start` by itself when a chat is opened.
@Command("help", "show this list", IMMEDIATE, 120, aliases=("start",))
def show_help(context: CommandContext) -> CommandResult:
    """Return the list; an owner's own is only for the owner's eyes."""
    return CommandResult(help_text(to_owner=context.is_owner and context.is_private))


def help_text(*, to_owner: bool = False) -> str:
    """Return the list of commands; an owner reads of those for owners as well.

    Args:
        to_owner: Whether an owner reads it, and nobody else.
    """
    listed = commands(with_owners=to_owner)
    lines = [f"- `/{command.name}`: {command.help}" for command in listed]
    return "Write to me in plain words. I also know these commands:\n\n" + "\n".join(lines)


def nearest(word: str) -> str | None:
    """Return the word of the command that somebody may have meant; None where none is like it."""
    words = [known for known, command in by_word().items() if not command.owner_only]
    found = difflib.get_close_matches(word.lower(), words, n=1, cutoff=ALIKE)
    return found[0] if found else None


def unknown_text(word: str) -> str:
    """Return the answer to a command that there is not.

    Args:
        word: As it was written, without the slash.
    """
    near = nearest(word)
    meant = f" Did you mean `/{near}`?" if near else ""
    return (
        f"I know no command {quoted('/' + word)}.{meant} `/help` lists them all. If it was meant as"
        " a message, put a word in front of it."
    )
