"""Agent ports."""
