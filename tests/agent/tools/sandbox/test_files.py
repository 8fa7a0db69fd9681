"""The tools that read, write, list and search, and the helper process of the search."""

import io
import os
import resource
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ToolError
from agent.processes import descent
from agent.settings import TerminalSettings, ToolSettings
from agent.tools.catalog import builtin_tools
from agent.tools.context import ToolContext, ToolOutcome, TurnRights
from agent.tools.sandbox import files, searcher
from tests.agent.tools.doubles import NOW, MemoryReader, call, through_gate
from tests.agent.tools.sandbox.calling import use, use_with


async def test_what_is_written_is_read_by_lines(tmp_path: Path) -> None:
    """With where it goes on."""
    await use(tmp_path, "write_file", path="n/a.txt", content="one\r\ntwo\nthree\n")
    read = await use(tmp_path, "read_file", path="n/a.txt", first_line=1, lines=2)
    assert read.text == (
        "[n/a.txt: lines 1 to 2, 15 bytes in all; go on with first_line=3]\none\ntwo"
    )
    read = await use(tmp_path, "read_file", path="n/a.txt", first_line=3)
    assert read.text.endswith("in all]\nthree")


async def test_nothing_behind_the_last_line(tmp_path: Path) -> None:
    """The model learns how long the file is."""
    await use(tmp_path, "write_file", path="a", content="one\n")
    read = await use(tmp_path, "read_file", path="a", first_line=9)
    assert read.text == "a has 1 lines, 4 bytes: nothing is left."


@given(
    st.lists(st.sampled_from([b"\n", b"ab", b"c"]), max_size=12).map(b"".join),
    st.integers(0, 9),
)
def test_reading_goes_on_where_the_next_line_begins(content: bytes, first: int) -> None:
    """However much of a file was read before."""
    lines = io.BytesIO(content)
    skipped = len([*islice(lines, first)])
    expected = [line.decode().removesuffix("\n") for line in content.splitlines(keepends=True)]
    assert files._page(lines, 100) == (expected[skipped:], False)


async def test_a_file_of_newlines_is_skipped_in_no_time(tmp_path: Path) -> None:
    """A thread that took it line by line would be busy long after the tool's time is over."""
    (tmp_path / "a").write_bytes(b"\n" * 40_000_000)
    read = await use(tmp_path, "read_file", path="a", first_line=10**9)
    assert read.text == (
        "a has 20,000,000 lines, 40,000,000 bytes; only the first 20,000,000 can be read:"
        " nothing is left."
    )


async def test_a_file_that_is_no_text_is_described(tmp_path: Path) -> None:
    """By its name, size and first bytes; an archive is never unpacked."""
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04\x00\x00")
    (tmp_path / "b").write_bytes(b"\xff\xfe\xfd\xfc")
    read = await use(tmp_path, "read_file", path="a.zip")
    assert read.text == (
        "a.zip is not text: application/zip, 6 bytes, beginning with 50 4b 03 04 00 00."
    )
    assert "b is not text: of unknown type" in (await use(tmp_path, "read_file", path="b")).text


async def test_long_lines_are_cut(tmp_path: Path) -> None:
    """One line of a file of gigabytes is not the whole answer."""
    (tmp_path / "a").write_bytes(b"x" * 1_300_000 + b"\nend")
    read = await use(tmp_path, "read_file", path="a")
    assert "[+1,280,000 bytes of this line left out]\nend" in read.text
    assert len(read.text) < 2 * files.MAX_LINE_BYTES


async def test_one_answer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where to go on."""
    monkeypatch.setattr(files, "MAX_READ_BYTES", 10)
    (tmp_path / "a").write_text("12345\n12345\n12345\n")
    assert "go on with first_line=3" in (await use(tmp_path, "read_file", path="a")).text


async def test_a_line_far_into_a_file_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by many lines nor by one; the answer says so."""
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 50_000)
    (tmp_path / "a").write_text("x\n" * 60_000)
    (tmp_path / "b").write_text("x" * 3_000_000)
    for path, lines in (("a", "25,000"), ("b", "1")):
        read = await use(tmp_path, "read_file", path=path, first_line=100_000)
        assert read.text.startswith(f"{path} has {lines} lines, ")
        assert read.text.endswith("; only the first 50,000 can be read: nothing is left.")
    end = await use(tmp_path, "read_file", path="a", first_line=25_000)
    assert end.text.startswith("[a: lines 25000 to 25000, 120,000 bytes in all; only the first")


