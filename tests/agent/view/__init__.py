"""Tests of agent/view."""
