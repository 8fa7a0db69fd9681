"""The queue: inbox, outbox, leases, and dead letters."""