async def test_a_listing_tells_kinds_and_sizes(tmp_path: Path) -> None:
    """Links are named, not followed; signs that could fool a reader are not shown."""
    (tmp_path / "d").mkdir()
    (tmp_path / "f\n\x1b[31m").write_text("12")
    (tmp_path / "l").symlink_to("/etc")
    os.mkfifo(tmp_path / "p")
    listed = await use(tmp_path, "list_files")
    assert listed.text == (
        "[the workspace]\nd  (directory)\nf??[31m  2\nl  (link, not followed)\np  (pipe)"
    )
    assert (await use(tmp_path, "list_files", path="d")).text == "d is empty."
    assert (await use(tmp_path, "list_files", path="l")).status == "error"


async def test_a_long_listing_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how many there are, as far as was looked."""
    for number in range(5):
        (tmp_path / str(number)).write_text("")
    monkeypatch.setattr(files, "MAX_LISTED", 2)
    assert "[the first 2 of 5 entries" in (await use(tmp_path, "list_files")).text
    monkeypatch.setattr(files, "MAX_SCANNED", 3)
    assert "of over 3 entries" in (await use(tmp_path, "list_files")).text


async def test_an_entry_that_has_just_gone_is_left_out(tmp_path: Path) -> None:
    """A command deletes it while it is listed."""
    folder = os.open(tmp_path, os.O_RDONLY)
    assert files._entry(folder, "gone") == ""
    os.close(folder)


async def test_a_write_stays_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for the whole directory."""
    monkeypatch.setattr(files, "WORKSPACE_BYTES", 3)
    settings = ToolSettings(enabled=("write_file",))
    written = await use_with(settings, tmp_path, path="a", content="1234")
    assert written.text == "Error: the workspace would be larger than 3 bytes"


async def test_without_a_workspace_there_are_no_files() -> None:
    """The model is told."""
    assert (await use(None, "list_files")).text == "Error: there is no workspace here"


@pytest.mark.parametrize(
    "name", ["read_file", "write_file", "list_files", "search_files", "fetch_url", "terminal"]
)
async def test_a_sender_who_may_not_act_touches_nothing(tmp_path: Path, name: str) -> None:
    """Reading the workspace is an act as well."""
    context = ToolContext(
        "c1",
        MemoryReader(),
        lambda: NOW,
        workspace=tmp_path / "ws",
        rights=TurnRights(roles=frozenset({"guest"})),
    )
    options = TerminalSettings(allow_root=True)
    tools = builtin_tools(ToolSettings(enabled=(name,), terminal=options))
    outcome = await through_gate(tools, call(name), context)
    assert outcome == ToolOutcome(f"Error: {name} is not allowed here (default.guests)", "refused")
    assert not (tmp_path / "ws").exists()


def test_none_of_them_is_on_by_default() -> None:
    """An operator names them."""
    world = {"read_file", "write_file", "list_files", "search_files", "fetch_url", "terminal"}
    assert world.isdisjoint(ToolSettings().enabled)


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
    assert refused.text.startswith("Error: this is not a regular expression")


async def test_a_pattern_that_takes_years_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the model is told."""
    monkeypatch.setattr(files, "TIME_LIMIT_S", 0.3)
    (folder / "bomb").write_text("a" * 60 + "!")
    outcome = await use(folder, "search_files", text="(a+)+$", regex=True)
    assert "took longer than 0.3 s" in outcome.text


async def test_a_helper_that_says_too_much_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is not ours."""
    monkeypatch.setattr(files, "MAX_ANSWER_BYTES", 5)
    outcome = await use(folder, "search_files", text="word")
    assert outcome.text == "Error: the search failed: the answer is too large"


def test_the_kernel_ends_a_search_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parley may have been killed meanwhile."""
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    descent.limit_self(10, 1_000)
    assert limits[resource.RLIMIT_CPU] == (12, 12)
    assert limits[resource.RLIMIT_DATA] == (1_000, 1_000)
