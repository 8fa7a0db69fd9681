"""The settings: one frozen tree, read from file and environment, validated, edited."""
