"""Where log lines go, and how they are written."""
