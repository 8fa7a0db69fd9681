"""Supervision of the process: its home, its accounts, crashes, checks at the start."""
