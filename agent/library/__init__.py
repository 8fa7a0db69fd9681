"""The context parts for programs of their own: no gateway, no database, no network.

docs/library.md shows them; `agent` exports them by name, each imported when it is asked for.
"""
