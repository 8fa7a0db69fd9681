"""The gateway's state: `parley status`, `doctor` and `alerts test`.

`status` reads the database and, if a gateway runs, asks it through its socket. Exit codes: 0
running and ready, 1 running but not ready, 3 not running. `doctor` shows all findings, why they
matter, and how to fix them.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import structlog
import typer

from adapters.registry import AccountReport
from agent.messages import count
from agent.models.catalog import base_url_of
from agent.models.factory import resolve_provider
from gateway.agent_ports import budgets
from gateway.agent_ports.tools import with_walls
from gateway.backup import backups
from gateway.cli.common import AsJson, loaded, opened, readable, say, settings_of, show_json, warn
from gateway.console.presentation import stretch
from gateway.errors import GatewayError, SettingsError
from gateway.findings.finding import Evidence
from gateway.findings.machine import clock_trouble
from gateway.findings.report import FINDINGS, Row, Shown, exit_code, pressing, report
from gateway.http import control
from gateway.settings.loading import Loaded, home_of, redactor_of
from gateway.settings.tree import Settings
from gateway.storage.database import location_of
from gateway.storage.people import mcp
from gateway.storage.queue import alerts
from gateway.storage.reports import health, spending
from gateway.storage.reports.spending import Where
from gateway.supervision.accounts import WORKING
from gateway.supervision.credentials import INSIDE, Configured, ask_platform, learn_windows
from gateway.wiring import build_line, models_of, tried

NOT_READY, NOT_RUNNING = 1, 3
MARKS: Mapping[Shown, tuple[str, str, str]] = {
    "error": ("✗", "red", "wrong"),
    "warning": ("!", "yellow", "warnings"),
    "note": ("·", "cyan", "notes"),
    "unknown": ("?", "dim", "skipped"),
    "fine": ("✓", "green", "fine"),
}
"""Mark, colour and word of each level."""

OF_AN_UPGRADE = (
    *("settings-readable", "settings-effect", "plugins-there"),
    *("database-down", "database-migrated", "restart-due"),
)
"""Findings about starting this version: changes it would make, or reasons to fail."""

status_app = typer.Typer(add_completion=False)
alerts_app = typer.Typer(no_args_is_help=True)
doctor_app = typer.Typer(add_completion=False)


@status_app.command()
def status(context: typer.Context, json: AsJson = False) -> None:
    """Show whether the gateway runs, its queues, costs and problems."""
    known = readable(context)
    settings = known.settings
    running, trouble = None, ""
    try:
        running = asyncio.run(control.ready_in(settings.home))
    except GatewayError as exc:
        trouble = str(exc)
    found = {
        "home": str(settings.home),
        "running": running is not None or bool(trouble),
        "ready": bool(running and running["ready"]),
        "process": running,
        "trouble": trouble,
        "models": [
            "/".join(filter(None, (resolve_provider(each), each.name)))
            for each in (settings.model, *settings.fallbacks)
        ],
        "backup": _backup(settings),
        **_stored(known, running, trouble),
    }
    if json:
        show_json(found)
    else:
        for line, style in lines(found):
            say(line, style)
    if not found["ready"]:
        raise typer.Exit(NOT_READY if found["running"] else NOT_RUNNING)


def _backup(settings: Settings) -> dict[str, Any] | None:
    to = backups.folder_of(settings)
    if to is None:
        return None
    last = backups.newest(to)
    told: dict[str, Any] = {"to": str(to), "every_h": settings.backup.every_h, "path": None}
    if last is not None:
        told |= {"path": str(last.path), "age_s": round(last.age_s(datetime.now(UTC)))}
    return told


def _stored(found: Loaded, running: dict[str, Any] | None, hangs: str) -> dict[str, Any]:
    """Return the database's figures, or why it cannot be read, and the findings."""
    settings = found.settings
    facts = Evidence(settings.home, found, running=running, hangs=hangs)
    wanted = [each for each in FINDINGS.values() if each.page]
    try:
        with opened(settings) as conn:
            facts, there = replace(facts, opened=conn), alerts.found(conn)
            waiting, unsent = health.waiting(conn, "unanswered"), health.waiting(conn, "unsent")
            since = budgets.today(ZoneInfo(settings.sessions.timezone)).start.timestamp()
            spent = spending.total(conn, Where(since))
            replicas = health.replicas(conn)
            given_up = health.given_up(conn, 7 * health.DAY_S)
            stored = {
                "database": _database(settings),
                "queue": {"messages": waiting.count, "oldest_s": round(waiting.oldest_s, 1)},
                "outbox": {"messages": unsent.count, "oldest_s": round(unsent.oldest_s, 1)},
                "questions": health.waiting(conn, "asked").count,
                "dead_letters_7d": sum(each.letters for each in given_up if each.kind == "send"),
                "replicas": {
                    "living": sum(not each.late_s for each in replicas),
                    "silent": [each.name for each in replicas if each.late_s],
                },
                "today": {
                    "usd": spent.usd,
                    "limit_usd": settings.budget.daily_usd,
                    "calls": spent.calls,
                    "tokens": spent.usage.total_tokens,
                },
                "alerts": [
                    {name: getattr(each, name) for name in ("kind", "subject", "text", "since")}
                    for each in there
                ],
            }
            rows = report(wanted, facts, there)
    except GatewayError as exc:
        stored = {"database": {"trouble": str(exc)}}
        rows = report(wanted, replace(facts, database_trouble=str(exc)))
    return stored | {"findings": [each.as_data() for each in pressing(rows)]}


