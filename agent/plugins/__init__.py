"""Extension points: tools, hooks and memory providers that others write; read loading.py first."""
