"""Chat commands: a file and a decorator for each; registry.py finds them."""
