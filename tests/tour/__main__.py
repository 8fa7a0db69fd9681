"""`python -m tests.tour` writes docs/tour/*.png anew."""

import asyncio
import tempfile
from pathlib import Path

from tests.support.browser import browser
from tests.tour.day import pictures, replace

FOLDER = Path(__file__).parents[2] / "docs" / "tour"


async def main() -> None:
    """Live through the day, and keep its pictures."""
    with tempfile.TemporaryDirectory() as made:
        async with browser():
            names = await pictures(Path(made))
        replace(FOLDER, Path(made))
    print(", ".join(names))


asyncio.run(main())
