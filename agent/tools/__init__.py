"""Tools the model may call: registry, execution, truncation, and the built-in ones."""
