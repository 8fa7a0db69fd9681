"""The system: set-up, settings, plugins, MCP servers, doctor, audit log, live log.

Set-up adds a missing model or platform and tries it before it writes. Only `parley setup` changes
existing ones: a browser session must not be able to send conversations to another server. It also
asks for the owner, who is already signed in here, and for the place of secrets, which moves
existing ones.

The log shows this replica's lines with secrets masked; a small script polls for new lines.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import orjson

from adapters.registry import by_name
from agent.models.catalog import PROVIDERS
from agent.models.factory import resolve_provider
from agent.models.offline import OfflineModel
from agent.plugins import engines, loading
from agent.safety.threats import reveal_invisible
from gateway.console import register
from gateway.console.pages.conversations import AROUND
from gateway.console.register import (
    HOME,
    Ask,
    Missing,
    Moved,
    Result,
    Shown,
    action,
    listed,
    page,
    pages,
)
from gateway.errors import GatewayError, NotFound, SettingsError, StorageError
from gateway.findings import report
from gateway.logging.recent import (
    LEADING,
    LEVELS,
    MOST_LINES,
    RECENT,
    LineFilter,
    Occurrences,
    newest,
    tallied,
)
from gateway.logging.setup import log_path, predecessors
from gateway.settings.editing import OWNER_ONLY, located
from gateway.settings.loading import Loaded
from gateway.settings.references import is_reference, references_in
from gateway.settings.tree import Settings
from gateway.setup.questions import (
    CHOICES,
    MODEL,
    NAMELESS,
    OWN_SERVER,
    Answers,
    SetupQuestion,
    Target,
    of_platform,
    of_provider,
    platforms_asked_about,
    take,
    take_model,
    try_answers,
    wrong,
)
from gateway.setup.writing import refuse_unwritable, write
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.people import mcp, members
from gateway.storage.reports import steps
from gateway.supervision.credentials import Checked, SettingsReloaded, reload_lines

SETUP = f"{HOME}/setup"
DEMO = OfflineModel.provider
SETTINGS = f"{HOME}/settings"
ACCOUNTS = f"{HOME}/settings/accounts"
PLUGINS = f"{HOME}/plugins"
SERVERS = f"{HOME}/mcp"
DOCTOR = f"{HOME}/doctor"
VERDICTS: Mapping[str, mcp.Verdict] = {"approve": "agreed", "deny": "refused"}
LOOK_S = 60.0
"""Time limit of the doctor, in seconds."""
DOCTOR_KINDS: Mapping[report.Shown, str] = {
    "error": "bad",
    "warning": "warn",
    "unknown": "plain",
    "note": "plain",
    "fine": "good",
}
AUDIT = f"{HOME}/audit"
CALLS = f"{HOME}/calls"
AUDIT_KINDS: tuple[AuditKind, ...] = get_args(AuditKind)
LOG = f"{HOME}/log"
SHOWN_LINES = 200
"""Lines per page, and per update while it follows."""
LEADS = {
    "conversation": f"{HOME}/conversations/",
    "turn": f"{LOG}?turn=",
    "trace": f"{LOG}?text=",
}
"""Pages to which log fields link, completed by the field's value."""
LOG_KINDS = {"debug": "plain", "info": "good", "warning": "warn", "error": "bad"}


def is_without_model(*settings: Settings) -> bool:
    """Whether these settings all use only the demo model."""
    return all(resolve_provider(each.model) == DEMO for each in settings)


@page(SETUP, "Set up", "System")
async def setup(ask: Ask) -> Result:
    """Show the forms for a missing model and missing platforms."""
    return await _forms(ask)


async def _forms(ask: Ask, refused: str = "") -> Shown:
    """Show the forms; after a refusal with the given answers, except keys and tokens."""
    target, now = await _read(ask)
    settings, asked = now.settings, of_provider(OWN_SERVER, now)
    shown = ["provider", *(each.field for each in asked if not each.is_secret)]
    return Shown(
        "setup.html",
        {
            "needs_model": is_without_model(settings, ask.inside.settings),
            "providers": {name: words for name, words in CHOICES.items() if name != DEMO},
            "nameless": [CHOICES[name] for name in NAMELESS],
            "questions": asked,
            "filled": {name: ask.form.get(name, "") for name in shown},
            "keys_at": {name: each.keys_at for name, each in PROVIDERS.items() if each.keys_at},
            "platforms": [
                {"title": each.title, "name": each.name, "questions": of_platform(each)}
                for each in platforms_asked_about()
            ],
            "on": _on(settings, ask.inside.settings),
            "running": _on(ask.inside.settings),
            "file": str(target.file),
        },
        title="Set up",
        refused=refused,
    )


def _on(*settings: Settings) -> set[str]:
    return {name for each in settings for name, _ in each.platforms.on()}


async def _read(ask: Ask) -> tuple[Target, Loaded]:
    """Return the target and the settings of the file, which may need a restart."""
    running, file = ask.inside.settings, ask.inside.operator.reloading.file
    is_there = file is not None and await asyncio.to_thread(file.exists)
    # A page must not run the programs of secret references again.
    known = dict(references_in(running))
    target = Target(running.home, file if is_there else None, known)
    return target, await asyncio.to_thread(target.load)


