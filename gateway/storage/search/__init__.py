"""The search index: its terms, how it is fed, how messages are found in it."""
