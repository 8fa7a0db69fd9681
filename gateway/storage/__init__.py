"""The database: tables, two engines, and transaction functions `fn(conn, …)` that commit together.

Functions in this package never commit, never wait for the network, and return frozen dataclasses.
"""
