"""`parley config show`: the effective settings, secrets masked; `parley secrets reload`."""

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import typer
from pydantic import BaseModel, SecretStr
from rich.text import Text

from agent.processes import sandbox
from agent.safety.redaction import MASK, Redactor
from agent.settings import ReferencedSecret
from gateway.cli.common import AsJson
from gateway.cli.common import loaded as read
from gateway.cli.output import out, say, show_json
from gateway.settings.loading import PASSWORDS, Loaded, home_of
from gateway.settings.marks import Mark, mark_of
from gateway.settings.sources import path_of

if TYPE_CHECKING:
    from rich.console import Console


_redactor = Redactor()
_ADDRESSES = ("storage.url", "storage.direct_url")
# The one before the host is known by its place.
_PASSWORD = re.compile(rf"([?&](?:{'|'.join(PASSWORDS)})=)[^&]*")


class Row(NamedTuple):
    """One key; `value` is JSON data without secrets, `mark` says when a change takes effect."""

    key: str
    value: Any
    origin: str
    mark: Mark


config_app = typer.Typer(help="Show the effective settings.", no_args_is_help=True)
secrets_app = typer.Typer(help="Secrets that the settings refer to.", no_args_is_help=True)


@config_app.command("show")
def config_show(context: typer.Context, json: AsJson = False) -> None:
    """Print every setting, its value, when a change takes effect, and where it comes from.

    Secrets are masked, or shown as references.
    """
    found = read(context)
    if json:
        show_json(as_data(found))
        return
    show(found, out)
    tools = found.settings.tools
    if "terminal" in tools.enabled and tools.terminal.confine:
        for line in sandbox.report(tools.sandbox):
            out.print(f"sandbox: {line}", soft_wrap=True, markup=False)


@secrets_app.command("reload")
def secrets_reload(context: typer.Context, json: AsJson = False) -> None:
    """Have the running gateway read again what its settings refer to, as SIGHUP does."""
    from gateway.http import control  # noqa: PLC0415

    # Not the settings: a secret that this command cannot read is the gateway's to name.
    home = home_of(context.find_root().params.get("home"))
    found = asyncio.run(control.reload_secrets(home))
    if json:
        show_json(found)
        return
    if not found["references"]:
        say("no setting refers to a secret, so there is nothing to read again")
        return
    lines = [f"{words}: {line}" for key, words in _BECAME.items() for line in found[key]]
    for line in lines or ["nothing has changed"]:
        say(line)


_BECAME = {
    "renewed": "in use",
    "restart": "needs a restart",
    "refused": "in use, but refused",
    "unreadable": "not taken, the value before goes on",
}


def rows(loaded: Loaded) -> list[Row]:
    """Return every key in the order of the tree."""
    return [
        Row(
            key,
            _address(value) if key in _ADDRESSES else _masked(value),
            loaded.origins[key],
            mark_of(path_of(key)),
        )
        for key, value in loaded.values.items()
    ]


def _address(value: Any) -> Any:
    """Return the address of a database without its passwords: who reads it looks for the host."""
    if value is None or isinstance(value, ReferencedSecret):
        return _masked(value)
    return _redactor.text(_PASSWORD.sub(rf"\1{MASK}", value.get_secret_value()))


def as_data(loaded: Loaded) -> dict[str, Any]:
    """Return the rows for JSON, key → {value, origin, mark}."""
    return {
        row.key: {"value": row.value, "origin": row.origin, "mark": row.mark}
        for row in rows(loaded)
    }


def show(loaded: Loaded, console: "Console") -> None:
    """Print one aligned line for each key, then the warnings; what was set stands out."""
    table = rows(loaded)
    shown = [orjson.dumps(row.value).decode() for row in table]
    widths = max(len(row.key) for row in table), min(max(map(len, shown)), 40)
    for row, value in zip(table, shown, strict=True):
        style = "dim" if row.origin == "default" else ""
        line = Text(f"{row.key:<{widths[0]}}  ", "cyan")
        line.append(f"{value:<{widths[1]}}  ", style)
        line.append(f"{row.mark:<9}  ", "dim").append(row.origin, "dim")
        console.print(line, soft_wrap=True)
    for warning in loaded.warnings:
        console.print(Text(f"warning: {warning}", "yellow"), soft_wrap=True)


def _masked(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.reference if isinstance(value, ReferencedSecret) else MASK
        case Path():
            return str(value)
        case BaseModel():
            return _masked(value.model_dump())
        case tuple() | list():
            return [_masked(item) for item in value]
        case dict():
            return {str(name): _masked(item) for name, item in value.items()}
        case _:
            # A plain text may hold a key as well, as the address of a server does.
            return _redactor.value(value)
