"""Tools that touch the world: files and commands in a conversation's workspace, web pages."""
