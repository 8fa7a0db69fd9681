"""Chat commands: one file and decorator per command, found by registry.py."""
