"""Supervision of the process: its home, accounts, crashes, checks at start."""
