"""docs/tour.md: its pictures are there, and the day that makes them can be lived through."""

import re
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM
from tests.tour.day import pictures

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.findall(r"\]\(tour/([a-z-]+)\.png\)", (DOCS / "tour.md").read_text("utf-8"))


def test_the_page_shows_the_pictures_that_are_there() -> None:
    """Each once, and no other one lies about."""
    assert sorted(SHOWN) == sorted(each.stem for each in (DOCS / "tour").iterdir())


if CHROMIUM:

    @pytest.mark.thorough
    @pytest.mark.asyncio(loop_scope="session")
    @pytest.mark.usefixtures("the_browser")
    async def test_the_day_makes_them(tmp_path: Path) -> None:
        """All of them, in the order of the page."""
        assert await pictures(tmp_path) == SHOWN
        files = [(tmp_path / f"{name}.png").read_bytes() for name in SHOWN]
        assert all(each.startswith(b"\x89PNG") for each in files)
