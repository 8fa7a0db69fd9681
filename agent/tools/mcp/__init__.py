"""Tools of MCP servers, through the official SDK; imported only where a server is configured."""
