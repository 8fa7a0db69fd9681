"""The database: tables, two runners, and transaction functions `fn(conn, …)` that commit together.

A function in here never commits, never waits for the network and returns frozen dataclasses.
"""
