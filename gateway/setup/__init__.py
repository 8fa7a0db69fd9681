"""The first steps: a set-up asks providers and platforms and writes; Hermes is taken over."""
