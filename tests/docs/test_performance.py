"""docs/performance.md is what `python -m tests.bench --write` has written, and prose around it."""

import re
from pathlib import Path

import pytest

from tests.bench.__main__ import BY_NAME
from tests.bench.figures import Figure, LeftOut
from tests.bench.page import BLOCK, COLUMNS, PAGE, SHOWN, Section, machine, shown, taken_now, write

PEERS = {"peers-compress", "peers-session"}
"""Tables that the harness of the peers prints itself."""
TAKEN = re.compile(r"Taken 20\d\d-\d\d-\d\d, .+\.")
_UNIT = r"[mn\u00b5]?s|[KMG]B|[MG]Hz|%|\u00d7|/s|turns/s|times"
MEASURED = re.compile(rf"\d[\d.,]*\s?(?:{_UNIT})(?![\w-])")
WHEN = "2026-11-24, abc1234, 2 cores of Xeon 2.6 GHz, load 0.5"


BLOCKS = list(BLOCK.finditer(PAGE.read_text("utf-8")))


def outside() -> str:
    """Return what people have written of the page."""
    return BLOCK.sub("", PAGE.read_text("utf-8"))


def test_every_table_is_a_sections() -> None:
    """Between its marks, once, and no other table beside them."""
    names = [match[1] for match in BLOCKS]
    assert [match[3] for match in BLOCKS] == names
    assert len(set(names)) == len(names)
    assert set(names) == set(SHOWN) | PEERS
    assert set(SHOWN) <= set(BY_NAME)
    assert "|" not in outside()
    assert "<!--" not in outside()


@pytest.mark.parametrize("match", BLOCKS, ids=lambda it: it[1])
def test_a_table_says_how_when_and_where(match: re.Match[str]) -> None:
    """Its command, one line with date, commit and machine, then the listed figures."""
    lines = match[2].splitlines()
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert TAKEN.fullmatch(lines[2])
    assert rows
    if match[1] not in PEERS:
        assert lines[0] == f"    python -m tests.bench {match[1]} --write"
        starts = tuple(f"| {start}" for start in SHOWN[match[1]])
        assert [row for row in rows if not row.startswith(starts)] == []
        assert all(any(row.startswith(start) for row in rows) for start in starts)


def test_the_prose_has_no_figures() -> None:
    """They would stay when the rows move on; what a sentence needs stands in a row."""
    assert MEASURED.findall(outside()) == []
    for text in ("takes 6.2 ms", "1.4 times", "12 %", "337/s", "23.5 MB", "31 ns"):
        assert MEASURED.search(text), text


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with two tables."""
    path = tmp_path / "page.md"
    path.write_text(
        "# Page\n\nProse.\n\n<!-- bench: storage -->\nold\n<!-- end of storage -->\n\nMore.\n\n"
        "<!-- bench: start -->\nkept\n<!-- end of start -->\n"
    )
    return path


def test_a_section_that_was_run_is_written(page: Path) -> None:
    """With its command and a row for each figure; the other table and the prose stay."""
    lines = [Figure("load", 4.97, "ms", at_most=5), Figure("  appends", 1234.6, "/s", at_least=1e4)]
    assert write(Section("storage", COLUMNS, lines), WHEN, page)
    assert page.read_text() == (
        "# Page\n\nProse.\n\n<!-- bench: storage -->\n"
        "    python -m tests.bench storage --write\n\n"
        f"Taken {WHEN}.\n\n"
        "| figure | measured | target |  |\n"
        "| --- | --- | --- | --- |\n"
        "| load | 4.97 ms | ≤ 5 ms | reached |\n"
        "| appends | 1,235 /s | ≥ 10000 /s | **under** |\n"
        "<!-- end of storage -->\n\nMore.\n\n<!-- bench: start -->\nkept\n<!-- end of start -->\n"
    )


def test_a_section_without_a_place_stands_at_the_end(page: Path) -> None:
    """With columns of its own, where it has some."""
    figure = Figure("claim", 1, "ms").showing("1 ms", "2")
    assert write(Section("path", ("CPU", "statements"), [figure]), WHEN, page)
    assert page.read_text().endswith(
        "\n## Path\n\n<!-- bench: path -->\n    python -m tests.bench path --write\n\n"
        f"Taken {WHEN}.\n\n"
        "| figure | CPU | statements |\n| --- | --- | --- |\n"
        "| claim | 1 ms | 2 |\n<!-- end of path -->\n"
    )


def test_the_page_shows_the_listed_figures() -> None:
    """Of a section that it does not list, none; what was left out stays."""
    rss = Figure("offline model, web chat only: idle RSS", 103, "MB")
    left = LeftOut("a", "no network")
    start = Section("start", COLUMNS, [Figure("a", 1, "ms"), rss, left])
    assert shown(start).lines == [rss, left]
    assert shown(Section("path", COLUMNS, [rss])).lines == []


@pytest.mark.parametrize("lines", [[], [Figure("a", 1, "ms"), LeftOut("b", "no network")]])
def test_a_section_of_which_something_is_missing_keeps_its_rows(
    lines: list[Figure | LeftOut], page: Path
) -> None:
    """Half a table would look like a whole one."""
    before = page.read_text()
    assert not write(Section("storage", COLUMNS, lines), WHEN, page)
    assert page.read_text() == before


def test_a_row_says_when_where_and_of_what(tmp_path: Path) -> None:
    """Date, commit, machine, load."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Intel(R) Xeon(R) CPU @ 2.30GHz\ncpu MHz\t\t: 2299.998\n")
    assert re.fullmatch(r"\d+ cores of Intel Xeon 2\.3 GHz", machine(cpuinfo))
    assert re.fullmatch(
        r"20\d\d-\d\d-\d\d, [0-9a-f]{7,}( with changes)?, \d+ cores of .+, load \d+\.\d",
        taken_now(),
    )
