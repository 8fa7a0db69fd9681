"""Plugins of other authors: tools, hooks, memory providers, engines; read loading.py first."""
