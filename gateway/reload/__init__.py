"""Reloading: applying changed settings to a running gateway."""
