"""Each promise of docs/security.md names a test that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/security.md", "tests/security/README.md")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def named(page: str) -> list[tuple[str, str]]:
    """Return the tests that a page names, each with its file."""
    return NAMED.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_each_named_test_is_there(page: str) -> None:
    """In the file that is named."""
    missing = [
        f"{file}::{name}"
        for file, name in named(page)
        if not (ROOT / file).is_file() or not re.search(rf"def {name}\(", (ROOT / file).read_text())
    ]
    assert named(page)
    assert missing == []


def test_each_promise_names_a_test() -> None:
    """A row of the tables of promises without one would be a promise that nobody attacks."""
    text = (ROOT / "docs/security.md").read_text()
    tables = text.partition("## Boundaries")[2].partition("\n## ")[0]
    rows = [line for line in tables.splitlines() if re.match(r"\| [A-Z`]", line)]
    assert len(rows) >= 20
    assert [row for row in rows if not NAMED.search(row)] == []


def test_the_policy_says_how_to_report() -> None:
    """And which versions are looked after."""
    text = (ROOT / "SECURITY.md").read_text()
    assert "## Reporting" in text
    assert "## Supported versions" in text
