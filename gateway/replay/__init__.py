"""`parley replay`: recordings, a player, and a report."""
