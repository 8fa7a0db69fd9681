"""Extractor."""
