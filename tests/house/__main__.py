"""Print what the product is measured by: `python -m tests.house [-v] [FIGURE …]`.

Edits for a platform and for a command outside of their own files are proved by tests that add one.
"""

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.house.bars import BARS, HELLO, Figure
from tests.house.figures import measured
from tests.house.hello import hello
from tests.house.path import PATH, path
from tests.house.source import Product

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Print the table; with -v the places behind each figure."""
    options = argparse.ArgumentParser(
        prog="python -m tests.house", description="Print what the product is measured by."
    )
    options.add_argument("-v", "--verbose", action="store_true", help="also print the places")
    options.add_argument("--root", type=Path, default=ROOT, help="another checkout's source")
    options.add_argument("figure", nargs="*", help="only figures whose name holds one of these")
    given = options.parse_args()
    figures = measured(Product(given.root))
    if given.root == ROOT and _is_wanted(HELLO, given.figure):
        with TemporaryDirectory() as home:
            figures.append(asyncio.run(hello(Path(home))))
    if given.root == ROOT and any(_is_wanted(name, given.figure) for name in PATH):
        with TemporaryDirectory() as home:
            figures += asyncio.run(path(Path(home)))
    for each in figures:
        if _is_wanted(each.name, given.figure):
            show(each, verbose=given.verbose)


def _is_wanted(name: str, words: list[str]) -> bool:
    return not words or any(word in name for word in words)


def show(figure: Figure, *, verbose: bool) -> None:
    """Print one line, and the places below it."""
    bar = BARS[figure.name]
    sign = "≥" if bar.at_least else "≤"
    must = "" if bar.must is None else f"{sign} {_number(bar.must)}{bar.unit}"
    verdict = "holds" if bar.allows(figure.value, bar.must) else "NOT YET"
    value = f"{_number(figure.value)}{bar.unit}"
    print(f"{figure.name:<50} {value:>9} {must:>10}  {verdict if must else ''}".rstrip())
    if verbose:
        for place in figure.places:
            print(f"    {place}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


if __name__ == "__main__":
    main()
