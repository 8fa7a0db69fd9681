"""The `parley` command. Each subcommand is a few lines; the work is done by other modules.

What only one command needs is imported when it runs, so that `parley run` stays small.
"""

import asyncio
import logging
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import orjson
import structlog
import typer

from gateway.auditcli import audit_app
from gateway.commandline import (
    AsJson,
    ConversationArgument,
    act,
    database_path,
    loaded,
    opened,
    settings_of,
    step_back,
)
from gateway.console import err, out, say, show_json, warn
from gateway.deadletterscli import letters_app
from gateway.enginescli import engines_app
from gateway.errors import GatewayError
from gateway.mcpcli import mcp_app
from gateway.memorycli import memory_app
from gateway.paircli import pair_app
from gateway.pluginscli import plugins_app
from gateway.promptcli import prompt_app
from gateway.searchcli import search_app
from gateway.sessionscli import sessions_app
from gateway.settings import Settings, secret_values
from gateway.usagecli import usage

app = typer.Typer(
    name="parley",
    help="A durable chat gateway for an LLM agent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Show the effective settings.", no_args_is_help=True)
db_app = typer.Typer(help="Look after the database's schema.", no_args_is_help=True)
GROUPS = {
    "config": config_app,
    "db": db_app,
    "dead-letters": letters_app,
    "sessions": sessions_app,
    "engines": engines_app,
    "pair": pair_app,
    "prompt": prompt_app,
    "audit": audit_app,
    "mcp": mcp_app,
    "memory": memory_app,
    "plugins": plugins_app,
    "search": search_app,
}
for group_name, group in GROUPS.items():
    app.add_typer(group, name=group_name)
app.command("usage")(usage)

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


@app.command()
def run(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Instead of web.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Instead of web.port.")] = None,
) -> None:
    """Start the gateway; Ctrl-C stops it once the running answers are finished."""
    found = loaded(context, web__host=host, web__port=port)
    settings = found.settings
    gateway = import_module("gateway.app")
    with gateway.own_home(settings) as journal:
        logs = import_module("gateway.logs")
        logs.configure_logging(settings.logging, settings.home, secret_values(settings))
        for warning in found.warnings:
            warn(warning)
        started = gateway.run(settings, lambda welcome: _welcome(settings, welcome), journal)
        asyncio.run(started)


def _welcome(settings: Settings, welcome: Any) -> None:
    """Say where the chat is and what to set next, on stderr: stdout belongs to the log."""
    file = settings.home / "parley.yaml"
    provider = import_module("agent.models.factory").resolve_provider(settings.model)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.web.host, settings.web.host)  # noqa: S104
    page = f"http://[{host}]:{welcome.port}/" if ":" in host else f"http://{host}:{welcome.port}/"
    checks = import_module("gateway.startchecks").lines(welcome.checks)
    lines = ["", *welcome.warnings, *checks, welcome.caching]
    lines += [f"Parley is ready: {page if settings.web.enabled else page + 'healthz'}"]
    if (settings.home / "parley.sock").exists():
        lines += [f"  talk in the terminal:  {sys.argv[0]} chat"]
    if provider == "offline":
        lines += ["  a real model:          set ANTHROPIC_API_KEY or OPENAI_API_KEY,"]
        lines += [f"                         or `model:` in {file}"]
    if welcome.owner_code is not None:
        lines += [
            f"  become its owner:      send {welcome.owner_code} to your bot, in a direct chat"
        ]
    if not settings.platforms.is_any_on:
        lines += ["  Telegram:              set PARLEY_PLATFORMS__TELEGRAM__TOKEN"]
        lines += ["  Discord, Slack:        see docs/platforms"]
    err.print("\n".join(lines), "", sep="\n", markup=False, highlight=False, soft_wrap=True)


@app.command()
def chat(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Chat to go on with: letters, digits, - and _.")
    ] = "terminal",
) -> None:
    """Talk to the running gateway from the terminal."""
    settings = settings_of(context)
    socket = settings.home / import_module("gateway.control").SOCKET
    asyncio.run(import_module("gateway.chat").chat(socket, name))


@app.command("logs")
def show_logs(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    session: Annotated[
        str | None, typer.Option(help="Only this session or conversation id.")
    ] = None,
    event: Annotated[str | None, typer.Option(help="Only this event; `turn_*` works.")] = None,
    level: Annotated[str | None, typer.Option(help="Only this level and above.")] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines", "-n", min=0, help="Only the newest lines; with -f 10 unless told otherwise."
        ),
    ] = None,
) -> None:
    """Print the log readably."""
    settings = settings_of(context)
    path = import_module("gateway.logfile").log_path(settings.logging, settings.home)
    if path is None:
        raise GatewayError("logging.file is false: there is no log file to show")
    logview = import_module("gateway.logview")
    log_filter = logview.LogFilter(session=session, event=event, level=level)
    if follow and lines is None:
        lines = logview.FIRST_LINES
    logview.view(path, log_filter, out, lines=lines, follow=follow)


