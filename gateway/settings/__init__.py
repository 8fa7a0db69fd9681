"""The settings: one frozen tree, read from file and environment, checked, edited."""
