"""Admitted people, and the agent's notes."""
