"""The gateway's implementation of agent/ports.py: journal, budgets, questions, files, search."""
