"""Shell completion: `parley completion bash|zsh|fish`, and what a shell is told at a Tab.

typer answers at a Tab. What completes a value reads the database or the settings, and says nothing
where it cannot.
"""

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import _get_shell_name, get_completion_script, install

from gateway.errors import GatewayError

VARIABLE = "_PARLEY_COMPLETE"
"""In it the scripts of shells ask (typer's protocol)."""


class Shell(StrEnum):
    """What a script can be made for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


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
