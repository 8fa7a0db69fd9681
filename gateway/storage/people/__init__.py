"""Who was let in, and what the agent notes down."""
