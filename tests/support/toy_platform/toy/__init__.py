"""The toy platform: docs/adapters.md walks through its two files."""
