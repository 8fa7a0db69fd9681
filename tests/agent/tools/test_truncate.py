"""Truncation of tool results: limits, ends, marks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.settings import OutputSettings
from agent.tools.truncate import Direction, truncate
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
    assert result.stats.kept_bytes == shown < result.stats.original_bytes


@given(TEXTS, SETTINGS)
def test_only_a_text_over_a_limit_is_cut(text: str, limits: OutputSettings) -> None:
    """The sizes of the original decide, and the statistics tell them."""
    result = truncate(text, limits)
    lines = len(text.removesuffix("\n").split("\n")) if text else 0
    size = len(text.encode())
    assert result.truncated == (lines > limits.max_lines or size > limits.max_bytes)
    assert (result.stats.original_lines, result.stats.original_bytes) == (lines, size)
    assert result.stats.kept_lines <= lines


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
    assert result.stats.direction == "head"


def test_a_single_line_is_shared_with_the_mark() -> None:
    """The limit of one line holds too."""
    assert preview_of(LINES, 1, "head") == ["1 [... 99 lines, 290 bytes left out ...]"]


def test_both_ends_of_one_line_count_as_one_line() -> None:
    """A cut inside of a line leaves out bytes and no line."""
    result = truncate("x" * 1000, OutputSettings(max_bytes=300, direction="head_tail"))
    assert result.stats.kept_lines == 1
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
