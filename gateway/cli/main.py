"""The `parley` command: its options, and where each of its commands is found.

A command's file is imported when the command is called, so that `parley --help` stays quick and
`parley run` stays small.
"""

import logging
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import structlog
import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from gateway.cli.console import say, warn
from gateway.errors import GatewayError


def _usage() -> typer.Typer:
    from gateway.cli.usage import usage_app

    return usage_app


def _run() -> typer.Typer:
    from gateway.cli.run import run_app

    return run_app


def _chat() -> typer.Typer:
    from gateway.cli.chat import chat_app

    return chat_app


def _logs() -> typer.Typer:
    from gateway.cli.logs import logs_app

    return logs_app


def _replay() -> typer.Typer:
    from gateway.cli.replay import replay_app

    return replay_app


def _backup() -> typer.Typer:
    from gateway.cli.db import backup_app

    return backup_app


def _forget() -> typer.Typer:
    from gateway.cli.db import forget_app

    return forget_app


def _config() -> typer.Typer:
    from gateway.cli.config import config_app

    return config_app


def _db() -> typer.Typer:
    from gateway.cli.db import db_app

    return db_app


def _dead_letters() -> typer.Typer:
    from gateway.cli.dead_letters import letters_app

    return letters_app


def _sessions() -> typer.Typer:
    from gateway.cli.sessions import sessions_app

    return sessions_app


def _engines() -> typer.Typer:
    from gateway.cli.engines import engines_app

    return engines_app


def _pair() -> typer.Typer:
    from gateway.cli.pair import pair_app

    return pair_app


def _prompt() -> typer.Typer:
    from gateway.cli.prompt import prompt_app

    return prompt_app


def _audit() -> typer.Typer:
    from gateway.cli.audit import audit_app

    return audit_app


def _mcp() -> typer.Typer:
    from gateway.cli.mcp import mcp_app

    return mcp_app


def _memory() -> typer.Typer:
    from gateway.cli.memory import memory_app

    return memory_app


def _plugins() -> typer.Typer:
    from gateway.cli.plugins import plugins_app

    return plugins_app


def _search() -> typer.Typer:
    from gateway.cli.search import search_app

    return search_app


class Listed(NamedTuple):
    """A command as `parley --help` lists it, and what imports it."""

    load: Callable[[], typer.Typer]
    help: str


COMMANDS = {
    "usage": Listed(_usage, "Show calls, tokens and cost; `--by outcome` shows how turns ended."),
    "run": Listed(
        _run, "Start the gateway; Ctrl-C stops it once the running answers are finished."
    ),
    "chat": Listed(_chat, "Talk to the running gateway from the terminal."),
    "logs": Listed(_logs, "Print the log readably."),
    "replay": Listed(
        _replay,
        "Play recorded conversations through the real path; exit code 1 if an answer is missing.",
    ),
    "backup": Listed(_backup, "Copy the database, consistently, also while the gateway runs."),
    "forget": Listed(
        _forget,
        "Erase one conversation for good: transcript, queue, sessions, stored outputs, files.",
    ),
    "config": Listed(_config, "Show the effective settings."),
    "db": Listed(_db, "Look after the database's schema."),
    "dead-letters": Listed(_dead_letters, "What was given up, and why."),
    "sessions": Listed(_sessions, "Look at conversations, their segments, and any past message."),
    "engines": Listed(_engines, "The context engines: who decides what the model sees."),
    "pair": Listed(_pair, "Say who may write to the bot."),
    "prompt": Listed(_prompt, "What the model is told before anybody speaks."),
    "audit": Listed(_audit, "What tools did, and who allowed it."),
    "mcp": Listed(_mcp, "Tools of MCP servers (tools.mcp)."),
    "memory": Listed(_memory, "What the agent has noted down."),
    "plugins": Listed(_plugins, "Plugins: tools, hooks and memory providers of others."),
    "search": Listed(_search, "Search what was said."),
}
"""In the order of `parley --help`; a test compares the words with those of the commands."""


class LaterCommand(TyperCommand):
    """Stands for a command until it is called."""

    def __init__(self, name: str, listed: Listed) -> None:
        super().__init__(name, help=listed.help)
        self._load = listed.load

    @override
    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Return the context of the command itself, which is imported here."""
        found = self._load()
        # A group with one command stays a group: `parley config show`.
        is_group = isinstance(found.info.help, str)
        command = typer.main.get_group(found) if is_group else typer.main.get_command(found)
        command.name = self.name
        return command.make_context(info_name, args, *rest, **extra)


class LazyGroup(TyperGroup):
    """Lists every command without importing one."""

    def __init__(self, **extra: Any) -> None:
        super().__init__(**extra)
        for name, listed in COMMANDS.items():
            self.add_command(LaterCommand(name, listed))


app = typer.Typer(
    cls=LazyGroup,
    name="parley",
    help="A durable chat gateway for an LLM agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file instead of PARLEY_HOME/parley.yaml.")
]


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and exit code 1.

    What it writes (database, logs, backups) holds conversations: for its owner alone.
    """
    os.umask(0o077)
    try:
        app()
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
    """Have a command log to stderr, and only what went wrong; `parley run` logs as it is told.

    Tracebacks are plain: a rich one shows the values of variables, and those are people's words.
    """
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            plain,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
