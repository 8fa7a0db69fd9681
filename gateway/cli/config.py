"""`parley config`: shows, checks and changes settings, and has a running gateway go by them.

Also `parley adapter restart`.
"""

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import yaml
from pydantic import SecretStr
from rich.console import Console
from rich.text import Text

from agent.processes import sandbox
from agent.safety.redaction import MASK, Redactor
from agent.settings import ReferencedSecret
from gateway.backup.inventory import of_settings
from gateway.cli.common import AsJson
from gateway.cli.common import loaded as read
from gateway.cli.output import out, say, show_json, warn
from gateway.errors import GatewayNotRunning, SettingsError
from gateway.http import control
from gateway.settings.changes import SettingsQuestion, located, named
from gateway.settings.editing import OWNER_ONLY, set_values
from gateway.settings.former import former
from gateway.settings.loading import (
    PASSWORDS,
    Loaded,
    file_of,
    home_of,
    load_settings,
    read_foreign,
)
from gateway.settings.references import refers
from gateway.settings.rules import contradictions
from gateway.settings.sources import path_of, shown
from gateway.settings.tree import Settings, mark_of, plain
from gateway.setup.hermes_settings import hint
from gateway.wiring import refuse_unusable, tried

_redactor = Redactor()
_ADDRESSES = ("storage.url", "storage.direct_url")
# The one before the host is known by its place.
_PASSWORD = re.compile(rf"([?&](?:{'|'.join(PASSWORDS)})=)[^&]*")


_OF_OTHERS = {"plugin", "engine"}


config_app = typer.Typer(help="Show, check and change the settings.", no_args_is_help=True)
adapter_app = typer.Typer(help="The accounts of platforms.", no_args_is_help=True)


def settings_keys(incomplete: str) -> list[str]:
    """Return the keys of the settings that begin so; none if they cannot be read."""
    try:
        return [key for key in load_settings().origins if key.startswith(incomplete)]
    except SettingsError:
        return []


@config_app.command("show")
def config_show(
    context: typer.Context,
    json: AsJson = False,
    running: Annotated[
        bool, typer.Option("--running", help="What the running gateway goes by.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="How the file differs from what it goes by.")
    ] = False,
) -> None:
    """Print every setting, its value, when a change takes effect, and where it comes from.

    Secrets are masked, or shown as references; those of a running gateway as fingerprints.
    """
    if running or diff:
        _show_running(context, diff=diff, json=json)
        return
    found = read(context)
    if json:
        show_json(rows(found))
        return
    show(found, out)
    tools = found.settings.tools
    if "terminal" in tools.enabled and tools.terminal.confine:
        for line in sandbox.report(tools.sandbox):
            out.print(f"sandbox: {line}", soft_wrap=True, markup=False)


def _show_running(context: typer.Context, *, diff: bool, json: bool) -> None:
    found = _asked(context, "differences" if diff else "running")
    if json:
        show_json(found)
    elif not diff:
        width = max(map(len, found))
        for key, row in found.items():
            say(f"{key:<{width}}  {row['value']}  {row['mark']}  {row['origin']}")
    else:
        for each in found:
            say(f"{each['key']}: {each['before']} → {each['after']} ({each['mark']})")
        if not found:
            say("the running gateway goes by what the settings say")


def _asked(context: typer.Context, question: SettingsQuestion, target: str = "") -> Any:
    """Return what the running gateway answers."""
    # Not the settings: what cannot be read of them here is the gateway's to name.
    home = home_of(context.find_root().params.get("home"))
    return asyncio.run(control.ask_settings(home, question, target))


@config_app.command("check")
def config_check(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="Instead of the settings file in use.")
    ] = None,
) -> None:
    """Say whether a gateway would start with these settings; nothing is changed.

    No network call is made. Exit code 1 if it would not. For a FILE that is not in use no secret is
    read and no plugin loaded; the command lists what it would run.
    """
    chosen = context.find_root().params
    path = file_of(chosen["config"], chosen["home"])
    if file is not None and file.absolute() != path.absolute():
        _check_another(file, home_of(chosen["home"]))
        return
    try:
        found = read(context)
    except SettingsError as exc:
        raise SettingsError("\n".join(located(exc, path))) from exc
    problems, logged = tried(found.settings)
    if problems:
        raise SettingsError("\n".join(located(SettingsError("\n".join(problems)), path)))
    left_out = [
        f"{key} {each[key]}: {each['reason']}"
        for each in logged
        for key in _OF_OTHERS & each.keys()
    ]
    for warning in (*found.warnings, *left_out):
        say(f"warning: {warning}", "yellow")
    say(f"{path}: a gateway can go by these settings")


def _check_another(file: Path, home: Path) -> None:
    try:
        settings = read_foreign(file, home)
        _refuse_contradictions(settings)
    except SettingsError as exc:
        raise SettingsError("\n".join(located(exc, file))) from exc
    say(f"{file}: its keys and values are valid. It is not in use, so it was not tried. With it:")
    for line in [*of_settings(settings)] or ["a gateway runs nothing but itself"]:
        say(f"  {line}")
    say(f"`parley --config {file} config check` tries it: reads its secrets and runs its commands")


def _refuse_contradictions(settings: Settings) -> None:
    """Refuse values that break a rule, except those behind a reference."""
    values = {name: value for name, (_, value) in named(settings).items()}
    found = contradictions(settings, values)
    if wrong := [f"{key}: {text}" for key, text in found if not refers(values.get(key))]:
        raise SettingsError("\n".join(wrong))


