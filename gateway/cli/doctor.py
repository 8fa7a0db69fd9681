"""`parley doctor`: what is not as it should be, why that matters, and how it is fixed.

`parley upgrade --check` makes those of its checks that are about a new version.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from adapters.registry import AccountReport
from agent.models.openai.client import base_url_of
from gateway.cli.common import AsJson, loaded, opened
from gateway.cli.output import say, show_json
from gateway.doctor import checks, database, home, models, people, safety, settings, versions
from gateway.doctor.checks import Examined, Level, Result, Sight
from gateway.errors import GatewayError, SettingsError
from gateway.http import control
from gateway.settings.loading import Loaded, home_of, redactor_of
from gateway.settings.tree import Settings
from gateway.storage.database import location_of
from gateway.storage.people import mcp
from gateway.supervision.start_checks import report_of
from gateway.wiring import (
    INSIDE,
    Configured,
    build_line,
    learn_windows,
    models_of,
    tried,
    with_walls,
)

LOOKED_AT = (settings, home, database, models, people, safety, versions)
"""The rooms whose checks are made, in this order."""
MARKS: dict[Level, tuple[str, str]] = {
    "wrong": ("✗", "red"),
    "warning": ("!", "yellow"),
    "unknown": ("?", "dim"),
    "note": ("·", "cyan"),
    "fine": ("✓", "green"),
}
CLAUDE = "https://api.anthropic.com"
NEEDS_ATTENTION: tuple[Level, ...] = ("wrong", "warning")

OF_AN_UPGRADE = (
    *("settings-readable", "settings-effect", "plugins-there", "engine-there"),
    *("database-readable", "database-migrated", "versions-running"),
)
"""Checks that say what a start of this version would change, or what would keep it from one."""

doctor_app = typer.Typer(add_completion=False)
upgrade_app = typer.Typer(add_completion=False)


@doctor_app.command("doctor")
def doctor(
    context: typer.Context,
    *,
    json: AsJson = False,
    fix: Annotated[bool, typer.Option("--fix", help="Fix what is safe to fix.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show what is fine, too.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no provider.")] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Read the whole database, and ask for known holes of packages."
        ),
    ] = False,
) -> None:
    """Find what is wrong, why that matters, and how to fix it.

    Exit code 0: nothing to do; 1: warnings; 2: something is wrong; 3: nothing could be checked.
    """
    with _examined(context, offline=offline, deep=deep) as examined:
        results = [checks.made(each, examined) for each in checks.in_order()]
    fixed = [each.fix() for result in results for each in result.seen if fix and each.fix]
    _show(results, json=json, everything=everything)
    for line in fixed if not json else ():
        say(f"fixed: {line}", "green")
    raise typer.Exit(checks.exit_code(results))


@upgrade_app.command("upgrade")
def upgrade(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Compare; nothing is changed.")] = False,
    json: AsJson = False,
) -> None:
    """Say what starting this version would change here, and what to do first; offline.

    These are checks of `parley doctor`. Exit code 1 where something is wrong.
    """
    if not check:
        raise typer.BadParameter(
            "Parley does not replace itself: install the new version as you installed this one"
            " (docs/upgrade.md), then `parley upgrade --check`"
        )
    with _examined(context, offline=True, deep=False) as examined:
        results = [checks.made(checks.CHECKS[name], examined) for name in OF_AN_UPGRADE]
    _show(results, json=json, everything=True)
    raise typer.Exit(1 if any(each.level == "wrong" for each in results) else 0)


@contextmanager
def _examined(context: typer.Context, *, offline: bool, deep: bool) -> Iterator[Examined]:
    """Read what there is to look at; what cannot be read is part of the answer."""
    where = home_of(context.find_root().params.get("home"))
    try:
        found = loaded(context)
    except SettingsError as exc:
        yield Examined(where, problems=tuple(str(exc).splitlines()), deep=deep)
        return
    parts = asyncio.run(_asked(found, offline=offline))
    parts["problems"], parts["tried"] = tried(found.settings)
    try:
        with opened(found.settings) as conn:
            yield Examined(found.settings.home, found, opened=conn, deep=deep, **parts)
            return
    except GatewayError as exc:
        trouble = str(exc)
    yield Examined(found.settings.home, found, database_trouble=trouble, deep=deep, **parts)


async def _asked(found: Loaded, *, offline: bool) -> dict[str, Any]:
    """Ask the gateway that runs here, and the providers of the models."""
    running = await _running(found)
    line: list[Configured] = []
    with suppress(SettingsError):
        line = build_line(found.settings)
    try:
        if offline:
            return {"running": running, "line": line}
        # What they would log is what the checks say.
        with structlog.testing.capture_logs():
            findings, accounts, servers, clock = await asyncio.gather(
                learn_windows(line),
                _tokens(found),
                _servers(found, running),
                _clock(line),
            )
    finally:
        for model in models_of(line):
            await model.close()
    asked = {"findings": findings, "accounts": accounts, "servers": servers, "clock": clock}
    return {"running": running, "line": line, **asked}


async def _running(found: Loaded) -> dict[str, Any] | None:
    """Return what the gateway that runs here says of itself, and what it does not go by yet."""
    try:
        said = await control.ready_in(found.settings.home)
    except GatewayError as exc:
        return {checks.HANGS: str(exc)}
    if said is None:
        return None
    try:
        async with asyncio.timeout(control.READY_WITHIN_S):
            different = await control.ask_settings(found.settings.home, "differences")
    except TimeoutError:
        return {**said, "waiting": ["what the file says: that was not answered in time"]}
    except GatewayError as exc:
        # It reads its settings with its own environment.
        return {**said, "waiting": [str(exc)]}
    return {**said, "waiting": [each["key"] for each in different]}


async def _clock(line: Sequence[Configured]) -> str:
    """Return what the first model's server says against this machine's clock."""
    for each in line:
        provider = each.models[0].provider
        if provider not in INSIDE:
            block = each.settings.model_copy(update={"provider": provider})
            is_claude = provider == "anthropic" and block.base_url is None
            return await home.clock_trouble(CLAUDE if is_claude else base_url_of(block))
    return ""


async def _servers(found: Loaded, running: Mapping[str, Any] | None) -> dict[str, str]:
    """Connect once to each MCP server that no gateway is connected to; return what is wrong."""
    settings_, masked = found.settings, redactor_of(found.settings).text
    if running is not None or not any(each.enabled for each in settings_.tools.mcp.values()):
        return {}
    # With the SDK, which most gateways have no use for.
    from agent.tools.mcp.servers import mcp_tools  # noqa: PLC0415

    sandboxed = with_walls(settings_, _confined(settings_))
    async with mcp_tools(sandboxed, settings_.home, settings_.tools.sandbox) as tools:
        states = tools.states()
    said = {each.name: f" (it said: {each.said})" if each.said else "" for each in states}
    return {each.name: masked(f"{each.problem or ''}{said[each.name]}") for each in states}


def _confined(settings_: Settings) -> Collection[str]:
    """Return the MCP servers that stay confined, by the database if it can be read."""
    location = location_of(settings_)
    if isinstance(location, Path) and not location.exists():
        return ()
    try:
        with opened(settings_) as conn:
            return mcp.confined(conn)
    except GatewayError:
        # An older schema, or unreachable: no program runs with fewer walls than it had.
        return mcp.UNKNOWN.confined


async def _tokens(found: Loaded) -> dict[str, AccountReport]:
    """Ask each platform about the tokens of its accounts, side by side."""
    on = found.settings.platforms.on()
    reports = await asyncio.gather(*(report_of(*each) for each in on))
    return {f"{name}:{each.name}": report for (name, each), report in zip(on, reports, strict=True)}


def _show(results: Sequence[Result], *, json: bool, everything: bool) -> None:
    """Print the worst first; of what is fine only how much there is, unless all is wanted."""
    if json:
        show_json([_as_data(result, seen) for result in results for seen in result.seen])
        return
    shown = [
        (result, seen)
        for result in results
        for seen in result.seen
        if everything or seen.level not in {"fine", "unknown"}
    ]
    shown.sort(key=lambda each: -checks.WORSE.index(each[1].level))
    for result, seen in shown:
        mark, style = MARKS[seen.level]
        say(f"{mark} {result.check.id}: {seen.text}", style)
        if seen.level in NEEDS_ATTENTION:
            say(f"    {result.check.why}", "dim")
            say(f"    {seen.remedy or result.check.remedy}")
    counts = Counter(each.level for each in results)
    words: dict[Level, str] = {
        "wrong": "wrong",
        "warning": "warnings",
        "note": "notes",
        "unknown": "skipped",
        "fine": "fine",
    }
    told = ", ".join(f"{counts[level]} {word}" for level, word in words.items() if counts[level])
    say(f"\n{len(results)} checks: {told}")


def _as_data(result: Result, seen: Sight) -> dict[str, Any]:
    return {
        "id": result.check.id,
        "level": seen.level,
        "text": seen.text,
        "why": result.check.why,
        "remedy": seen.remedy or result.check.remedy,
        "fixable": seen.fix is not None,
    }
