"""The `parley` command: a file for each group of commands, with what it prints."""
