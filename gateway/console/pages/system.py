"""What runs here: settings with origin and reload, plugins, MCP servers, what the doctor sees."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from agent.plugins import engines, loading
from agent.safety.threats import revealed
from gateway.console.register import HOME, Ask, Moved, Result, Shown, action, page
from gateway.errors import GatewayError, NotFound, SettingsError
from gateway.findings import report
from gateway.logging.recent import MOST_LINES, RECENT, LineFilter, Occurrences, newest, tallied
from gateway.settings.changes import located
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from gateway.storage.people import mcp
from gateway.supervision.rotation import SettingsReloaded, reload_lines

SETTINGS = f"{HOME}/settings"
ACCOUNTS = f"{HOME}/settings/accounts"
PLUGINS = f"{HOME}/plugins"
SERVERS = f"{HOME}/mcp"
DOCTOR = f"{HOME}/doctor"
VERDICTS: Mapping[str, mcp.Verdict] = {"approve": "agreed", "deny": "refused"}
LOOK_S = 60.0
"""How long the doctor may look."""
KINDS: Mapping[report.Shown, str] = {
    "error": "bad",
    "warning": "warn",
    "unknown": "plain",
    "note": "plain",
    "fine": "good",
}


@page(SETTINGS, "Settings", "System")
async def settings(ask: Ask) -> Result:
    """Show the settings in use, where each comes from, and what has changed in the file."""
    running = ask.inside.operator.reloading.running()
    wanted, set_only = ask.query("key"), ask.query("all") == ""
    rows = [
        (key, row)
        for key, row in running.items()
        if wanted.lower() in key and not (set_only and row["origin"] == "default")
    ]
    try:
        differences = await ask.inside.operator.reloading.differences()
        problem = ""
    except SettingsError as exc:
        differences, file = [], ask.inside.operator.reloading.file
        problem = "\n".join(await asyncio.to_thread(located, exc, file)) if file else str(exc)
    supervised = ask.inside.examination.vitals.adapters
    return Shown(
        "settings.html",
        {
            "rows": rows,
            "total": len(running),
            "key": wanted,
            "all": not set_only,
            "differences": differences,
            "problem": problem,
            "accounts": sorted((each.name, each.state) for each in supervised),
        },
    )


@action(f"{SETTINGS}/reload")
async def reload(ask: Ask) -> Result:
    """Read the settings and their secrets again; what is wrong there changes nothing."""
    done = await ask.inside.operator.reload(ask.by)
    if done.problems:
        raise GatewayError("Nothing was changed. " + " ".join(done.problems))
    return Moved(SETTINGS, told(done))


def told(done: SettingsReloaded) -> str:
    """Return the result of a reload in a sentence."""
    return f"Read again: {'; '.join(reload_lines(asdict(done))) or 'nothing has changed'}."


@action(f"{ACCOUNTS}/{{name}}/restart")
async def restart(ask: Ask) -> Result:
    """Restart the adapter of an account, with its token as it is now."""
    name = ask.names["name"]
    said = await ask.inside.operator.reloading.restart_account(name)
    entry = AuditEntry("account_restarted", by=ask.by, subject=name)
    await ask.inside.database.write(audit_log.append, entry)
    return Moved(SETTINGS, "Restarted. " + " ".join(said))


@page(PLUGINS, "Plugins", "System")
async def plugins(ask: Ask) -> Result:
    """Show the plugins and context engines that were found; none of their code is run for it."""
    settings_ = ask.inside.settings
    home = settings_.home
    found = await asyncio.to_thread(loading.available, home)
    known = {each.name for each in found}
    return Shown(
        "plugins.html",
        {
            "plugins": found,
            "engines": await asyncio.to_thread(engines.available, home),
            "enabled": settings_.plugins.enabled,
            "loaded": {each.name: each for each in ask.inside.plugins.loaded},
            "missing": [name for name in settings_.plugins.enabled if name not in known],
            "engine": settings_.context.engine,
            "failed": _failures("plugin_failed", "plugin"),
        },
    )


@page(SERVERS, "MCP servers", "System")
async def servers(ask: Ask) -> Result:
    """Show how each MCP server stands, what it said last, and its tools."""
    off = [name for name, each in ask.inside.settings.tools.mcp.items() if not each.enabled]
    texts = await ask.inside.database.read(mcp.texts)
    return Shown(
        "mcp.html",
        {
            "texts": {each.held.digest: each for each in texts},
            "seen": revealed,
            "servers": ask.inside.examination.vitals.servers(),
            "off": sorted(off),
            "lost": _failures("mcp_lost", "server"),
            "late": _failures("tool_timed_out", "tool"),
        },
    )


@action(SERVERS)
async def decide_tool(ask: Ask) -> Result:
    """Offer a tool whose text gives orders, or do not."""
    what, name = ask.form.get("do", ""), ask.form.get("whom", "")
    if what not in VERDICTS:
        raise GatewayError("Nothing was chosen that can be done.")
    try:
        decision = await ask.inside.operator.decide_tool(name, VERDICTS[what], ask.by)
    except NotFound as exc:
        return Moved(SERVERS, str(exc).replace("`", ""), failed=True)
    return Moved(SERVERS, decision.text.replace("`", ""))


def _failures(event: str, by: str) -> dict[str, Occurrences]:
    """Return what the lines in memory say of an event, by one of its fields."""
    lines = newest(RECENT, (), LineFilter(level="warning", event=event), MOST_LINES)
    return {each.name: each for each in tallied(lines, by)}


@page(DOCTOR, "Doctor", "System")
async def doctor(ask: Ask) -> Result:
    """Look for all findings, and show them, the worst first; no provider is asked."""
    try:
        async with asyncio.timeout(LOOK_S):
            found = await ask.inside.examination.report(lambda _: True)
    except TimeoutError:
        text = f"The doctor was not done within {LOOK_S:.0f} s; `parley doctor` has no such limit."
        raise GatewayError(text) from None
    return Shown("doctor.html", {"found": found, "kinds": KINDS})
