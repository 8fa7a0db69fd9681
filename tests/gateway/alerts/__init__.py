"""Tests of gateway/alerts."""
