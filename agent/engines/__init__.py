"""Context engines beside the default one, agent/context_compressor.py."""
