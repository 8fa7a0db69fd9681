"""Context engines besides the default one, agent/context_compressor.py."""
