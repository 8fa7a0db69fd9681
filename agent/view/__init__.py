"""What the model sees of a transcript, how a message is shown shorter, outlines of large texts."""
