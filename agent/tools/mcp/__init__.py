"""Tools of MCP servers, over the official SDK."""
