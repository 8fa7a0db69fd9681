"""What this process is among others: its place, its leases, what the others do."""
