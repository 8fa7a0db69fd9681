"""A first day with Parley, as docs/tour.md tells it, and its pictures."""
