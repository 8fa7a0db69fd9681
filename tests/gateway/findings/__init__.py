"""Tests of gateway/findings."""
