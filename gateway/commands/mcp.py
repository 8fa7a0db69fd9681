"""`/mcp`: an owner lists the tools of MCP servers that wait for approval, and decides.

The same as the console's page (gateway/access/tool_texts.py).
"""

from gateway.access import tool_texts
from gateway.commands.registry import DIRECT_ONLY, IMMEDIATE, Command, CommandContext, CommandResult
from gateway.errors import NotFound
from gateway.storage.people import mcp

USAGE = "`/mcp approve ID` offers a tool, `/mcp deny ID` does not, `/mcp show ID` shows its text."


@Command("mcp", "decide which tools of MCP servers I may use", IMMEDIATE, 135, owner_only=True)
def decide_tools(context: CommandContext) -> CommandResult:
    """List the tools whose texts give orders, or decide about one; only in direct chats."""
    if not context.is_private:
        return CommandResult(DIRECT_ONLY)
    conn = context.conn
    try:
        match context.argument.lower().split():
            case []:
                return CommandResult(f"{tool_texts.listed_tools(mcp.texts(conn))}\n\n{USAGE}")
            case ["show", name]:
                text = mcp.text_of(conn, name)
                return CommandResult(tool_texts.notice(text), choices=tool_texts.buttons(text))
            case [("approve" | "deny") as verb, name]:
                verdict: mcp.Verdict = "agreed" if verb == "approve" else "refused"
                decision = tool_texts.decide(conn, name, verdict, context.sender)
                return CommandResult(decision.text, happened=decision.happened)
    except NotFound as exc:
        return CommandResult(str(exc))
    return CommandResult(USAGE)
