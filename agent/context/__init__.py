"""The part of a conversation that the model sees: planner.py decides when to cut."""
