"""Owners are told of troubles, once when they begin and once when they are over."""
