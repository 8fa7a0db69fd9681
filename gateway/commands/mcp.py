"""`/mcp`: lists MCP tools that wait for an owner's approval, and records decisions.

A tool whose description contains instructions waits: an owner reads it here or in the console and
approves or denies the tool. Until then it is not offered to the model. An approval applies to one
text; a changed text needs a new one.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from adapters.messages import Choice
from agent import messages
from agent.safety.threats import reveal_invisible
from agent.tools.registry import HeldTool
from gateway.access.pairing import Decided, Happening
from gateway.access.policy import Owners
from gateway.commands.registry import DIRECT_ONLY, IMMEDIATE, Command, CommandContext, CommandResult
from gateway.errors import NotFound
from gateway.storage.people import mcp
from gateway.storage.people.mcp import ToolText, Verdict

USAGE = "`/mcp approve ID` offers a tool, `/mcp deny ID` does not, `/mcp show ID` shows its text."
SHOWN_CHARS = 3_000
"""Longest text shown in a chat. A longer one has no buttons: owners would approve it unread."""
TOLD_ONE_BY_ONE = 5
"""Texts shown to owners one by one at a start; `/mcp` lists the others."""
MORE = "More tools of MCP servers wait for you than I show one by one: `/mcp` lists them."
NOTHING = "No tool of an MCP server waits for you."
_STATES = {"asked": "waits for you", "agreed": "offered", "refused": "not offered"}


@Command("mcp", "decide which tools of MCP servers I may use", IMMEDIATE, 135, owner_only=True)
def decide_tools(context: CommandContext) -> CommandResult:
    """List waiting tools or decide about one; only in direct chats."""
    if not context.is_private:
        return CommandResult(DIRECT_ONLY)
    conn = context.conn
    try:
        match context.argument.lower().split():
            case []:
                return CommandResult(f"{listed_tools(mcp.texts(conn))}\n\n{USAGE}")
            case ["show", name]:
                text = mcp.text_of(conn, name)
                return CommandResult(notice(text), choices=buttons(text))
            case [("approve" | "deny") as verb, name]:
                verdict: Verdict = "agreed" if verb == "approve" else "refused"
                decision = decide(conn, name, verdict, context.sender)
                return CommandResult(decision.text, happened=decision.happened)
    except NotFound as exc:
        return CommandResult(str(exc))
    return CommandResult(USAGE)


def announce(conn: Connection, owners: Owners, held: Sequence[HeldTool]) -> set[int]:
    """Store new texts and show each to owners once; return the chats with a new message."""
    mcp.note(conn, held)
    now = {each.digest for each in held}
    waiting = (each for each in mcp.texts(conn) if each.state == "asked" and not each.told)
    new = [each for each in waiting if each.held.digest in now]
    chats = owners.chats(conn, owners.everybody(conn)) if new else []
    told = set()
    for chat in chats:
        for each in new[:TOLD_ONE_BY_ONE]:
            key = f"mcp:{each.held.digest}:{chat.id}"
            if owners.say(conn, chat, key, notice(each), buttons(each)):
                told.add(chat.id)
        if len(new) > TOLD_ONE_BY_ONE:
            owners.say(conn, chat, f"mcp:{new[-1].held.digest}:more:{chat.id}", MORE)
    if chats:
        mcp.mark_told(conn, [each.held.digest for each in new])
    return told


def decide(conn: Connection, name: str, verdict: Verdict, by: str) -> Decided:
    """Record an owner's decision about a text."""
    text = mcp.decide(conn, name, verdict, by)
    is_offered = "is offered from now on" if verdict == "agreed" else "is not offered"
    happened = Happening("tool", text.held.server, text.held.tool, by)
    return Decided(f"{_named(text)} {is_offered}.", happened=happened)


def notice(text: ToolText) -> str:
    """Return the message that asks owners about a tool."""
    asked = (
        f"The MCP server {messages.quoted(text.held.server)} has a tool"
        f" {messages.quoted(text.held.tool)} whose description may give me orders"
        f" ({messages.quoted(text.held.why)}). I do not use it until you agree."
    )
    shown = reveal_invisible(text.held.text)
    ways = f"`/mcp approve {text.id}` offers it, `/mcp deny {text.id}` does not."
    if len(shown) > SHOWN_CHARS:
        where = "Read it in the console (MCP servers)."
        return f"{asked}\n\nIts text is too long to show here. {where}"
    return f"{asked} This is its text:\n\n{messages.code_block(shown)}\n\n{ways}"


def buttons(text: ToolText) -> tuple[Choice, ...]:
    """Return the buttons below it."""
    if len(reveal_invisible(text.held.text)) > SHOWN_CHARS:
        return ()
    return (Choice("Approve", f"/mcp approve {text.id}"), Choice("Deny", f"/mcp deny {text.id}"))


def listed_tools(texts: Sequence[ToolText]) -> str:
    """Return the answer to `/mcp`."""
    lines = [
        f"- {_named(each)}, `{each.id}`: {_STATES[each.state]} ({messages.quoted(each.held.why)})"
        for each in texts
    ]
    return "\n".join(lines) or NOTHING


def _named(text: ToolText) -> str:
    return f"{messages.quoted(text.held.tool)} of {messages.quoted(text.held.server)}"