@config_app.command("set")
def config_set(
    context: typer.Context,
    key: Annotated[
        str,
        typer.Argument(help="As `parley config show` names it.", autocompletion=settings_keys),
    ],
    value: Annotated[str, typer.Argument(help="As it would stand in the file.")],
    json: AsJson = False,
) -> None:
    """Write a setting into the settings file; comments stay. A running gateway goes by it at once.

    What a gateway could not go by is not written.
    """
    chosen = context.find_root().params
    file, path = file_of(chosen["config"], chosen["home"]), path_of(key)
    if instead := former(path):
        raise SettingsError(f"{key} is no longer a setting: {instead}")
    spellings = list({repr(each): each for each in (_as_yaml(value), value)}.values())
    problems: list[SettingsError] = []
    for each in spellings:
        try:
            is_closed = set_values(file, {path: each}, partial(_check_draft, context, file))
            break
        except SettingsError as exc:
            problems.append(exc)
    else:
        raise problems[0]
    after = read(context)
    origin = after.origins.get(key, "")
    if origin and origin not in {str(file), file.name}:
        warn(f"{key}: {origin} overrides what the file says now")
    try:
        outcome = _asked(context, "reload")
    except GatewayNotRunning:
        outcome = None
    if json:
        show_json({"file": str(file), "key": key, "closed": is_closed, "reload": outcome})
        raise typer.Exit(1 if outcome and outcome["problems"] else 0)
    say(f"{file}: {key} is {shown(each, hidden=_is_secret(after, key))}")
    if is_closed:
        say(f"{file}: {OWNER_ONLY}")
    if outcome is None:
        say("no gateway runs here; it counts from the next start on")
    else:
        _show_outcome(outcome)


def _as_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _is_secret(found: Loaded, key: str) -> bool:
    value = found.values.get(key)
    return isinstance(value, SecretStr) or (
        isinstance(value, tuple) and any(isinstance(each, SecretStr) for each in value)
    )


def _check_draft(context: typer.Context, file: Path, draft: Path) -> None:
    """Refuse a file that a gateway could not go by; its name in the messages is that of `file`."""
    home = context.find_root().params["home"]
    try:
        found = load_settings(config=draft, overrides={"home": home}, hint=hint)
        refuse_unusable(found.settings)
    except SettingsError as exc:
        lines = located(exc, draft)
        text = "\n".join(lines).replace(str(draft), file.name)
        raise SettingsError(f"nothing was changed: {text}") from exc


@config_app.command("reload")
def config_reload(
    context: typer.Context,
    json: AsJson = False,
    *,
    secrets: Annotated[
        bool,
        typer.Option(
            "--secrets", help="Only what the settings refer to, even while the file is wrong."
        ),
    ] = False,
) -> None:
    """Have the running gateway read settings and secrets again; on replicas the others as well.

    Exit code 1 where they are wrong: nothing was changed then.
    """
    outcome = _asked(context, "secrets" if secrets else "reload")
    if json:
        show_json(outcome)
        raise typer.Exit(1 if outcome.get("problems") else 0)
    if secrets:
        _show_secrets(outcome)
    else:
        _show_outcome(outcome)


def _show_outcome(outcome: dict[str, Any]) -> None:
    """Print what became of each setting and secret.

    Raises:
        SettingsError: They are wrong, and nothing was changed.
    """
    if outcome["problems"]:
        raise SettingsError("\n".join(["nothing was changed:", *outcome["problems"]]))
    lines = [f"{words}: {line}" for key, words in _COUNTS.items() for line in outcome[key]]
    lines += [
        f"{words}: {line}" for key, words in _BECAME.items() for line in outcome["secrets"][key]
    ]
    for line in lines or ["nothing has changed"]:
        say(line)


_COUNTS = {
    "live": "in effect now",
    "next_turn": "in effect with the next turn",
    "restart": "needs a restart",
    "adapters": "restarted",
    "warnings": "warning",
}


@adapter_app.command("restart")
def adapter_restart(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="As in telegram, or slack:work.")],
    json: AsJson = False,
) -> None:
    """Stop and start an account's adapter, with its token as it is now; nothing is lost."""
    found = _asked(context, "restart", name)
    if json:
        show_json(found)
        return
    for line in found:
        say(line)


def _show_secrets(found: dict[str, Any]) -> None:
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


def rows(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Return every key in the order of the tree, with its value, origin and mark.

    Values are JSON data without secrets; a mark says when a change takes effect.
    """
    return {
        key: {
            "value": _address(value) if key in _ADDRESSES else _masked(value),
            "origin": loaded.origins[key],
            "mark": mark_of(path_of(key)),
        }
        for key, value in loaded.values.items()
    }


def _address(value: Any) -> Any:
    """Return the address of a database without its passwords: who reads it looks for the host."""
    if value is None or isinstance(value, ReferencedSecret):
        return _masked(value)
    return _redactor.text(_PASSWORD.sub(rf"\1{MASK}", value.get_secret_value()))


def show(loaded: Loaded, console: Console) -> None:
    """Print one aligned line for each key, then the warnings; what was set stands out."""
    table = rows(loaded)
    shown = {key: orjson.dumps(row["value"]).decode() for key, row in table.items()}
    widths = max(map(len, table)), min(max(map(len, shown.values())), 40)
    for key, row in table.items():
        style = "dim" if row["origin"] == "default" else ""
        line = Text(f"{key:<{widths[0]}}  ", "cyan")
        line.append(f"{shown[key]:<{widths[1]}}  ", style)
        line.append(f"{row['mark']:<9}  ", "dim").append(row["origin"], "dim")
        console.print(line, soft_wrap=True)
    for warning in loaded.warnings:
        console.print(Text(f"warning: {warning}", "yellow"), soft_wrap=True)


def _masked(value: Any) -> Any:
    # A plain text may hold a key as well, as the address of a server does.
    return plain(value, lambda secret: getattr(secret, "reference", MASK), _redactor.text)
