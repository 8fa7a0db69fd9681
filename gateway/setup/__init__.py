"""What a set-up does, in the terminal as in the web: asks providers and platforms, writes."""
