"""Tests of gateway/metrics."""
