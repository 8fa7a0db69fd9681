"""`/help`: the list of commands, and the answer to an unknown command."""

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
"""Least similarity of a misspelled command; difflib's default."""


# Telegram sends `/start` when a user opens the chat.
@Command("help", "show this list", IMMEDIATE, 120, aliases=("start",))
def show_help(context: CommandContext) -> CommandResult:
    """Show the list; owner commands appear only in an owner's direct chat."""
    return CommandResult(help_text(to_owner=context.is_owner and context.is_private))


def help_text(*, to_owner: bool = False) -> str:
    """Return the list of commands, for an owner with owner commands."""
    listed = commands(with_owners=to_owner)
    lines = [f"- `/{command.name}`: {command.help}" for command in listed]
    return "Write to me in plain words. I also know these commands:\n\n" + "\n".join(lines)


def nearest(word: str) -> str | None:
    """Return the command most similar to a word, or None."""
    words = [known for known, command in by_word().items() if not command.owner_only]
    found = difflib.get_close_matches(word.lower(), words, n=1, cutoff=ALIKE)
    return found[0] if found else None


def unknown_text(word: str) -> str:
    """Return the answer to an unknown command; `word` has no slash."""
    near = nearest(word)
    meant = f" Did you mean `/{near}`?" if near else ""
    return (
        f"I know no command {quoted('/' + word)}.{meant} `/help` lists them all. If it was meant as"
        " a message, put a word in front of it."
    )
