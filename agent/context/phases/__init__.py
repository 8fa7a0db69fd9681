"""The steps of a compaction: prune, find boundaries, summarise, assemble, converge; sanitise last."""
