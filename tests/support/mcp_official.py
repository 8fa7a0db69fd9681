"""A server made with the official SDK, of the newest protocol; it takes a second to start."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("official")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def change(context: Context) -> str:
    """Tell that the list has changed."""
    await context.notify_tools_changed()
    return "done"


if __name__ == "__main__":
    server.run("stdio")
