"""Findings: each problem described once, for all places that report it."""
