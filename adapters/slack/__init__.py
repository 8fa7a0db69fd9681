"""Slack: the adapter of one app."""