def _database(settings: Settings) -> dict[str, Any]:
    location = location_of(settings)
    if isinstance(location, Path):
        files = (location, Path(f"{location}-wal"))
        size = sum(each.stat().st_size for each in files if each.exists())
        return {"at": str(location), "bytes": size}
    return {"at": "a server of PostgreSQL"}


Line = tuple[str, str]
"""A line and its style."""


def lines(found: dict[str, Any]) -> list[Line]:
    """Return the output lines."""
    told = [_first(found)]
    process = found["process"] or {}
    for name, state in process.get("adapters", {}).items():
        told.append((f"  {'adapter':<10} {name} {state}", "" if state in WORKING else "yellow"))
    told.append((f"  {'models':<10} {', then '.join(found['models'])}", ""))
    database = found["database"]
    if "trouble" in database:
        told.append((f"  {'database':<10} {database['trouble']}", "red"))
    else:
        size = f", {database['bytes'] / 1e6:,.1f} MB" if "bytes" in database else ""
        told.append((f"  {'database':<10} {database['at']}{size}", ""))
        told += _of_database(found)
    if (last := found["backup"]) is not None and last["path"]:
        told.append((f"  {'backup':<10} {stretch(last['age_s'])} old: {last['path']}", ""))
    for each in found["findings"]:
        since = f" (for {stretch(each['since_s'])})" if each["since_s"] else ""
        told.append((f"  {each['id']}: {each['text']}{since}", MARKS[each["level"]][1]))
    return told if found["findings"] else [*told, (f"  {'findings':<10} none", "")]


def _first(found: dict[str, Any]) -> Line:
    process = found["process"]
    if found["trouble"]:
        return found["trouble"], "bold red"
    if process is None:
        source = "" if "trouble" in found["database"] else "; this is from the database"
        return f"no gateway runs in {found['home']}{source}", "bold yellow"
    since = stretch(time.time() - process["started_at"])
    head = f"parley {process['version']} runs in {found['home']} since {since}"
    if found["ready"]:
        return f"{head}, and is ready", "bold green"
    blocking = [
        each["text"]
        for each in found["findings"]
        if each["level"] == "error" and FINDINGS[each["id"]].blocks
    ]
    why = "; ".join(blocking) or "see parley doctor"
    return f"{head}, and is not ready: {why}", "bold red"


def _of_database(found: dict[str, Any]) -> list[Line]:
    today, replicas = found["today"], found["replicas"]
    limit = f" of ${today['limit_usd']:,.2f}" if today["limit_usd"] is not None else ""
    spent = f"{count(today['calls'], 'call')}, {today['tokens']:,} tokens"
    silent = f", {len(replicas['silent'])} silent" if replicas["silent"] else ""
    told = [
        (f"  {'queue':<10} {_waiting(found['queue'], 'for an answer')}", ""),
        (f"  {'outbox':<10} {_waiting(found['outbox'], 'to be sent')}", ""),
        (f"  {'today':<10} ${today['usd']:,.2f}{limit}, {spent}", ""),
    ]
    # A stopped replica stays listed; a single replica needs no line.
    if replicas["living"] + len(replicas["silent"]) > 1:
        style = "yellow" if silent else ""
        told.append((f"  {'replicas':<10} {replicas['living']} alive{silent}", style))
    return told


def _waiting(rows: dict[str, Any], what: str) -> str:
    if not rows["messages"]:
        return f"nothing waits {what}"
    messages = count(rows["messages"], "message")
    return f"{messages} {what}, the oldest for {stretch(rows['oldest_s'])}"


