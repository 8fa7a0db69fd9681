"""Backups of a home, their restoring, and the erasing of old data."""
