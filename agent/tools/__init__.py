"""Tools that the model may call: registry, execution, truncation, and the built-in tools."""
