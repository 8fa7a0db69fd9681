"""What a home keeps as copies, and what is erased once it is too old."""
