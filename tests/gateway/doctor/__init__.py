"""Tests of gateway/doctor."""
