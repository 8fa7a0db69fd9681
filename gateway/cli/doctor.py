"""`parley doctor`: the findings, why they matter, and how to fix them."""

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
from gateway.agent_ports.tools import with_walls
from gateway.cli.common import AsJson, loaded, opened, say, show_json
from gateway.errors import GatewayError, SettingsError
from gateway.findings.finding import Evidence
from gateway.findings.machine import clock_trouble
from gateway.findings.report import FINDINGS, Row, Shown, exit_code, report
from gateway.http import control
from gateway.settings.loading import Loaded, home_of, redactor_of
from gateway.settings.tree import Settings
from gateway.storage.database import location_of
from gateway.storage.people import mcp
from gateway.storage.queue import alerts
from gateway.supervision.credentials import INSIDE, Configured, ask_platform, learn_windows
from gateway.wiring import build_line, models_of, tried

MARKS: Mapping[Shown, tuple[str, str, str]] = {
    "error": ("✗", "red", "wrong"),
    "warning": ("!", "yellow", "warnings"),
    "note": ("·", "cyan", "notes"),
    "unknown": ("?", "dim", "skipped"),
    "fine": ("✓", "green", "fine"),
}
"""Mark, colour and word of each level."""
CLAUDE = "https://api.anthropic.com"

OF_AN_UPGRADE = (
    *("settings-readable", "settings-effect", "plugins-there"),
    *("database-down", "database-migrated", "restart-due"),
)
"""Findings about a start of this version: what it would change, or what would prevent it."""

doctor_app = typer.Typer(add_completion=False)


@doctor_app.command("doctor")
def doctor(  # noqa: PLR0913 - an option each
    context: typer.Context,
    *,
    json: AsJson = False,
    fix: Annotated[bool, typer.Option("--fix", help="Fix what is safe to fix.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show what is fine, too.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no provider.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read the whole database.")] = False,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Only what starting this version would change; offline."),
    ] = False,
) -> None:
    """Find what is wrong, why that matters, and how to fix it.

    Exit code 0: nothing to do; 1: warnings; 2: something is wrong; 3: nothing could be checked.
    """
    with _facts(context, offline=offline or upgrade, deep=deep) as facts:
        open_alerts = alerts.found(facts.opened) if facts.opened and not upgrade else ()
        wanted = [each for each in FINDINGS.values() if not upgrade or each.id in OF_AN_UPGRADE]
        rows = report(wanted, facts, open_alerts)
    fixed = [each.fix() for each in rows if fix and each.fix]
    _show(rows, json=json, everything=everything or upgrade)
    for line in fixed if not json else ():
        say(f"fixed: {line}", "green")
    raise typer.Exit(exit_code(rows))


@contextmanager
def _facts(context: typer.Context, *, offline: bool, deep: bool) -> Iterator[Evidence]:
    """Gather the evidence; anything that cannot be read is part of it."""
    where = home_of(context.find_root().params.get("home"))
    try:
        found = loaded(context)
    except SettingsError as exc:
        yield Evidence(where, problems=tuple(str(exc).splitlines()), deep=deep)
        return
    parts = asyncio.run(_asked(found, offline=offline))
    parts["problems"], parts["tried"] = tried(found.settings)
    try:
        with opened(found.settings) as conn:
            yield Evidence(found.settings.home, found, opened=conn, deep=deep, **parts)
            return
    except GatewayError as exc:
        trouble = str(exc)
    yield Evidence(found.settings.home, found, database_trouble=trouble, deep=deep, **parts)


async def _asked(found: Loaded, *, offline: bool) -> dict[str, Any]:
    """Ask the gateway that runs here, and the providers of the models."""
    running, hangs = await _running(found)
    line: list[Configured] = []
    with suppress(SettingsError):
        line = build_line(found.settings)
    told: dict[str, Any] = {"running": running, "hangs": hangs, "line": line}
    try:
        if offline:
            return told
        # The findings report what would be logged.
        with structlog.testing.capture_logs():
            told["keys"], told["accounts"], told["servers"], told["clock"] = await asyncio.gather(
                learn_windows(line),
                _tokens(found),
                _servers(found, running),
                _clock(line),
            )
    finally:
        for model in models_of(line):
            await model.close()
    return told | {"asked": True}


async def _running(found: Loaded) -> tuple[dict[str, Any] | None, str]:
    """Return the state of the gateway that runs here, or why it does not answer.

    `waiting` are changed settings that it does not use yet.
    """
    try:
        said = await control.ready_in(found.settings.home)
    except GatewayError as exc:
        return None, str(exc)
    if said is None:
        return None, ""
    try:
        async with asyncio.timeout(control.READY_WITHIN_S):
            different = await control.ask_settings(found.settings.home, "differences")
    except TimeoutError:
        waiting = ["what the file says: that was not answered in time"]
    except GatewayError as exc:
        # It reads its settings with its own environment.
        waiting = [str(exc)]
    else:
        waiting = [each["key"] for each in different]
    return {**said, "waiting": waiting}, ""


async def _clock(line: Sequence[Configured]) -> str:
    """Compare this machine's clock with that of the first model's server."""
    for each in line:
        provider = each.models[0].provider
        if provider not in INSIDE:
            block = each.settings.model_copy(update={"provider": provider})
            is_claude = provider == "anthropic" and block.base_url is None
            return await clock_trouble(CLAUDE if is_claude else base_url_of(block))
    return ""


async def _servers(found: Loaded, running: Mapping[str, Any] | None) -> dict[str, str]:
    """Connect once to each MCP server that no gateway is connected to; return what is wrong."""
    settings_, masked = found.settings, redactor_of(found.settings).text
    if running is not None or not any(each.enabled for each in settings_.tools.mcp.values()):
        return {}
    # It imports the SDK, which most gateways do not need.
    from agent.tools.mcp.servers import mcp_tools  # noqa: PLC0415

    sandboxed = with_walls(settings_, _confined(settings_))
    async with mcp_tools(sandboxed, settings_.home, settings_.tools.sandbox) as tools:
        states = tools.states()
    said = {each.name: f" (it said: {each.said})" if each.said else "" for each in states}
    return {each.name: masked(f"{each.problem or ''}{said[each.name]}") for each in states}


def _confined(settings_: Settings) -> Collection[str]:
    """Return the MCP servers that stay confined."""
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
    """Ask each platform about the tokens of its accounts."""
    on = found.settings.platforms.on()
    reports = await asyncio.gather(*(ask_platform(*each) for each in on))
    return {f"{name}:{each.name}": report for (name, each), report in zip(on, reports, strict=True)}


def _show(rows: Sequence[Row], *, json: bool, everything: bool) -> None:
    """Print rows; without `everything` only the number of those that are fine."""
    if json:
        show_json([each.as_data() for each in rows])
        return
    for each in rows:
        if everything or each.level not in {"fine", "unknown"}:
            mark, style, _ = MARKS[each.level]
            say(f"{mark} {each.id}: {each.text}", style)
            if each.needs_attention:
                say(f"    {each.why}", "dim")
                say(f"    {each.remedy}")
    # The first row of a finding is its worst.
    worst: dict[str, Shown] = {}
    for each in rows:
        worst.setdefault(each.id, each.level)
    counts = Counter(worst.values())
    told = ", ".join(f"{counts[level]} {MARKS[level][2]}" for level in MARKS if counts[level])
    say(f"\n{len(worst)} checks: {told}")
