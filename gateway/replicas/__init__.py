"""This process as one of several: its leases, and its exchange with the others."""
