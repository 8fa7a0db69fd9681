"""This process as one of several replicas: its leases and messages to the others."""
