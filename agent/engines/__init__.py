"""Context engines in addition to the default one, agent/context_compressor.py."""
