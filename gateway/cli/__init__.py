"""The `parley` command: one file for each group of commands."""
