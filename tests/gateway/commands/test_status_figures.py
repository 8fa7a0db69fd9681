"""What is said at the start about what does not work as it may have been meant."""

from dataclasses import replace

from structlog.testing import capture_logs

from gateway.commands.status_figures import StatusFacts, start_warnings

MODEL = StatusFacts("small", 16_000, 8_000, "compressor", fixed_tokens=2_000)


def test_nothing_is_said_where_all_is_well() -> None:
    """The prompt leaves room, and no plugin is missing."""
    assert start_warnings((), MODEL) == ()


def test_a_missing_guard_is_said() -> None:
    """Since tools are refused without it."""
    [told] = start_warnings(("police",), MODEL)
    assert told.startswith("The plugin police could not be loaded")


def test_a_small_window_with_many_tools_is_said() -> None:
    """On the screen and in the log."""
    crowded = StatusFacts("small", 16_000, 8_000, "compressor", fixed_tokens=5_000)
    with capture_logs() as lines:
        [told] = start_warnings((), crowded)
    assert told.startswith("Prompt and tools: 5,000 of 8,000 tokens")
    assert [line["event"] for line in lines] == ["prompt_leaves_little_room"]


def test_tools_that_are_off_are_said() -> None:
    """If no wall works; `/status` says the same."""
    off = replace(MODEL, tools_off="terminal and the file tools are off: no wall works here")
    with capture_logs() as lines:
        assert start_warnings((), off) == (off.tools_off,)
    assert [line["event"] for line in lines] == ["tools_off"]