@app.command()
def replay(  # noqa: PLR0913 - an option each
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="tau-bench, pi, SWE-agent or OpenAI JSON.")],
    report: Annotated[
        Path | None, typer.Option(help="Write a page with charts and tables here.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Context length of the model, tokens.")] = None,
    engine: Annotated[str | None, typer.Option(help="Instead of context.engine.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Instead of compression.threshold, 0 to 1.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="system_and_3 or anchored, instead of prompt_caching.strategy."),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(help="5m or 1h, instead of prompt_caching.cache_ttl.")
    ] = None,
    gap: Annotated[
        str,
        typer.Option(
            help="Pauses that the prompt cache sees: none, busy (up to 2 minutes between turns),"
            " chat (up to 10 hours), recorded (busy where nothing is recorded)."
        ),
    ] = "recorded",
    early: Annotated[
        bool,
        typer.Option(
            "--early", help="Turn compression.early on; where it acts, play without it too."
        ),
    ] = False,
    restart_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop the gateway after so many requests, in the middle of a turn, and start it"
            " again on its database; conversations are then played one at a time.",
        ),
    ] = None,
    concatenate: Annotated[
        bool, typer.Option("--concatenate", help="Play all conversations of a file as one.")
    ] = False,
) -> None:
    """Play recorded conversations through the real path; exit code 1 if an answer is missing."""
    settings = settings_of(context)
    replay_module = import_module("gateway.replay")
    options = replay_module.ReplayOptions(
        report=report,
        window=window,
        engine=engine,
        threshold=threshold,
        strategy=strategy,
        ttl=ttl,
        early=early,
        gap=gap,
        restart_every=restart_every,
        concatenate=concatenate,
    )
    if not asyncio.run(replay_module.replay(settings, files, out, options)):
        raise typer.Exit(1)


@config_app.command("show")
def config_show(context: typer.Context, json: AsJson = False) -> None:
    """Print every setting with its value and where that comes from; secrets are masked."""
    found = loaded(context)
    configview = import_module("gateway.configview")
    if json:
        show_json(configview.as_data(found))
    else:
        configview.show(found, out)


@db_app.command("upgrade")
def db_upgrade(context: typer.Context) -> None:
    """Bring the database to this version's schema (`parley run` does it by itself)."""
    files = import_module("gateway.storage.files")
    say(f"schema revision {files.upgrade(database_path(settings_of(context)))}")


@db_app.command("current")
def db_current(context: typer.Context) -> None:
    """Print the schema revision of the database."""
    files = import_module("gateway.storage.files")
    say(files.current(database_path(settings_of(context))) or "no schema yet")


@db_app.command("check")
def db_check(context: typer.Context) -> None:
    """Compare the database with this version: revision, tables, integrity."""
    files = import_module("gateway.storage.files")
    step_back()
    problems = files.check(database_path(settings_of(context)))
    for problem in problems:
        warn(problem, "red")
    if problems:
        raise typer.Exit(1)
    say("the database is sound and has this version's schema")


@db_app.command("prune")
def db_prune(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be erased.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Erase what is older than `retention` and `storage.raw_days` allow, at once."""
    settings = settings_of(context)
    retention, raw_days = settings.retention, settings.storage.raw_days
    if dry_run:
        pruning = import_module("gateway.pruning")
        with opened(settings) as conn:
            counted = pruning.count_all(conn, retention, raw_days)
        gone = {name: each._asdict() for name, each in counted.items()}
    else:
        target = {"retention": retention.model_dump(), "raw_days": raw_days}
        gone = act(settings, "prune", orjson.dumps(target).decode())
    if json:
        show_json(gone)
        return
    for name, each in gone.items():
        say(f"{name}: {each['rows']:,} rows, {each['bytes']:,} bytes")


@db_app.command("compact")
def db_compact(context: typer.Context) -> None:
    """Make the file as small as what is in it; the gateway must be stopped."""
    files = import_module("gateway.storage.files")
    before, after = files.compact(database_path(settings_of(context)))
    say(f"{before:,} bytes before, {after:,} after")


@db_app.command("accept")
def db_accept(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Go on with the database that is there, after a restore: it may lack what was stored."""
    settings = settings_of(context)
    path = database_path(settings)
    identity = import_module("gateway.storage.identity")
    mark = identity.mark_of(path, settings.home)
    if not yes:
        what = path if path.exists() else "an empty database"
        typer.confirm(f"Go on with {what}, whatever it lacks?", abort=True, err=True)
    with import_module("gateway.storage.engine").lock_database(path):
        known = identity.accept(mark)
    say("the next start takes it as it is" if known else "there is nothing to accept")


@app.command()
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Where to write the copy.")],
) -> None:
    """Copy the database, consistently, also while the gateway runs."""
    maintenance = import_module("gateway.storage.maintenance")
    step_back()
    size = maintenance.backup(database_path(settings_of(context)), file)
    say(f"{file}: {size:,} bytes")


@app.command()
def forget(
    context: typer.Context,
    conversation: ConversationArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase one conversation for good: transcript, queue, sessions, stored outputs, files."""
    settings = settings_of(context)
    if not yes:
        with opened(settings) as conn:
            import_module("gateway.storage.history").overview(conn, conversation)
        typer.confirm(f"Erase conversation {conversation} for good?", abort=True, err=True)
    messages = act(settings, "forget", str(conversation))
    workspaces = import_module("gateway.workspaces").Workspaces
    workspaces(settings.tools.workspace, settings.home).forget(conversation)
    say(f"erased conversation {conversation} with {messages} messages")
