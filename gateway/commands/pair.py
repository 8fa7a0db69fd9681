"""`/pair`: an owner decides who may write to the bot.

The same as `parley pair`; who stands in the settings is not touched. What it decides is part of the
transaction that admits the message (gateway/access/pairing.py).
"""

from collections.abc import Sequence

from gateway.access import pairing
from gateway.access.pairing import Decision, who
from gateway.commands.registry import IMMEDIATE, Command, CommandContext, CommandResult
from gateway.errors import NotFound
from gateway.storage.people import members
from gateway.storage.people.members import Member, PairingRequest

LISTED = 20
"""Requests and members that `/pair list` shows, of each kind."""
DIRECT_ONLY = "Please write that to me directly: others can read it here."
USAGE = """\
Who may write to me:

- `/pair list`: who asks, and who was let in
- `/pair approve CODE`: let them in
- `/pair deny CODE`: refuse; they cannot ask again for a day
- `/pair revoke PLATFORM:ID`: take back that somebody was let in"""


@Command("pair", "say who may write to me", IMMEDIATE, 130, owner_only=True)
def decide_requests(context: CommandContext) -> CommandResult:
    """Show who asks to be let in, or decide about one of them; in direct chats alone."""
    if not context.is_private:
        return CommandResult(DIRECT_ONLY)
    decision = _decide(context)
    if decision.happened is None:
        return CommandResult(decision.text)
    told = context.services.pairing.tell_approved(context.conn)
    return CommandResult(decision.text, happened=decision.happened, wake=frozenset(told))


def _decide(context: CommandContext) -> Decision:
    """Do what stands behind the command."""
    conn, by = context.conn, context.sender
    verb, *target = context.argument.split(maxsplit=1) or [""]
    try:
        match verb.lower(), *target:
            case ("list",):
                text = list_text(members.pending(conn), members.everybody(conn))
                return Decision(text)
            case "approve", code:
                return pairing.approve(conn, code, by)
            case "deny", code:
                return pairing.deny(conn, code, by)
            case "revoke", whom:
                return pairing.revoke(conn, whom, by)
    except NotFound as exc:
        return Decision(str(exc))
    return Decision(USAGE)


def list_text(pending: Sequence[PairingRequest], everybody: Sequence[Member]) -> str:
    """Return the answer to `/pair list`."""
    asking = [
        f"- {who(request)}: code `{request.code}`, {request.left_s / 60:.0f} min left"
        for request in pending[-LISTED:]
    ]
    let_in = [f"- {who(each)}: {each.role} since {each.at[:10]}" for each in everybody[:LISTED]]
    blocks = []
    for title, lines, total in (
        ("Asking to be let in", asking, len(pending)),
        ("Let in", let_in, len(everybody)),
    ):
        if total > LISTED:
            lines.append(f"- … and {total - LISTED:,} more: `parley pair list`")
        blocks.append(f"**{title}**\n\n" + ("\n".join(lines) or "- nobody"))
    blocks.append("Those in `parley.yaml` are not listed.")
    return "\n\n".join(blocks)
