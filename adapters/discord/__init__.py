"""Discord: the adapter of one bot account."""
