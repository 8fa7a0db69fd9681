"""`/pair`: owners decide who may write to the bot, and invite people to the web chat.

Does the same as `parley pair` and `parley web invite`; people named in the settings stay. A
decision is part of the transaction that admits the message (gateway/access/pairing.py).
"""

from collections.abc import Sequence
from typing import get_args

from adapters.door import OWNER
from adapters.registry import BUILT_IN
from adapters.web.platform import UserRole
from gateway.access import pairing, web_door
from gateway.access.pairing import Decided, Happening, Kind, who
from gateway.commands.registry import DIRECT_ONLY, IMMEDIATE, Command, CommandContext, CommandResult
from gateway.errors import GatewayError
from gateway.storage.people import members, web_users
from gateway.storage.people.members import Member, PairingRequest
from gateway.storage.people.web_users import ChatLinks

LISTED = 20
"""Most requests, and most members, that `/pair list` shows."""
USAGE = """\
Who may write to me:

- `/pair list`: who is asking, and who was let in
- `/pair approve CODE`: let them in
- `/pair deny CODE`: refuse; they cannot ask again for a day
- `/pair revoke PLATFORM:ID`: withdraw somebody's access
- `/pair invite NAME [owner | member | guest]`: a link for the web chat, which works once"""
INVITED = """\
This link signs **{name}** in to the web chat, once, within {life}:

{link}

Whoever opens it first is {name}. Send it to nobody else, and delete it here once it is used."""
SWITCHED_OFF = "The web chat is switched off (`web.enabled`)."
DECISIONS = {"approve": pairing.approve, "deny": pairing.deny, "revoke": pairing.revoke}
ROLES: tuple[UserRole, ...] = get_args(UserRole)


@Command("pair", "decide who may write to me", IMMEDIATE, 130, owner_only=True)
def decide_requests(context: CommandContext) -> CommandResult:
    """List access requests or decide about one; only in direct chats."""
    if not context.is_private:
        return CommandResult(DIRECT_ONLY)
    decision = _decide(context)
    if decision.happened is None:
        return CommandResult(decision.text)
    told = context.services.pairing.tell_approved(context.conn)
    return CommandResult(decision.text, happened=decision.happened, wake=frozenset(told))


def _decide(context: CommandContext) -> Decided:
    conn, by = context.conn, context.sender
    verb, *target = context.argument.split(maxsplit=1) or [""]
    try:
        match verb.lower(), *target:
            case ("list",):
                text = list_text(members.pending(conn), members.everybody(conn))
                return Decided(text)
            case ("approve" | "deny" | "revoke") as which, whom:
                return DECISIONS[which](conn, whom, by)
            case "invite", whom:
                return _invite(context, *whom.split())
    except GatewayError as exc:
        return Decided(str(exc))
    return Decided(USAGE)


def _invite(context: CommandContext, name: str, role: str = "", *rest: str) -> Decided:
    conn, web = context.conn, context.services.pairing.owners.access.web
    if rest or role not in {"", *ROLES}:
        return Decided(USAGE)
    if not web.enabled:
        return Decided(SWITCHED_OFF)
    kind: Kind = "invited"
    link, secret = ChatLinks(web.token).new(web.page(web.port), context.conversation)
    user = web_users.user(conn, name)
    is_known = name == OWNER.name or (user is not None and user.role != "removed")
    if is_known and not role:
        kind = "link"
        made = web_door.new_link(conn, name, by=context.sender, secret=secret)
    else:
        entered: UserRole = next((each for each in ROLES if each == role), "member")
        made = web_door.invite(conn, name, entered, by=context.sender, secret=secret)
    life = "a day" if kind == "invited" else f"{made.life_s / 60:.0f} minutes"
    happened = Happening(kind, BUILT_IN, made.name, context.sender)
    return Decided(INVITED.format(name=made.name, life=life, link=link), happened=happened)


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
