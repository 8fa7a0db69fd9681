"""Phases."""