@alerts_app.command("test")
def test_alerts(context: typer.Context) -> None:
    """Send one test alert each way: to the owners' chats and to the webhook.

    Exit code 1 if neither works.
    """
    try:
        done = asyncio.run(control.test_alerts(settings_of(context).home))
    except GatewayError as exc:
        warn(str(exc), "red")
        raise typer.Exit(1) from exc
    chats, is_posted = done["chats"], done["webhook"]
    if chats:
        say(f"entered for {count(chats, 'chat')}; check that it arrives")
    else:
        warn("no chat: no owner has written to the bot directly, and alerts.to names none")
    if is_posted is not None:
        told = "the webhook took it" if is_posted else "the webhook did not take it; see the log"
        (say if is_posted else warn)(told)
    if not chats and not is_posted:
        raise typer.Exit(1)


@doctor_app.command("doctor")
def doctor(  # noqa: PLR0913 - an option each
    context: typer.Context,
    *,
    json: AsJson = False,
    fix: Annotated[bool, typer.Option("--fix", help="Fix what is safe to fix.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show checks without problems, too.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact providers.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read the whole database.")] = False,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade", help="Show only what starting this version would change; offline."
        ),
    ] = False,
) -> None:
    """Find problems, explain why they matter, and how to fix them.

    Exit code 0: all is well; 1: warnings; 2: problems; 3: nothing could be checked.
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
    """Gather the evidence, including what cannot be read."""
    where = home_of(context.find_root().params.get("home"))
    try:
        found = loaded(context)
    except SettingsError as exc:
        yield Evidence(where, problems=tuple(str(exc).splitlines()), deep=deep)
        return
    parts = asyncio.run(_asked(found, offline=offline))
    parts["problems"], parts["left_out"] = tried(found.settings)
    try:
        with opened(found.settings) as conn:
            yield Evidence(found.settings.home, found, opened=conn, deep=deep, **parts)
            return
    except GatewayError as exc:
        trouble = str(exc)
    yield Evidence(found.settings.home, found, database_trouble=trouble, deep=deep, **parts)


async def _asked(found: Loaded, *, offline: bool) -> dict[str, Any]:
    """Ask the running gateway and the model providers."""
    running, hangs = await _running(found)
    line: list[Configured] = []
    with suppress(SettingsError):
        line = build_line(found.settings)
    told: dict[str, Any] = {"running": running, "hangs": hangs, "line": line}
    try:
        if offline:
            return told
        # The findings report what these log lines would.
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
    """Return the running gateway's state, or why it does not answer.

    `waiting` lists changed settings that it does not use yet.
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
        # The gateway reads its settings in its own environment.
        waiting = [str(exc)]
    else:
        waiting = [each["key"] for each in different]
    return {**said, "waiting": waiting}, ""


async def _clock(line: Sequence[Configured]) -> str:
    """Compare this machine's clock with the first model server's."""
    for each in line:
        provider = each.models[0].provider
        if provider not in INSIDE:
            block = each.settings.model_copy(update={"provider": provider})
            return await clock_trouble(base_url_of(block))
    return ""


async def _servers(found: Loaded, running: Mapping[str, Any] | None) -> dict[str, str]:
    """Connect once to each MCP server without a connected gateway; return the failures."""
    settings_, masked = found.settings, redactor_of(found.settings).text
    if running is not None or not any(each.enabled for each in settings_.tools.mcp.values()):
        return {}
    # Importing this loads the SDK, which most gateways do not need.
    from agent.tools.mcp.servers import mcp_tools  # noqa: PLC0415

    sandboxed = with_walls(settings_, _confined(settings_))
    async with mcp_tools(sandboxed, settings_.home, settings_.tools.sandbox) as tools:
        states = tools.states()
    said = {each.name: f" (it said: {each.said})" if each.said else "" for each in states}
    return {each.name: masked(f"{each.problem or ''}{said[each.name]}") for each in states}


def _confined(settings_: Settings) -> Collection[str]:
    location = location_of(settings_)
    if isinstance(location, Path) and not location.exists():
        return ()
    try:
        with opened(settings_) as conn:
            return mcp.confined(conn)
    except GatewayError:
        # An old schema or an unreachable database: assume the strictest confinement.
        return mcp.UNKNOWN.confined


async def _tokens(found: Loaded) -> dict[str, AccountReport]:
    on = found.settings.platforms.on()
    reports = await asyncio.gather(*(ask_platform(*each) for each in on))
    return {f"{name}:{each.name}": report for (name, each), report in zip(on, reports, strict=True)}


def _show(rows: Sequence[Row], *, json: bool, everything: bool) -> None:
    """Print rows; without `everything`, only count the ones without problems."""
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
    # A finding's first row is its worst.
    worst: dict[str, Shown] = {}
    for each in rows:
        worst.setdefault(each.id, each.level)
    counts = Counter(worst.values())
    told = ", ".join(f"{counts[level]} {MARKS[level][2]}" for level in MARKS if counts[level])
    say(f"\n{len(worst)} checks: {told}")
