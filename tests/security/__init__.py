"""Attacks that worked once, and what holds: each by its name."""
