"""Listeners hear events of the log, by name, whatever of them is written."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from agent import spans
from agent.safety.redaction import Redactor
from gateway.logging.setup import change_logging, configure_logging
from gateway.logging.taps import EVERYTHING, TAPS, Taps
from gateway.settings.loading import load_settings
from gateway.settings.tree import LoggingSettings

log = structlog.get_logger()


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[io.StringIO]:
    """Log warnings and errors into memory."""
    written = io.StringIO()
    settings = LoggingSettings(level="warning", file=False)
    undo = configure_logging(settings, tmp_path, Redactor(()), written)
    yield written
    undo()


def test_an_event_is_heard_that_is_not_written(stream: io.StringIO) -> None:
    """`logging.level` is about lines: metrics count what is below it, too."""
    heard: list[Mapping[str, Any]] = []
    end = TAPS.listen(["turn_finished"], heard.append)
    with structlog.contextvars.bound_contextvars(conversation=7):
        log.info("turn_finished", outcome="final_text")
        log.warning("turn_failed")
    end()
    log.info("turn_finished")
    assert [each["outcome"] for each in heard] == ["final_text"]
    assert (heard[0]["conversation"], heard[0]["level"]) == (7, "info")
    assert "turn_finished" not in stream.getvalue()
    assert "turn_failed" in stream.getvalue()


def test_whoever_listens_to_everything_hears_each_event_once() -> None:
    """A name that is given twice counts once."""
    taps, heard = Taps(), []
    end = taps.listen([EVERYTHING, EVERYTHING], lambda event: heard.append(event["event"]))
    taps.tell({"event": "a_b"})
    taps.tell({"event": "c_d"})
    end()
    taps.tell({"event": "e_f"})
    assert heard == ["a_b", "c_d"]


def test_a_changed_level_holds_for_lines_alone(stream: io.StringIO, tmp_path: Path) -> None:
    """Listeners hear the same before and after a reload."""
    heard: list[str] = []
    end = TAPS.listen(["a_thing_happened"], lambda event: heard.append(event["level"]))
    for level in ("debug", "error"):
        overrides = {"home": tmp_path, "logging.level": level}
        change_logging(load_settings(environ={}, overrides=overrides).settings)
        log.info("a_thing_happened", at=level)
    log.debug("a_thing_happened", at="below")
    end()
    assert heard == ["info", "info"]
    assert [line for line in stream.getvalue().splitlines() if "a_thing" in line] != []
    assert '"at":"debug"' in stream.getvalue()
    assert '"at":"error"' not in stream.getvalue()


def test_a_line_names_its_span_where_a_collector_has_it(stream: io.StringIO) -> None:
    """Beside the trace, which is always there."""

    class Exporting:
        seed, exports = b"", True

        def ended(self, span: spans.Span) -> None:
            """Forget it."""

    token = spans.RECORDER.set(Exporting())
    try:
        with spans.span("turn") as here:
            log.warning("a_thing_failed")
        log.warning("another_thing_failed")
    finally:
        spans.RECORDER.reset(token)
    inside, outside = stream.getvalue().splitlines()
    assert f'"span":"{here.id:016x}"' in inside
    assert "span" not in outside
