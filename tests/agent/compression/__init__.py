"""Tests of agent/compression."""
