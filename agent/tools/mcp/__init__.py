"""Tools of MCP servers, through the official SDK; imported only where a server is configured.

`keeper.py` runs in processes of its own, without the packages of Parley: standard library alone.
"""
