"""The gateway's side of agent/ports.py: journal, budgets, questions, files, search."""