@action(f"{SETUP}/model")
async def model(ask: Ask) -> Result:
    """Ask a model one question, and store its settings if it answers."""
    return await _with_forms(ask, _model)


@action(f"{SETUP}/platforms/{{name}}")
async def account(ask: Ask) -> Result:
    """Try the tokens of a platform's first account, and store them if they work."""
    return await _with_forms(ask, _account)


async def _with_forms(ask: Ask, tried: Callable[[Ask], Awaitable[Result]]) -> Result:
    try:
        return await tried(ask)
    except StorageError:
        raise
    except GatewayError as exc:
        return await _forms(ask, str(exc))


async def _model(ask: Ask) -> Result:
    target, now = await _read(ask)
    if not is_without_model(now.settings, ask.inside.settings):
        raise GatewayError("There is a model already; `parley setup` changes it.")
    provider = ask.form.get("provider", "")
    if provider == DEMO:
        raise GatewayError("Please choose a provider.")
    draft = Answers()
    take_model(draft, provider, _answers(ask, of_provider(provider, now)), now)
    return await _written(ask, target, draft, await try_answers(target, draft, MODEL))


async def _account(ask: Ask) -> Result:
    platform = by_name().get(ask.names["name"])
    if platform is None or not platform.credentials:
        raise Missing("There is no such platform.")
    target, now = await _read(ask)
    if platform.name in _on(now.settings, ask.inside.settings):
        raise GatewayError(f"{platform.title} is set up already; `parley setup` changes it.")
    draft, asked = Answers(), of_platform(platform)
    take(draft, asked, _answers(ask, asked))
    return await _written(ask, target, draft, await try_answers(target, draft, platform.name))


def _answers(ask: Ask, asked: Sequence[SetupQuestion]) -> dict[str, str]:
    """Return the answers of a form by question field.

    Raises:
        GatewayError: An answer is missing, invalid, or a reference to a secret, through which a
            browser session could run programs or send files of this machine.
    """
    given = {each.field: ask.form.get(each.field, "").strip() for each in asked}
    for question in asked:
        text = given[question.field]
        if question.is_secret and is_reference(text):
            raise GatewayError("References to secrets are set with `parley setup`, not from here.")
        if problem := wrong(question, text):
            raise GatewayError(f"{problem[0].upper()}{problem[1:]}.")
    return given


async def _written(ask: Ask, target: Target, draft: Answers, checked: Checked) -> Moved:
    """Write the tested answers, reload the gateway, and list the remaining steps."""
    if checked.outcome != "accepted":
        raise GatewayError(f"Nothing was written. {checked.subject}: {checked.text}.")
    await asyncio.to_thread(refuse_unwritable, target)
    written = await asyncio.to_thread(write, target, draft)
    done = await ask.inside.operator.reload(ask.by, ", ".join(draft.values))
    parts = [f"{checked.subject}: {checked.text}.", *(f"Still to do: {x}." for x in checked.lacks)]
    parts.append(f"Written to {written.file}.")
    if written.is_closed:
        parts.append(f"It {OWNER_ONLY}.")
    if done.problems:
        parts += ["But Parley goes on by what it had before:", *done.problems]
        return Moved(SETUP, " ".join(parts), failed=True)
    return Moved(SETUP, " ".join([*parts, told(done)]))


@page(SETTINGS, "Settings", "System")
async def settings(ask: Ask) -> Result:
    """Show the settings in use, their sources, and unapplied changes of the file."""
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
    """Reload settings and secrets; a mistake changes nothing."""
    done = await ask.inside.operator.reload(ask.by)
    if done.problems:
        raise GatewayError("Nothing was changed. " + " ".join(done.problems))
    return Moved(SETTINGS, told(done))


def told(done: SettingsReloaded) -> str:
    """Describe the result of a reload in a sentence."""
    return f"Read again: {'; '.join(reload_lines(asdict(done))) or 'nothing has changed'}."


@action(f"{ACCOUNTS}/{{name}}/restart")
async def restart(ask: Ask) -> Result:
    """Restart an account's adapter with its current token."""
    name = ask.names["name"]
    said = await ask.inside.operator.reloading.restart_account(name)
    entry = AuditEntry("account_restarted", by=ask.by, subject=name)
    await ask.inside.database.write(audit_log.append, entry)
    return Moved(SETTINGS, "Restarted. " + " ".join(said))


@page(PLUGINS, "Plugins", "System")
async def plugins(ask: Ask) -> Result:
    """Show the found plugins and context engines without running their code."""
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
    """Show the state of each MCP server, its last message, and its tools."""
    off = [name for name, each in ask.inside.settings.tools.mcp.items() if not each.enabled]
    texts = await ask.inside.database.read(mcp.texts)
    return Shown(
        "mcp.html",
        {
            "texts": {each.held.digest: each for each in texts},
            "seen": reveal_invisible,
            "servers": ask.inside.examination.vitals.servers(),
            "unconfined": report.FINDINGS["mcp-confined"],
            "off": sorted(off),
            "lost": _failures("mcp_lost", "server"),
            "late": _failures("tool_timed_out", "tool"),
        },
    )


