"""Models behind one small protocol (`agent.models.base`); each imports only its own SDK."""
