"""The phases of compression, each a pure function over entries of the transcript."""
