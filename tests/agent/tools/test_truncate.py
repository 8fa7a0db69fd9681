"""Cutting long texts: tool results, and excerpts at words."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.settings import OutputSettings
from agent.tools.truncate import (
    Direction,
    ObservationTruncator,
    end_of,
    place_of,
    truncate,
)
from tests.support.effort import effort

TEXTS = st.one_of(
    st.text(max_size=2000),
    st.lists(st.text(st.sampled_from("ab é漢😀"), max_size=120), max_size=40).map("\n".join),
)
SETTINGS = st.builds(
    OutputSettings,
    max_lines=st.integers(1, 12),
    max_bytes=st.integers(256, 400),
    direction=st.sampled_from(["head", "tail", "head_tail"]),
)
LINES = "\n".join(str(number) for number in range(1, 101))


def preview_of(text: str, max_lines: int, direction: Direction) -> list[str]:
    limits = OutputSettings(max_lines=max_lines, direction=direction)
    return truncate(text, limits).preview.split("\n")


@pytest.mark.thorough
@given(TEXTS, SETTINGS)
def test_both_limits_hold_for_every_text(text: str, limits: OutputSettings) -> None:
    """Lines and bytes of the preview, its mark included, stay within the limits."""
    preview = truncate(text, limits).preview
    lines = preview.count("\n") + (not preview.endswith("\n") and preview != "")
    assert lines <= limits.max_lines
    assert len(preview.encode()) <= limits.max_bytes


@given(TEXTS, SETTINGS)
def test_the_parts_shown_are_the_ends_of_the_text(text: str, limits: OutputSettings) -> None:
    """Before the mark stands a start of the text, behind it an end; no character is split."""
    result = truncate(text, limits)
    if not result.truncated:
        assert result.preview == text
        return
    head, _, rest = result.preview.rpartition("[... ")
    tail = rest.partition(" left out ...]")[2]
    assert text.startswith(head[:-1])
    assert text.removesuffix("\n").endswith(tail[1:])
    shown = len(head[:-1].encode()) + len(tail[1:].encode())
    assert result.kept_bytes == shown < result.original_bytes


@given(TEXTS, SETTINGS)
def test_only_a_text_over_a_limit_is_cut(text: str, limits: OutputSettings) -> None:
    """The sizes of the original decide, and the statistics tell them."""
    result = truncate(text, limits)
    lines = len(text.removesuffix("\n").split("\n")) if text else 0
    size = len(text.encode())
    assert result.truncated == (lines > limits.max_lines or size > limits.max_bytes)
    assert (result.original_lines, result.original_bytes) == (lines, size)
    assert result.kept_lines <= lines


def test_head_keeps_the_first_lines() -> None:
    """The mark is the last line."""
    assert preview_of(LINES, 4, "head") == [
        "1", "2", "3", "[... 97 lines, 286 bytes left out ...]",
    ]  # fmt: skip


def test_tail_keeps_the_last_lines() -> None:
    """The mark is the first line."""
    assert preview_of(LINES + "\n", 3, "tail") == [
        "[... 98 lines, 286 bytes left out ...]",
        "99",
        "100",
    ]


def test_head_tail_keeps_both_ends() -> None:
    """The mark stands in between, and an odd line goes to the start."""
    preview = preview_of(LINES, 4, "head_tail")
    assert (preview[:2], preview[3:]) == (["1", "2"], ["100"])
    assert preview[2].startswith("[... 97 lines, ")


def test_two_lines_leave_no_room_for_both_ends() -> None:
    """Then the start is shown, and the statistics say so."""
    result = truncate(LINES, OutputSettings(max_lines=2, direction="head_tail"))
    assert result.preview.startswith("1\n[... 99 lines")
    assert result.direction == "head"


def test_a_single_line_is_shared_with_the_mark() -> None:
    """The limit of one line holds too."""
    assert preview_of(LINES, 1, "head") == ["1 [... 99 lines, 290 bytes left out ...]"]


def test_both_ends_of_one_line_count_as_one_line() -> None:
    """A cut inside of a line leaves out bytes and no line."""
    result = truncate("x" * 1000, OutputSettings(max_bytes=300, direction="head_tail"))
    assert result.kept_lines == 1
    assert " lines" not in result.preview


@pytest.mark.parametrize("direction", ["head", "tail", "head_tail"])
def test_a_line_of_10_mb_is_cut_at_once(direction: Direction) -> None:
    """The time does not grow with how much is left out, but for reading it once."""
    text = "漢" * 3_500_000
    preview = truncate(text, OutputSettings(direction=direction)).preview
    assert effort(lambda: truncate(text, OutputSettings(direction=direction))) < 100
    assert 51_000 < len(preview.encode()) <= 51_200


def test_a_lone_surrogate_does_not_break_it() -> None:
    """What cannot be encoded is replaced in what is shown."""
    preview = truncate("\ud800" * 500, OutputSettings(max_bytes=256)).preview
    assert preview.startswith("???")


@pytest.mark.parametrize(
    ("query", "text", "found"),
    [
        ("Zebra?", "a long way to the zebra", "zebra"),
        ("the zebra of the zoo", "the way to a zebra", "zebra"),
        ("斑马在哪里", "他们说斑马", "斑马"),
        ("москва", "мы были в Москве", "Москве"),
        ("nothing of it", "a long way", ""),
    ],
    ids=["folded", "the longest", "Chinese", "another form", "none"],
)
def test_the_longest_word_is_shown(query: str, text: str, found: str) -> None:
    """As it was asked for, else in another form; the beginning where there is none."""
    assert place_of(query, text) == text.index(found)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("just as long as it may be", "just as long as it may be"),
        ("it said: no such token was given", "…no such token was given"),
        ("the Traceback\nno such token was given", "…no such token was given"),
        ("x" * 40 + " end", "…" + "x" * 20 + " end"),
    ],
    ids=["whole", "words", "lines", "a long word"],
)
def test_a_long_text_is_cut_between_words(text: str, end: str) -> None:
    """With a mark; inside of a word only where much would go with it."""
    assert end_of(text, 25) == end


@given(st.text("a \n", max_size=60), st.integers(5, 50))
def test_an_end_of_a_text_is_no_longer_than_it_may_be(text: str, most_chars: int) -> None:
    """What is shown stands in it."""
    cut = end_of(text, most_chars)
    assert len(cut) <= most_chars
    assert text.endswith(cut.removeprefix("…"))


class TestObservationTruncator:
    """For programs of their own: what is cut lies in a file."""

    def test_a_short_output_needs_no_file(self, tmp_path: Path) -> None:
        """Nor a folder."""
        found = ObservationTruncator(output_dir=tmp_path / "out").truncate("ls", "a\nb")
        assert (found["truncated"], found["preview"]) == (False, "a\nb")
        assert found["full_output_path"] is None
        assert (found["stats"]["original_lines"], found["stats"]["original_bytes"]) == (2, 3)
        assert not (tmp_path / "out").exists()

    def test_what_is_cut_is_kept_as_it_was(self, tmp_path: Path) -> None:
        """With its tool and its metadata, for the owner alone; half a character as well."""
        truncator = ObservationTruncator(max_lines=3, output_dir=tmp_path / "out")
        output = LINES + "\ud800"
        found = truncator.truncate("../evil name", output, {"exit": 1})
        path = Path(str(found["full_output_path"]))
        assert path.parent == tmp_path / "out"
        assert path.name.startswith("___evil_name-")
        told = {"tool": "../evil name", "output": output, "metadata": {"exit": 1}}
        assert json.loads(path.read_text()) == told
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert found["preview"].startswith("1\n2\n[...")
        assert found["stats"]["kept_lines"] == 2

    def test_the_same_output_again_is_the_same_file(self, tmp_path: Path) -> None:
        """Retries do not fill the disk."""
        truncator = ObservationTruncator(max_lines=3, output_dir=tmp_path)
        paths = {truncator.truncate("cat", LINES)["full_output_path"] for _ in range(3)}
        assert len(paths) == len(list(tmp_path.iterdir())) == 1

    @pytest.mark.parametrize("wrong", [{"max_lines": 0}, {"truncate_direction": "middle"}])
    def test_limits_are_checked(self, wrong: dict[str, int], tmp_path: Path) -> None:
        """When the truncator is made."""
        with pytest.raises(ValueError, match=r"max_lines|direction"):
            ObservationTruncator(output_dir=tmp_path, **wrong)  # type: ignore[arg-type]
