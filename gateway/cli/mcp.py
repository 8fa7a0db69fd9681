"""`parley mcp`: what the MCP servers of the settings offer, and what is wrong with them."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
import typer

from agent.safety.redaction import Redactor
from agent.safety.threats import revealed
from agent.tools.mcp import servers
from agent.tools.mcp.listing import Offered
from agent.tools.mcp.servers import ServerReport
from agent.tools.truncate import beginning_of
from gateway.cli.common import AsJson, loaded, opened
from gateway.cli.output import out, say, show_json, table
from gateway.errors import GatewayError
from gateway.settings.loading import secret_values
from gateway.settings.tree import Settings
from gateway.storage.database import location_of
from gateway.storage.people import mcp
from gateway.wiring import unconfined_in, with_walls

DESCRIPTION_CHARS = 80

mcp_app = typer.Typer(help="Tools of MCP servers (tools.mcp).", no_args_is_help=True)


@mcp_app.command("list")
def mcp_list(context: typer.Context, *, json: AsJson = False) -> None:
    """Connect to every enabled server, and show its tools and those that cannot be used.

    Ends with 1 if a server cannot be reached.
    """
    settings = loaded(context).settings
    off = sorted(name for name, server in settings.tools.mcp.items() if not server.enabled)
    confined, states = on_record(settings)
    # What goes wrong is in the reports.
    with structlog.testing.capture_logs():
        reports = asyncio.run(server_reports(settings, confined))
    redactor = Redactor(secret_values(settings))
    if json:
        servers_ = [_as_data(each, settings, redactor, states) for each in reports]
        show_json({
            "servers": servers_,
            "off": off,
            "unconfined": unconfined_in(settings, confined),
        })
    else:
        _show(reports, off, settings, redactor, states)
        if reports and (names := unconfined_in(settings, confined)):
            say(f"! unconfined, as docs/mcp.md says: {', '.join(names)}", "yellow")
    if any(report.problem for report in reports):
        raise typer.Exit(1)


def on_record(settings: Settings) -> tuple[Collection[str], Mapping[str, str]]:
    """Return the servers that stay confined, and owners' decisions about texts, by digest."""
    location = location_of(settings)
    if isinstance(location, Path) and not location.exists():
        return (), {}
    try:
        with opened(settings) as conn:
            return mcp.confined(conn), {each.held.digest: each.state for each in mcp.texts(conn)}
    except GatewayError:
        # An older schema, or unreachable: no program runs with fewer walls than it had.
        return mcp.UNKNOWN.confined, {}


async def server_reports(settings: Settings, confined: Collection[str]) -> Sequence[ServerReport]:
    """Connect to each enabled server once, and return what became of it."""
    async with servers.connected(
        with_walls(settings, confined), settings.home, settings.tools.sandbox
    ) as started:
        return [each.report() for each in started]


def _as_data(
    report: ServerReport, settings: Settings, redactor: Redactor, states: Mapping[str, str]
) -> dict[str, Any]:
    read_only = settings.tools.mcp[report.name].read_only
    return {
        "name": report.name,
        "problem": None if report.problem is None else redactor.text(report.problem),
        "said": redactor.text(report.said),
        "remembered": report.remembered,
        "tools": [
            {
                "name": tool.name,
                "effect": _effect(tool, read_only),
                "description": tool.description,
                "removed": tool.removed,
                "orders": tool.orders,
                "state": states.get(tool.digest, "asked") if tool.orders else "offered",
                "text": tool.text if tool.orders else "",
            }
            for tool in report.listing.tools
        ],
        "skipped": [
            {"name": skipped.server_name, "reason": redactor.text(skipped.reason)}
            for skipped in report.listing.skipped
        ],
    }


def _effect(tool: Offered, read_only: Sequence[str]) -> str:
    return "read" if tool.server_name in read_only else "side_effect"


def _show(
    reports: Sequence[ServerReport],
    off: Sequence[str],
    settings: Settings,
    redactor: Redactor,
    states: Mapping[str, str],
) -> None:
    if not reports:
        say("No MCP server is enabled (tools.mcp).")
        return
    for report in reports:
        _show_server(report, settings.tools.mcp[report.name].read_only, redactor)
        _show_held(report, states)
    for name in off:
        say(f"{name}: off", "dim")


def _show_server(report: ServerReport, read_only: Sequence[str], redactor: Redactor) -> None:
    """Print one server: how it is, its tools, and what is left out."""
    state = "connected" if report.problem is None else f"not connected: {report.problem}"
    said = f" (it said: {report.said})" if report.problem and report.said else ""
    known = "; these are its tools as last seen" if report.remembered else ""
    style = "green" if report.problem is None else "red"
    say(f"{report.name}: {redactor.text(state + said)}{known}", style)
    rows = [
        (tool.name, _effect(tool, read_only), _first_line(tool.description))
        for tool in report.listing.tools
    ]
    if rows:
        out.print(table(("tool", "effect", "description"), rows))
    for skipped in report.listing.skipped:
        say(f"! {skipped.server_name} is left out: {redactor.text(skipped.reason)}", "yellow")
    if removed := sum(tool.removed for tool in report.listing.tools):
        say(f"! {removed} suspicious spans were taken out of its texts", "yellow")


def _show_held(report: ServerReport, states: Mapping[str, str]) -> None:
    """Print the tools whose texts give orders, with all that they say."""
    for tool in report.listing.tools:
        state = states.get(tool.digest, "asked")
        if tool.orders and state != "agreed":
            name = tool.digest[: mcp.ID_CHARS]
            why = "; ".join(tool.orders)
            say(f"! {tool.server_name} ({name}) is not offered, {state}: {why}", "yellow")
            say(revealed(tool.text))
            say(f"An owner answers in a chat (/mcp show {name}) or in the console (MCP servers).")


def _first_line(text: str) -> str:
    return beginning_of(text.partition("\n")[0], DESCRIPTION_CHARS)
