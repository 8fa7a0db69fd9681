"""What docs and docstrings name is there: files by their path, pages by their links."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Pages that tell what was: the files of their time may be gone.
HISTORY = (
    "CHANGELOG.md",
    "docs/decisions/",
    "docs/performance.md",
)
NAMED = re.compile(
    r"(?<![\w/.*<{-])((?:gateway|agent|adapters|tests|migrations)/[\w/]+\.(?:py|html))"
)
DECISIONS = ROOT / "docs" / "decisions"
MOST_DECISIONS = 40
MOST_WORDS = 300
"""Of one decision."""
HEADINGS = ["## Context", "## Decision", "## Consequences"]
CITED = re.compile(r"\bdecisions? (\d{1,3})\b", re.IGNORECASE)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def lacking(text: str) -> list[str]:
    """Return the files that a text names and that are not there."""
    return sorted({name for name in NAMED.findall(text) if not (ROOT / name).exists()})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_and_pages_that_a_page_names_are_there(page: Path) -> None:
    """Nobody is sent to a file that has moved; of history only the links must hold."""
    text = page.read_text()
    links = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    is_history = str(page.relative_to(ROOT)).startswith(HISTORY)
    assert links == []
    assert is_history or lacking(text) == []


def test_the_files_that_docstrings_name_are_there() -> None:
    """In product, tests and migrations."""
    folders = ("gateway", "agent", "adapters", "tests", "migrations")
    sources = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not {"house", "mutants"} & set(path.parts)
    ]
    wrong = {str(p.relative_to(ROOT)): found for p in sources if (found := lacking(p.read_text()))}
    assert wrong == {}


SHORT = re.compile(r"`((?:\w+/)*(?:\w+\.py|\w+/))[` ]")


def unknown(text: str) -> list[str]:
    """Return the files and folders a text names by the end of their path that do not exist."""
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    paths = "".join(f"/{path}\n" for path in found.stdout.decode().split())
    folders = {name for name in SHORT.findall(text) if name.endswith("/") and f"/{name}" in paths}
    return sorted({
        name for name in SHORT.findall(text) if name not in folders and f"/{name}\n" not in paths
    })


def test_the_map_names_files_and_folders_that_are_there() -> None:
    """docs/architecture.md names most of them without their room."""
    assert unknown((ROOT / "docs" / "architecture.md").read_text()) == []
    assert unknown("see `pipeline/nowhere.py`, `tokens/` and `app.py`") == [
        "pipeline/nowhere.py",
        "tokens/",
    ]


def test_a_file_that_is_not_there_is_found() -> None:
    """The check can fail."""
    assert lacking("see gateway/nowhere.py and gateway/app.py") == ["gateway/nowhere.py"]


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_picture_of_the_path_names_the_files_of_the_pipeline(page: str) -> None:
    """In their order along the path."""
    order = "intake admission worker next_turn turn delegation preview delivery notices"
    files = {path.stem for path in (ROOT / "gateway" / "pipeline").glob("*.py")}
    text = (ROOT / page).read_text()
    picture = text[text.index("InboundMessage") :]
    places = [picture.index(f"{name}.py") for name in order.split()]
    assert files == {*order.split(), "__init__"}
    assert places == sorted(places)


def decision_faults(text: str) -> list[str]:
    """Return the rules for decisions that a page breaks."""
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    return [
        *(["too long"] if len(text.split()) > MOST_WORDS else []),
        *(["other headings"] if headings != HEADINGS else []),
    ]


def unknown_decisions(text: str) -> list[str]:
    """Return the numbers of cited decisions that do not exist."""
    known = {path.name[:3] for path in DECISIONS.glob("[0-9]*.md")}
    return sorted({number for number in CITED.findall(text) if number not in known})


def test_decisions_are_few_and_short_and_have_three_headings() -> None:
    """At most 40 pages of 300 words: context, decision, consequences."""
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    faults = {page.name: found for page in pages if (found := decision_faults(page.read_text()))}
    assert len(pages) <= MOST_DECISIONS
    assert faults == {}


def test_cited_decisions_exist() -> None:
    """In code, tests, mutants and pages."""
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    paths = [ROOT / name for name in found.stdout.decode().split()]
    read = [path for path in paths if path.suffix in {".md", ".patch", ".py"} and path.exists()]
    cited = {path: path.read_text() for path in read if path != Path(__file__)}
    wrong = {
        str(path.relative_to(ROOT)): lacks
        for path, text in cited.items()
        if (lacks := unknown_decisions(text))
    }
    assert wrong == {}


def test_a_decision_that_breaks_a_rule_is_found() -> None:
    """The checks of decisions can fail."""
    assert decision_faults("## Context\n## Reason\n" + "word " * 300) == [
        "too long",
        "other headings",
    ]
    assert unknown_decisions("decision 001, decisions 999 and Decision 73") == ["73", "999"]
