"""Third-party plugins: tools, hooks, memory providers, engines; read loading.py first."""
