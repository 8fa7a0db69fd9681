"""Backup, restore, and erasure of old data."""
