"""Discord: one bot account of it."""
