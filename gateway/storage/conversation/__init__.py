"""A conversation: its segments, transcript, turns, questions and files."""
