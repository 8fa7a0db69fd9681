"""Context engines beside the default one, and how they are found and run."""
