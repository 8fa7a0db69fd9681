"""Logging: the destinations and format of log lines."""
