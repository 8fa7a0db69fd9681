"""What the model is told before a conversation: the system prompt and skills."""
