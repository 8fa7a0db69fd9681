"""Mutants: flaws that were put in by hand, each with the test that must catch it."""
