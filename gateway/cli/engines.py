"""`parley engines`: list the context engines, choose one; no code of an engine runs here."""

from collections.abc import Sequence
from typing import Any

import typer

from agent.plugins import engines
from agent.plugins.loading import Found
from agent.plugins.registry import DEFAULT
from gateway.cli.common import AsJson, loaded, settings_of
from gateway.cli.output import out, say, show_json, table, warn
from gateway.errors import NotFound
from gateway.settings.editing import set_values
from gateway.settings.loading import CONFIG_NAME

KEY = "context.engine"

engines_app = typer.Typer(
    help="The context engines: who decides what the model sees.", no_args_is_help=True
)


def _as_data(info: Found) -> dict[str, Any]:
    shown = ("name", "source", "description", "offers", "problem")
    return {name: getattr(info, name) for name in shown}


@engines_app.command("list")
def engines_list(context: typer.Context, *, json: AsJson = False) -> None:
    """List the engines that were found (* is active), without running any of their code."""
    settings = settings_of(context)
    found = engines.available(settings.home)
    active = _active(found, settings.context.engine)
    if json:
        show_json([_as_data(info) | {"active": info is active} for info in found])
    else:
        _show_engines(found, active)
    if active.name != settings.context.engine:
        warn(f"{KEY} is {settings.context.engine!r}, which cannot be used: {DEFAULT} is active")


@engines_app.command("use")
def engines_use(context: typer.Context, name: str) -> None:
    """Choose the engine: write `context.engine` into the settings file."""
    before = loaded(context)
    found = engines.available(before.settings.home)
    usable = [info.name for info in found if info.problem is None]
    if name not in usable:
        problems = [f"{name} cannot be used: {info.problem}" for info in found if info.name == name]
        wrong = problems[0] if problems else f"there is no engine {name!r}"
        raise NotFound(f"{wrong}; there are: {', '.join(usable)}")
    file = before.config_file or before.settings.home / CONFIG_NAME
    set_values(file, {("context", "engine"): name})
    say(f"{file}: {KEY} is {name}")
    # Read again: a variable of the environment may override what the file now says.
    after = loaded(context)
    if after.settings.context.engine == name:
        say("A running gateway uses it with the next turn.")
    else:
        warn(f"{after.origins[KEY]} overrides it with {after.settings.context.engine!r}")


def _show_engines(found: Sequence[Found], active: Found) -> None:
    rows = [
        (
            "*" if info is active else "!" if info.problem else "",
            *(info.name, info.source, info.description),
        )
        for info in found
    ]
    out.print(table(("", "name", "source", "description"), rows))
    _show_problems(found)


def _show_problems(found: Sequence[Found]) -> None:
    for info in found:
        if info.problem:
            say(f"! {info.name} ({info.source}) cannot be used: {info.problem}", "yellow")


def _active(found: Sequence[Found], name: str) -> Found:
    """Return the engine in use: the one of this name, or the default if that cannot be used."""
    usable = [info for info in found if info.problem is None]
    default = next(info for info in usable if info.name == DEFAULT)
    return next((info for info in usable if info.name == name), default)
