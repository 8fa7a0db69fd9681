"""How messages are shown shortened."""
