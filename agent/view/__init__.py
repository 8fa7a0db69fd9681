"""The model's view of a transcript, edits that shorten messages, and outlines of large texts."""
