"""`parley replay`: reads recordings, replays them, and reports."""
