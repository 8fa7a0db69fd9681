"""The steps of a compaction: prune with its ladder of levels, boundaries, summary."""
