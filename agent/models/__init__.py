"""Models behind one small protocol (`agent.models.base`); SDKs are imported by their own file only."""
