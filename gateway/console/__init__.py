"""The operator's console below /admin: server-rendered pages for owners."""
