"""One turn of the agent; read loop.py first."""
