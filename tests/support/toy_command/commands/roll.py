"""`/roll`: a number that nobody can foresee."""

import secrets

from gateway.commands.registry import IMMEDIATE, Command, CommandContext, CommandResult


@Command("roll", "roll a die; name its sides, or it has six", IMMEDIATE, 125, aliases=("die",))
def roll(context: CommandContext) -> CommandResult:
    """Return what the die shows."""
    sides = int(context.argument) if context.argument.isdecimal() else 6
    return CommandResult(f"It shows {secrets.randbelow(max(sides, 1)) + 1}.")
