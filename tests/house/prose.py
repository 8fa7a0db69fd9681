"""What the texts and tests are measured by: pages, phrases, and lines of tests."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.bars import Figure
from tests.house.source import Product
from tests.house.tics import Text, product_texts

KINDS = {
    "docstring": "docstrings",
    "comment": "comments",
    "help": "help texts",
    "paragraph": "pages",
}
DECISIONS = "docs/decisions/[0-9]*.md"


def prose(product: Product) -> Iterator[Figure]:
    """Measure the texts of a repository, and how many lines its tests have."""
    found = product_texts(product.root)
    for kind, name in KINDS.items():
        yield _phrases(name, [each for each in found if each.kind == kind], product.root)
    yield from _pages(product.root)
    yield from _tests(product)


def _phrases(name: str, texts: list[Text], root: Path) -> Figure:
    places = [
        f"{each.place.removeprefix(f'{root}/')}: {tic}: {' '.join(each.words.split())[:100]}"
        for each in texts
        for tic in each.tics
    ]
    hits = sum(bool(each.tics) for each in texts)
    share = round(100 * hits / max(len(texts), 1), 1)
    return Figure(f"{name} that read like a translation", share, places)


def _pages(root: Path) -> Iterator[Figure]:
    pages = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    words = {str(page.relative_to(root)): len(page.read_text("utf-8").split()) for page in pages}
    by_size = sorted(words.items(), key=lambda each: -each[1])
    yield Figure("words of all pages", sum(words.values()), [f"{n}: {w} words" for n, w in by_size])
    decisions = {str(page.relative_to(root)) for page in root.glob(DECISIONS)}
    yield Figure("decisions", len(decisions), sorted(decisions))
    longest = max((words[each] for each in decisions), default=0)
    yield Figure("words of the longest decision", longest)
    yield Figure("words of the performance page", words.get("docs/performance.md", 0))
    changelog = root / "CHANGELOG.md"
    releases = re.split(
        r"^## ", changelog.read_text("utf-8") if changelog.exists() else "", flags=re.M
    )
    newest = releases[1] if len(releases) > 1 else ""
    yield Figure("words of the newest release in CHANGELOG.md", len(newest.split()))
    for name in ("README.md", "CONTRIBUTING.md"):
        page = root / name
        lines = page.read_text("utf-8").count("\n") if page.exists() else 0
        yield Figure(f"lines of {name}", lines)


def _tests(product: Product) -> Iterator[Figure]:
    lines = {
        str(path.relative_to(product.root)): path.read_bytes().count(b"\n")
        for path in (product.root / "tests").rglob("*.py")
    }
    code = sum(len(each.lines) for each in product.modules.values())
    by_size = sorted(lines.items(), key=lambda each: -each[1])
    largest = [f"{name}: {count} lines" for name, count in by_size[:50]]
    yield Figure("lines of tests per product line", round(sum(lines.values()) / code, 2), largest)
    for folder in ("tests/support", "tests/bench"):
        ours = [(name, count) for name, count in by_size if name.startswith(f"{folder}/")]
        places = [f"{name}: {count} lines" for name, count in ours]
        yield Figure(f"lines of {folder}", sum(count for _, count in ours), places)
