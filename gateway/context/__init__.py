"""What the model is given for a turn: the window, prompts, summaries and memory."""
