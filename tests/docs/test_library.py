"""docs/library.md: its examples work as they stand there, in one program from top to bottom."""

import doctest
from pathlib import Path

import agent

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def test_the_examples_work() -> None:
    """Each prints what the page says."""
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert attempted > 50


def test_every_exported_name_stands_on_the_page() -> None:
    """Who reads it knows all there is."""
    text = PAGE.read_text("utf-8")
    missing = [name for name in agent.__all__ if f"`{name}`" not in text and name not in IN_CODE]
    assert missing == []


IN_CODE = {"CompactionResult", "SummaryFailed"}
"""Shown by examples: the one returned, the other raised."""
