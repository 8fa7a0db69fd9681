"""The `parley` command: its options, and its commands in the order of `parley --help`."""

import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from typer.core import TyperGroup
from typing_extensions import override

from gateway.cli.ask import ask_app
from gateway.cli.audit import audit_app, policy_app
from gateway.cli.chat import chat_app
from gateway.cli.config import adapter_app, config_app, secrets_app
from gateway.cli.doctor import doctor_app, upgrade_app
from gateway.cli.logs import logs_app
from gateway.cli.output import say, warn
from gateway.cli.people import memory_app, open_app, pair_app, web_app
from gateway.cli.plugins import engines_app, mcp_app, plugins_app
from gateway.cli.prompt import prompt_app
from gateway.cli.replay import replay_app
from gateway.cli.run import run_app
from gateway.cli.search import search_app
from gateway.cli.sessions import sessions_app
from gateway.cli.setup import import_app, setup_app
from gateway.cli.upkeep.db import backup_app, db_app, forget_app, letters_app, restore_app
from gateway.cli.upkeep.status import alerts_app, status_app
from gateway.cli.usage import usage_app
from gateway.errors import GatewayError


class Commands(TyperGroup):
    """All commands; the lists of them cut no line."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(**extra)
        for command in self.commands.values():
            for each in (command, *getattr(command, "commands", {}).values()):
                each.short_help = (each.help or "").partition("\n\n")[0]

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command; what is said of a wrong value is a sentence without its class."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = exc.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    cls=Commands,
    name="parley",
    help="A durable chat gateway for an LLM agent.",
    no_args_is_help=True,
    # Rich would draw boxes around the help.
    rich_markup_mode=None,
    # A pretty traceback shows the values of variables: words of people, and keys.
    pretty_exceptions_enable=False,
)
app.add_typer(run_app)
app.add_typer(setup_app)
app.add_typer(open_app)
app.add_typer(chat_app)
app.add_typer(ask_app)
app.add_typer(status_app)
app.add_typer(logs_app)
app.add_typer(alerts_app, name="alerts")
app.add_typer(doctor_app)
app.add_typer(web_app, name="web")
app.add_typer(pair_app, name="pair")
app.add_typer(config_app, name="config")
app.add_typer(secrets_app, name="secrets")
app.add_typer(adapter_app, name="adapter")
app.add_typer(usage_app)
app.add_typer(sessions_app, name="sessions")
app.add_typer(search_app, name="search")
app.add_typer(memory_app, name="memory")
app.add_typer(letters_app, name="dead-letters")
app.add_typer(audit_app, name="audit")
app.add_typer(policy_app, name="policy")
app.add_typer(prompt_app, name="prompt")
app.add_typer(mcp_app, name="mcp")
app.add_typer(plugins_app, name="plugins")
app.add_typer(engines_app, name="engines")
app.add_typer(backup_app)
app.add_typer(restore_app)
app.add_typer(forget_app)
app.add_typer(db_app, name="db")
app.add_typer(upgrade_app)
app.add_typer(import_app, name="import")
app.add_typer(replay_app)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file instead of PARLEY_HOME/parley.yaml.")
]


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and exit code 1.

    What it writes (database, logs, backups) holds conversations: for its owner alone.
    """
    os.umask(0o077)
    try:
        app(prog_name="parley")
    except GatewayError as exc:
        warn(str(exc), "red")
        sys.exit(1)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer hands it in this way
    if wanted:
        say(f"parley {version('parley')}")
        raise typer.Exit


@app.callback()
def _options(
    config: ConfigOption = None,  # noqa: ARG001 - read by `loaded`
    home: Annotated[  # noqa: ARG001
        Path | None, typer.Option(help="Instead of PARLEY_HOME.")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    log_problems_only()


def log_problems_only() -> None:
    """Make a command log to stderr, and only problems; `parley run` logs by its settings.

    Tracebacks are plain: a rich one shows the values of variables, and those are people's words.
    """
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
