"""The system prompt and skills, which the model reads before a conversation."""
