"""The tool `search_files` and its helper process."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ToolError
from agent.tools.sandbox import search, searcher
from tests.agent.tools.sandbox.calling import use


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with some files, and a secret outside."""
    (tmp_path / "secret").write_text("word")
    root = tmp_path / "ws"
    (root / "src").mkdir(parents=True)
    (root / "a.txt").write_text("a Word\nnothing\n")
    (root / "src" / "b.py").write_text("x = 'word'\n" + "y" * 400 + " word\n")
    (root / "bin").write_bytes(b"word\0")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "out").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    return root


def found(root: Path, text: str, **changes: Any) -> list[str]:
    """Search in this process."""
    request = {"regex": False, "ignore_case": True, "path": "", "files": "*", "limit": 50}
    return searcher.search(request | {"root": str(root), "text": text} | changes).split("\n")


def test_lines_are_found_with_their_place(folder: Path) -> None:
    """Links, pipes and what is no text are passed over; long lines are cut."""
    first, second, third = found(folder, "WORD")
    assert first == "a.txt:1: a Word"
    assert second == "src/b.py:1: x = 'word'"
    assert third == f"src/b.py:2: {'y' * 300}…"


@pytest.mark.parametrize(
    ("text", "changes", "places"),
    [
        ("word", {"ignore_case": False}, ["src/b.py:1", "src/b.py:2"]),
        ("^a w.rd$", {"regex": True}, ["a.txt:1"]),
        ("^a w.rd$", {"regex": True, "ignore_case": False}, ["No line matches in 2 text files."]),
        ("word", {"files": "*.txt"}, ["a.txt:1"]),
        ("x =", {"path": "src"}, ["src/b.py:1"]),
        ("word", {"limit": 1}, ["a.txt:1", "[there are more; these are the first 1]"]),
    ],
)
def test_a_search_can_be_narrowed(
    folder: Path, text: str, changes: dict[str, Any], places: list[str]
) -> None:
    """By case, pattern, name, directory and number."""
    lines = found(folder, text, **changes)
    assert [line.split(": ")[0] for line in lines] == places


@pytest.mark.parametrize("changes", [{"text": "(", "regex": True}, {"path": "../"}, {"path": "no"}])
def test_what_cannot_be_searched_is_told(folder: Path, changes: dict[str, Any]) -> None:
    """A broken pattern, a path that leads out, nothing there."""
    with pytest.raises(ToolError):
        found(folder, **{"text": "x", **changes})


def test_a_file_that_cannot_be_opened_is_passed_over(folder: Path) -> None:
    """It has just gone."""
    handle = os.open(folder, os.O_RDONLY)
    assert searcher._text(handle, "gone") is None
    os.close(handle)


async def test_the_tool_asks_its_helper(folder: Path) -> None:
    """What it finds and what it refuses come back as results."""
    assert (await use(folder, "search_files", text="nothing")).text == "a.txt:2: nothing"
    refused = await use(folder, "search_files", text="(", regex=True)
    assert refused.text.startswith("Error: this is no regular expression")


async def test_a_pattern_that_takes_years_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the model is told."""
    monkeypatch.setattr(search, "TIME_LIMIT_S", 0.3)
    (folder / "bomb").write_text("a" * 60 + "!")
    outcome = await use(folder, "search_files", text="(a+)+$", regex=True)
    assert "took longer than 0.3 s" in outcome.text


async def test_a_helper_that_says_too_much_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is not ours."""
    monkeypatch.setattr(search, "MAX_ANSWER_BYTES", 5)
    outcome = await use(folder, "search_files", text="word")
    assert outcome.text == "Error: the search failed: the answer is too large"


def test_the_kernel_ends_a_search_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parley may have been killed meanwhile."""
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    searcher.limit_self(10, 1_000)
    assert limits[resource.RLIMIT_CPU] == (12, 12)
    assert limits[resource.RLIMIT_DATA] == (1_000, 1_000)
