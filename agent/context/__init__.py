"""What the model is given of a conversation: planner.py decides when to cut, the others how."""
