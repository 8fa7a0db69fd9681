"""`parley engines`: which context engines there are, and choosing one."""

from dataclasses import asdict

import typer

from agent.plugins.engines.registry import DEFAULT, EngineInfo, available
from gateway.cli.common import AsJson, loaded
from gateway.cli.console import out, say, show_json, table, warn
from gateway.errors import NotFound
from gateway.settings.editing import set_value
from gateway.settings.loading import CONFIG_NAME, Loaded

KEY = "context.engine"

engines_app = typer.Typer(
    help="The context engines: who decides what the model sees.", no_args_is_help=True
)


@engines_app.command("list")
def engines_list(context: typer.Context, *, json: AsJson = False) -> None:
    """List the engines that were found (* is active), without running any of their code."""
    settings = loaded(context).settings
    found = available(settings.home)
    active = _active(found, settings.context.engine)
    if json:
        show_json([asdict(info) | {"active": info is active} for info in found])
    else:
        _show(found, active)
    if active.name != settings.context.engine:
        warn(f"{KEY} is {settings.context.engine!r}, which cannot be used: {DEFAULT} is active")


@engines_app.command("use")
def engines_use(context: typer.Context, name: str) -> None:
    """Choose the engine: write `context.engine` into the settings file."""
    before = loaded(context)
    usable = list(dict.fromkeys(info.name for info in _usable(before)))
    if name not in usable:
        raise NotFound(f"{_why_not(before, name)}; there are: {', '.join(usable)}")
    file = before.config_file or before.settings.home / CONFIG_NAME
    set_value(file, "context", "engine", name)
    say(f"{file}: {KEY} is {name}")
    after = loaded(context)
    if after.settings.context.engine == name:
        say("It is used from the next start of `parley run` on.")
    else:
        warn(f"{after.origins[KEY]} overrides it with {after.settings.context.engine!r}")


def _show(found: list[EngineInfo], active: EngineInfo) -> None:
    rows = [
        (
            "*" if info is active else "!" if info.problem else "",
            *(info.name, info.source, info.description),
        )
        for info in found
    ]
    out.print(table(("", "name", "source", "description"), rows))
    for info in found:
        if info.problem:
            say(f"! {info.name} ({info.source}) cannot be used: {info.problem}", "yellow")


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
