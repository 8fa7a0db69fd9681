"""When a change of a key takes effect: each key says so, and the page says the same."""

import re
from pathlib import Path

import pytest

from gateway.settings.marks import EXCEPTIONS, SECTIONS, mark_of
from gateway.settings.tree import Keys, Settings, dotted

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_each_section_has_a_mark() -> None:
    """A section that is added to the tree takes one; one that is gone leaves none behind."""
    assert set(SECTIONS) == set(Settings.model_fields)


def test_each_key_has_a_mark() -> None:
    """Also the keys inside blocks."""
    marks = {dotted(key.pattern): mark_of(key.pattern) for key in Keys(Settings)}
    assert set(marks.values()) == {"live", "next-turn", "restart"}


def test_an_exception_is_a_key_and_differs_from_its_section() -> None:
    """None is left over from a key that was renamed."""
    names = set(Keys(Settings).names())
    for key, mark in EXCEPTIONS.items():
        assert key in names
        assert mark != SECTIONS[key.partition(".")[0]], key


def test_positions_do_not_matter() -> None:
    """A block of a list has the marks of any block."""
    assert mark_of(("platforms", "slack", 1, "mode")) == "restart"
    assert mark_of(("platforms", "slack", 1, "bot_token")) == "live"
    assert mark_of(("fallbacks", 0, "name")) == "next-turn"


def test_a_section_without_a_mark_is_an_error() -> None:
    """Nobody can forget it."""
    with pytest.raises(KeyError):
        mark_of(("no_such_section", "key"))


def test_the_page_tells_each_mark() -> None:
    """docs/configuration.md, "When a change takes effect"."""
    page = PAGE.read_text().partition("## When a change takes effect")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w-]+) \| (.*) \|$", page, re.M)
    assert {section: mark for section, mark, _ in rows} == SECTIONS
    told = [pair for *_, rest in rows for pair in re.findall(r"`([\w.]+)`: ([\w-]+)", rest)]
    assert dict(told) == EXCEPTIONS
