"""Markdown → the format of each platform, within its limits."""
