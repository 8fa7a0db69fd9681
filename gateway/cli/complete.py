"""Shell completion: `parley completion bash|zsh|fish`, and what a shell is told at a Tab.

A Tab is a start of Parley, so nothing is imported that it can do without: the group stays lazy, and
descriptions are written without rich. What completes a value reads the database or the settings,
and says nothing where it cannot.
"""

from enum import StrEnum
from typing import Annotated, Any

import typer
from typer._completion_classes import BashComplete, FishComplete, ZshComplete
from typer._completion_shared import _get_shell_name, get_completion_script, install
from typing_extensions import override

from gateway.errors import GatewayError

VARIABLE = "_PARLEY_COMPLETE"
"""In it the scripts of shells ask (typer's protocol)."""


class Shell(StrEnum):
    """What a script can be made for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class Zsh(ZshComplete):
    """Writes what stands behind a word, without rich."""

    @override
    def format_completion(self, item: Any) -> str:
        words = [item.value, *([_line(item.help)] if item.help else [])]
        return ":".join(f'"{_for_zsh(each)}"' for each in words)


class Fish(FishComplete):
    """Writes what stands behind a word, without rich."""

    @override
    def format_completion(self, item: Any) -> str:
        return f"{item.value}\t{_line(item.help)}" if item.help else str(item.value)


def _line(text: str) -> str:
    return " ".join(text.split())


def _for_zsh(text: str) -> str:
    for character, escaped in (
        ('"', '""'),
        ("'", "''"),
        ("$", "\\$"),
        ("`", "\\`"),
        (":", r"\\:"),
    ):
        text = text.replace(character, escaped)
    return text


def answered(command: Any, asked: str) -> str | None:
    """Return what a shell is told, as in `complete_bash`; None where nobody can tell.

    Args:
        asked: What stands in `VARIABLE`.
    """
    match asked:
        case "complete_bash":
            return BashComplete(command, {}, "parley", VARIABLE).complete()
        case "complete_zsh":
            return Zsh(command, {}, "parley", VARIABLE).complete()
        case "complete_fish":
            return Fish(command, {}, "parley", VARIABLE).complete()
    return None


completion_app = typer.Typer(add_completion=False)


@completion_app.command()
def completion(
    shell: Annotated[Shell | None, typer.Argument(help="Found out unless named.")] = None,
    install_it: Annotated[
        bool, typer.Option("--install", help="Have the shell read it at each start.")
    ] = False,
) -> None:
    """Print the script that completes commands in a shell, or install it."""
    if install_it:
        installed(shell)
        return
    wanted = shell or known_shell()
    typer.echo(get_completion_script(prog_name="parley", complete_var=VARIABLE, shell=wanted.value))


def installed(shell: Shell | None) -> None:
    """Install the script for a shell, and say where it is.

    Raises:
        GatewayError: It is not known which shell, or its files cannot be written.
    """
    wanted = shell or known_shell()
    try:
        _, path = install(wanted.value, "parley", VARIABLE)
    except OSError as exc:
        raise GatewayError(f"{exc.filename} cannot be written: {exc.strerror}") from exc
    typer.echo(f"{wanted} completes parley from its next start on ({path})")


def known_shell() -> Shell:
    """Return the shell that this was called from.

    Raises:
        GatewayError: It is none of ours, or is not known.
    """
    try:
        return Shell(_get_shell_name() or "")
    except ValueError as exc:
        text = f"which shell? Name it: `parley completion {'|'.join(Shell)}`"
        raise GatewayError(text) from exc


def settings_keys(incomplete: str) -> list[str]:
    """Return the keys of the settings that begin so."""
    from gateway.settings.loading import load_settings  # noqa: PLC0415

    try:
        keys = load_settings().origins
    except GatewayError:
        return []
    return [key for key in keys if key.startswith(incomplete)]
