"""What is on record: the audit log, and the calls of tools."""

from typing import get_args

from gateway.console import register
from gateway.console.pages.conversations import AROUND
from gateway.console.register import HOME, Ask, Missing, Result, Shown, listed, older, page
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditKind
from gateway.storage.people import members
from gateway.storage.reports import audit
from gateway.storage.reports.audit import AuditFilter

AUDIT = f"{HOME}/audit"
CALLS = f"{HOME}/calls"
KINDS: tuple[AuditKind, ...] = get_args(AuditKind)


@page(AUDIT, "Audit", "System")
async def record(ask: Ask) -> Result:
    """Show who decided what, the newest first."""
    kind, after = ask.query("kind"), ask.position("after")
    if kind and kind not in KINDS:
        raise Missing(f"There is no kind {kind}.")
    read = ask.inside.database.read
    rows = await read(audit_log.listed, register.PAGE + 1, kind=kind, after=after)
    told = [(row, row.text()) for row in listed(rows)]
    people = [who for _, said in told if said for who in (said["by"], said["subject"])]
    return Shown(
        "audit.html",
        {
            "rows": told,
            "names": await read(members.names, people),
            "kinds": KINDS,
            "kind": kind,
            "older": older(AUDIT, rows, lambda row: row.seq, {"kind": kind}),
            "first": AUDIT if after else "",
        },
    )


@page(CALLS, "Tool calls", "System")
async def calls(ask: Ask) -> Result:
    """Show which tools were called, who allowed it and what came of it, the newest turn first."""
    tool, conversation = ask.query("tool"), ask.position("conversation")
    before = ask.pair("after")
    wanted = AuditFilter(0.0, register.PAGE + 1, conversation, tool or None, before)
    read = ask.inside.database.read
    rows = await read(audit.calls, wanted)
    filters = {"tool": tool, "conversation": "" if conversation is None else str(conversation)}
    return Shown(
        "audit.html",
        {
            "rows": listed(rows),
            "names": await read(members.names, [row.by for row in listed(rows)]),
            "older": older(CALLS, rows, lambda row: f"{row.turn}.{row.number}", filters),
            "first": CALLS if before else "",
            "around": AROUND,
            **filters,
        },
    )
