"""What the model is given of a conversation: planner.py decides when, the phases how it is cut."""