@action(SERVERS)
async def decide_tool(ask: Ask) -> Result:
    """Approve or deny a tool whose description contains instructions."""
    verdict, name = ask.chosen(VERDICTS)
    try:
        decision = await ask.inside.operator.decide_tool(name, verdict, ask.by)
    except NotFound as exc:
        return Moved(SERVERS, str(exc).replace("`", ""), failed=True)
    return Moved(SERVERS, decision.text.replace("`", ""))


def _failures(event: str, by: str) -> dict[str, Occurrences]:
    """Count an event's recent log lines by one of its fields."""
    lines = newest(RECENT, (), LineFilter(level="warning", event=event), MOST_LINES)
    return {each.name: each for each in tallied(lines, by)}


@page(DOCTOR, "Doctor", "System")
async def doctor(ask: Ask) -> Result:
    """Run all checks and show the findings, worst first, without asking providers."""
    try:
        async with asyncio.timeout(LOOK_S):
            found = await ask.inside.examination.report(lambda _: True)
    except TimeoutError:
        text = f"The doctor was not done within {LOOK_S:.0f} s; `parley doctor` has no such limit."
        raise GatewayError(text) from None
    return Shown("doctor.html", {"found": found, "kinds": DOCTOR_KINDS})


@page(AUDIT, "Audit", "System")
async def record(ask: Ask) -> Result:
    """Show the audit log, newest first."""
    kind, after = ask.query("kind"), ask.position("after")
    if kind and kind not in AUDIT_KINDS:
        raise Missing(f"There is no kind {kind}.")
    read = ask.inside.database.read
    rows = await read(audit_log.listed, register.PAGE + 1, kind=kind, after=after)
    people = [who for row in listed(rows) for who in (row.by, row.subject)]
    return Shown(
        "audit.html",
        {
            "rows": listed(rows),
            "names": await read(members.names, people),
            "kinds": AUDIT_KINDS,
            "kind": kind,
            **pages(AUDIT, rows, lambda row: row.seq, after, {"kind": kind}),
        },
    )


@page(CALLS, "Tool calls", "System")
async def calls(ask: Ask) -> Result:
    """Show tool calls with their approvals and results, newest turn first."""
    tool, conversation = ask.query("tool"), ask.position("conversation")
    before = ask.pair("after")
    read = ask.inside.database.read
    which: Any = {"conversation": conversation, "tool": tool or None, "before": before}
    rows = await read(steps.calls, register.PAGE + 1, **which)
    filters = {"tool": tool, "conversation": "" if conversation is None else str(conversation)}
    return Shown(
        "audit.html",
        {
            "rows": listed(rows),
            "names": await read(members.names, [row.by for row in listed(rows)]),
            **pages(CALLS, rows, lambda row: f"{row.turn}.{row.number}", before, filters),
            "around": AROUND,
            **filters,
        },
    )


@page(LOG, "Live log", "Now")
async def log(ask: Ask) -> Result:
    """Show matching log lines, newest on top; with `after`, only later ones."""
    filters = {name: ask.query(name) for name in ("level", "event", "place", "turn", "text")}
    if filters["level"] not in {"", *LEVELS}:
        raise Missing(f"There is no level {filters['level']}.")
    level, event, place, turn, text = filters.values()
    wanted, after = LineFilter(level, event, place, turn=turn, text=text), ask.position("after")
    # Read the count first: a line that comes meanwhile is shown twice rather than never.
    count = RECENT.count
    settings = ask.inside.settings
    path = log_path(settings.logging, settings.home)
    if after is None:
        files = () if path is None else (path, *predecessors(path)[:1])
        records = await asyncio.to_thread(newest, RECENT, files, wanted, SHOWN_LINES)
    else:
        came = (line for number, line in RECENT.since(after) if number <= count)
        records = [*filter(None, map(wanted.admits, came))][-SHOWN_LINES:]
    return Shown(
        "log.html",
        {
            "lines": [_shown(record) for record in reversed(records)],
            "count": count,
            "levels": LEVELS,
            "has_file": path is not None,
            "most": SHOWN_LINES,
            "leads": LEADS,
            **filters,
        },
    )


def _shown(record: Mapping[str, Any]) -> dict[str, Any]:
    level = str(record.get("level", ""))
    # A name without a value would be read with the next field's value.
    fields = [
        (name, _text(value))
        for name, value in record.items()
        if name not in LEADING and value not in (None, "")
    ]
    return {
        "at": str(record.get("timestamp", "")),
        "level": level,
        "kind": LOG_KINDS.get(level, "plain"),
        "event": str(record["event"]),
        "fields": fields,
        "exception": str(record.get("exception", "")),
    }


def _text(value: Any) -> str:
    # Shorten amounts of money to a readable length.
    short = round(value, 9) if isinstance(value, float) else value
    return short if isinstance(short, str) else orjson.dumps(short).decode()
