"""The search index: its terms, its feeding, and the search for messages."""
