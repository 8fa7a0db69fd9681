"""The model's input for a turn: the window, prompts, summaries and memory."""
