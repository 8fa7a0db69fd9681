"""When a change of a key takes effect: each key says so, and the page says the same."""

import re
from pathlib import Path

import pytest

from agent.settings import Section
from gateway.settings.tree import Keys, Settings, dotted, mark_of

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_each_key_has_a_mark() -> None:
    """Also the keys inside blocks."""
    assert {key.mark for key in Keys(Settings)} == {"live", "next-turn", "restart"}


def test_positions_do_not_matter() -> None:
    """A block of a list has the marks of any block."""
    assert mark_of(("platforms", "slack", 1, "mode")) == "restart"
    assert mark_of(("platforms", "slack", "mode")) == "restart"
    assert mark_of(("platforms", "slack", 1, "bot_token")) == "live"
    assert mark_of(("fallbacks", 0, "name")) == "next-turn"


def test_a_section_without_a_mark_is_an_error() -> None:
    """Nobody can forget it."""

    class Unmarked(Section):
        key: int = 1

    with pytest.raises(KeyError, match="key has no mark"):
        Keys(Unmarked)
    with pytest.raises(KeyError):
        mark_of(("no_such_section", "key"))


def test_the_page_tells_each_mark() -> None:
    """docs/configuration.md, "When a change takes effect"."""
    page = PAGE.read_text().partition("## When a change takes effect")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w-]+) \| (.*) \|$", page, re.M)
    keys = {key.pattern: key.mark for key in Keys(Settings)}
    sections = {path[0]: mark for path, mark in keys.items() if len(path) == 1}
    assert {section: mark for section, mark, _ in rows} == sections
    told = [pair for *_, rest in rows for pair in re.findall(r"`([\w.]+)`: ([\w-]+)", rest)]
    assert dict(told) == {
        dotted(path): mark for path, mark in keys.items() if mark != keys.get(path[:-1], mark)
    }
