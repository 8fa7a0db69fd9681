"""`parley engines`: which context engines there are, and choosing one."""

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.engines.registry import DEFAULT, EngineInfo, available
from gateway.configfile import set_value
from gateway.errors import NotFound
from gateway.settings import CONFIG_NAME, Loaded, load_settings

KEY = "context.engine"
PIPE_COLUMNS = 160

engines_app = typer.Typer(
    help="The context engines: who decides what the model sees.", no_args_is_help=True
)
out = Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)
err = Console(stderr=True)


@engines_app.command("list")
def engines_list(context: typer.Context) -> None:
    """List the engines that were found (* is active), without running any of their code."""
    settings = _loaded(context).settings
    found = available(settings.home)
    active = _active(found, settings.context.engine)
    table = Table("", "name", "source", "description", box=None, pad_edge=False)
    for info in found:
        mark = "*" if info is active else "!" if info.problem else ""
        table.add_row(*map(Text, (mark, info.name, info.source, info.description)))
    out.print(table)
    for info in found:
        if info.problem:
            text = f"! {info.name} ({info.source}) cannot be used: {info.problem}"
            out.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if active.name != settings.context.engine:
        text = f"{KEY} is {settings.context.engine!r}, which cannot be used: {DEFAULT} is active"
        err.print(text, style="yellow", markup=False, soft_wrap=True)


@engines_app.command("use")
def engines_use(context: typer.Context, name: str) -> None:
    """Choose the engine: write `context.engine` into the settings file."""
    before = _loaded(context)
    usable = list(dict.fromkeys(info.name for info in _usable(before)))
    if name not in usable:
        raise NotFound(f"{_why_not(before, name)}; there are: {', '.join(usable)}")
    file = before.config_file or before.settings.home / CONFIG_NAME
    set_value(file, "context", "engine", name)
    out.print(f"{file}: {KEY} is {name}", markup=False, highlight=False, soft_wrap=True)
    after = _loaded(context)
    if after.settings.context.engine == name:
        out.print("It is used from the next start of `parley run` on.", markup=False)
    else:
        text = f"{after.origins[KEY]} overrides it with {after.settings.context.engine!r}"
        err.print(text, style="yellow", markup=False, soft_wrap=True)


def _loaded(context: typer.Context) -> Loaded:
    """Read the settings with the options that stand before the subcommand."""
    options = context.find_root().params
    config = options.get("config")
    return load_settings(
        config=Path(config) if config else None, overrides={"home": options.get("home")}
    )


def _usable(found: Loaded) -> list[EngineInfo]:
    return [info for info in available(found.settings.home) if info.problem is None]


def _active(found: list[EngineInfo], name: str) -> EngineInfo:
    """Return what is in force: the engine of this name, or the one that takes its place."""
    usable = [info for info in found if info.problem is None]
    default = next(info for info in usable if info.name == DEFAULT)
    return next((info for info in usable if info.name == name), default)


def _why_not(found: Loaded, name: str) -> str:
    problems = [each.problem for each in available(found.settings.home) if each.name == name]
    return f"{name} cannot be used: {problems[0]}" if problems else f"there is no engine {name!r}"
