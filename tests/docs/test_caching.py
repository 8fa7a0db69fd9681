"""docs/caching.md: its example runs as it stands there, and its reasons are those of the code."""

import re
import subprocess
import sys
from pathlib import Path

from agent.prompt_caching import STRATEGIES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "caching.md").read_text("utf-8")


def block(language: str) -> str:
    """Return the page's only code block in a language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    return str(found)


def test_the_example_prints_what_the_page_says() -> None:
    """As a program of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", block("python")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == block("text")


def test_every_strategy_is_described() -> None:
    """By its name, in a list of its own."""
    assert set(re.findall(r"^- `(\w+)`[ :(]", PAGE, re.M)) == set(STRATEGIES)
