"""Protection of the model and its readers: the threat scan, and the masking of secrets."""
