"""What the model reads before a conversation: the system prompt and skills."""
