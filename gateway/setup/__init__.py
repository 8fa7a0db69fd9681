"""First steps: the set-up of a model and platforms, and the import from Hermes."""
