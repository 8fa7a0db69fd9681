"""Models behind one small protocol (`agent.models.base`); each module imports only its own SDK."""
