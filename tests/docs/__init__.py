"""What the pages in docs/ say is so: their tables match the code, their examples run."""
