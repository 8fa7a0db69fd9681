"""Slack: one app of it."""
