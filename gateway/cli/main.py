"""The `parley` command: its global options and its lazily imported commands.

A command's file is imported when the command runs, so `parley --help` stays fast.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from gateway.errors import GatewayError

COMMANDS = {
    "run": "Start the gateway; Ctrl-C stops it after the running answers.",
    "setup": "Choose a model and platforms, test them, and write parley.yaml.",
    "open": "Create a sign-in link, valid once within 10 minutes, and open it in a browser.",
    "chat": "Talk to the running gateway from the terminal.",
    "ask": "Ask one question and print the answer; piped input is its context.",
    "status": "Show whether the gateway runs, its queues, costs and problems.",
    "logs": "Print the log in readable form.",
    "alerts": "Test the alerts to owners.",
    "doctor": "Find problems, explain why they matter, and how to fix them.",
    "web": "Invite people to the web chat, and sign them out.",
    "pair": "Decide who may write to the bot.",
    "config": "Show, check and change the settings.",
    "adapter": "Restart the accounts of platforms.",
    "usage": "Show calls, tokens and cost; `--by outcome` shows how turns ended.",
    "sessions": "Show conversations and their segments; export their messages.",
    "search": "Maintain the search index.",
    "dead-letters": "Turns and messages that were given up, with reasons.",
    "audit": "Export the audit log.",
    "policy": "Which tool calls may run, and why.",
    "prompt": "Show the system prompt.",
    "engines": "The context engines, which decide what the model sees.",
    "backup": "Back up database, home and workspaces, verified, even while the gateway runs.",
    "restore": "Verify a backup completely, then restore it into an empty PARLEY_HOME.",
    "forget": (
        "Erase a conversation permanently: transcript, queue, sessions, stored outputs, files."
    ),
    "db": "Maintain the database.",
    "import": "Import the data of another agent.",
    "replay": (
        "Replay recorded conversations through the real path; exit code 1 if an answer is missing."
    ),
}
"""The texts of `parley --help` in order; a test compares them with the commands' own."""

GONE = {
    "audit list": "Tool calls, in the console",
    "db current": "`parley db check`",
    "db upgrade": "`parley db migrate`",
    "dead-letters show": "`parley dead-letters list --json`, or Dead letters in the console",
    "mcp list": "MCP servers in the console; `parley doctor` where no gateway runs",
    "memory list": "Memory in the console; `/memory` in a chat",
    "memory remove": "Memory in the console; `/memory` in a chat",
    "plugins list": "Plugins in the console",
    "search find": "Conversations in the console",
    "sessions show": "`parley sessions export ID --format md`, or Conversations in the console",
}
"""Removed commands of 0.5 with their successors."""


class LaterCommand(TyperCommand):
    """Imports a command when it runs."""

    @override
    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Return the context of the imported command."""
        found = app_of(str(self.name))
        found.rich_markup_mode = None
        # A group with a single command stays a group: `parley config show`.
        is_group = found.info.no_args_is_help is True
        command = typer.main.get_group(found) if is_group else typer.main.get_command(found)
        command.name, command.help = self.name, command.help or self.help
        for each in getattr(command, "commands", {}).values():
            # Longer texts would be cut at the edge of the screen.
            each.short_help = (each.help or "").partition("\n\n")[0]
        return command.make_context(info_name, args, *rest, **extra)


def app_of(name: str) -> typer.Typer:  # noqa: C901, PLR0912, PLR0915 - an import for each command
    """Import a command, or a group of them."""
    # Import statements rather than strings, so that mypy and import-linter see them.
    match name:
        case "usage":
            from gateway.cli.usage import usage_app as found
        case "run":
            from gateway.cli.run import run_app as found
        case "setup":
            from gateway.cli.setup import setup_app as found
        case "alerts":
            from gateway.cli.status import alerts_app as found
        case "doctor":
            from gateway.cli.status import doctor_app as found
        case "open":
            from gateway.cli.people import open_app as found
        case "web":
            from gateway.cli.people import web_app as found
        case "chat":
            from gateway.cli.chat import chat_app as found
        case "ask":
            from gateway.cli.ask import ask_app as found
        case "status":
            from gateway.cli.status import status_app as found
        case "logs":
            from gateway.cli.logs import logs_app as found
        case "replay":
            from gateway.cli.replay import replay_app as found
        case "backup":
            from gateway.cli.db import backup_app as found
        case "restore":
            from gateway.cli.db import restore_app as found
        case "forget":
            from gateway.cli.db import forget_app as found
        case "config":
            from gateway.cli.config import config_app as found
        case "db":
            from gateway.cli.db import db_app as found
        case "dead-letters":
            from gateway.cli.db import letters_app as found
        case "sessions":
            from gateway.cli.sessions import sessions_app as found
        case "engines":
            from gateway.cli.config import engines_app as found
        case "pair":
            from gateway.cli.people import pair_app as found
        case "prompt":
            from gateway.cli.config import prompt_app as found
        case "audit":
            from gateway.cli.db import audit_app as found
        case "policy":
            from gateway.cli.people import policy_app as found
        case "search":
            from gateway.cli.db import search_app as found
        case "adapter":
            from gateway.cli.config import adapter_app as found
        case "import":
            from gateway.cli.setup import import_app as found
        case _:
            raise LookupError(name)
    return found


class LazyGroup(TyperGroup):
    """Lists every command without importing one."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(**extra)
        for name, words in COMMANDS.items():
            self.add_command(LaterCommand(name, help=words, short_help=words))

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command; strip pydantic's prefix from value errors."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = exc.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    cls=LazyGroup,
    name="parley",
    help="A durable chat gateway for an LLM agent.",
    no_args_is_help=True,
    # Rich would draw boxes around the help and doubles the import time.
    rich_markup_mode=None,
    # Pretty tracebacks show values of variables: users' text and keys.
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; print our own errors as one line on stderr with exit code 1."""
    # Database, logs and backups contain conversations: only their owner may read them.
    os.umask(0o077)
    if instead := GONE.get(" ".join(sys.argv[1:3])):
        from gateway.cli.common import warn

        warn(f"`parley {' '.join(sys.argv[1:3])}` went; instead: {instead}", "red")
        sys.exit(2)
    try:
        app(prog_name="parley")
    except GatewayError as exc:
        from gateway.cli.common import warn

        warn(str(exc), "red")
        sys.exit(1)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer hands it in this way
    if wanted:
        from importlib.metadata import version

        typer.echo(f"parley {version('parley')}")
        raise typer.Exit


@app.callback()
def _options(
    config: Annotated[  # noqa: ARG001 - read by `loaded`
        Path | None, typer.Option(help="Settings file instead of PARLEY_HOME/parley.yaml.")
    ] = None,
    home: Annotated[  # noqa: ARG001
        Path | None, typer.Option(help="Home directory instead of PARLEY_HOME.")
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version."),
    ] = False,
) -> None:
    log_problems_only()


def log_problems_only() -> None:
    """Log only problems, to stderr; `parley run` logs by its settings.

    Plain tracebacks: rich ones show values of variables, including users' text.
    """
    import structlog

    plain = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            plain,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    main()
