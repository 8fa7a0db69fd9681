"""`parley plugins`: which plugins there are, and which of them are active."""

from collections.abc import Sequence
from dataclasses import asdict

import typer

from agent.plugins.finding import PLUGINS, PluginInfo, available
from gateway.cli.common import AsJson, settings_of
from gateway.cli.console import say, show_json, show_table

plugins_app = typer.Typer(
    help="Plugins: tools, hooks and memory providers of others.", no_args_is_help=True
)


@plugins_app.command("list")
def plugins_list(context: typer.Context, *, json: AsJson = False) -> None:
    """List the plugins that were found (* is active), without running any of their code."""
    settings = settings_of(context)
    found = available(settings.home)
    enabled = settings.plugins.enabled
    missing = _missing(found, enabled)
    if json:
        plugins = [asdict(info) | {"enabled": info.name in enabled} for info in found]
        show_json({"plugins": plugins, "missing": missing})
        return
    nothing = f"there is no plugin, neither in {settings.home / PLUGINS} nor installed"
    rows = [_row(info, enabled) for info in found]
    show_table(("", "name", "source", "offers", "description"), rows, nothing)
    for info in found:
        if info.problem:
            say(f"! {info.name} ({info.source}) cannot be used: {info.problem}", "yellow")
    for name in missing:
        say(f"! plugins.enabled names {name}, which is not there", "yellow")


def _row(info: PluginInfo, enabled: Sequence[str]) -> tuple[str, ...]:
    mark = "!" if info.problem else "*" if info.name in enabled else ""
    offers = "; ".join(info.offers) or "(does not say)"
    return (mark, info.name, info.source, offers, info.description)


def _missing(found: Sequence[PluginInfo], enabled: Sequence[str]) -> list[str]:
    known = {info.name for info in found}
    return [name for name in dict.fromkeys(enabled) if name not in known]
