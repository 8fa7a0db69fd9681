"""The steps of a compaction: prune, boundaries, summary, convergence; sanitise before requests."""
