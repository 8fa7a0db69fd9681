"""What is logged is heard by listeners, kept in memory and found in the log file."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from agent import spans
from agent.safety.redaction import Redactor
from gateway.logging import recent
from gateway.logging.recent import EVERYTHING, TAPS, LineFilter, RecentLines, Taps, newest
from gateway.logging.setup import change_logging, configure_logging
from gateway.settings.loading import load_settings
from gateway.settings.tree import LoggingSettings


def line(event: str, level: str = "info", **fields: Any) -> bytes:
    """Return a line of the log."""
    shown = {"timestamp": "2026-11-27T10:00:00Z", "level": level, "event": event, **fields}
    return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)


def filled(*lines: bytes) -> RecentLines:
    """Return lines in memory."""
    kept = RecentLines()
    for each in lines:
        kept.add(each)
    return kept


def names(found: list[dict[str, Any]]) -> list[str]:
    """Return the events of lines."""
    return [each["event"] for each in found]


def test_what_came_since_is_returned_in_order() -> None:
    """By the number of the last line that was seen; numbers grow with each line."""
    kept = filled(line("a"), line("b"), line("c"))
    assert kept.count == 3
    assert [number for number, _ in kept.since(1)] == [2, 3]
    assert kept.since(3) == []
    assert kept.since(99) == []


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By lines and by bytes: the oldest go."""
    monkeypatch.setattr(recent, "MOST_LINES", 3)
    kept = filled(*(line(str(n)) for n in range(10)))
    assert [number for number, _ in kept.since(0)] == [8, 9, 10]
    monkeypatch.setattr(recent, "MOST_BYTES", 1)
    kept.add(line("x"))
    assert kept.since(0) == []
    assert kept.count == 11


LINES = (
    line("turn_finished", conversation=7, turn=3),
    line("model_retried", "warning", conversation=8, turn=4, reason="Überlast"),
    line("adapter_failed", "error", chat="7"),
    line("message_sent", "debug", conversation=77),
    b"no json\n",
    b"[1]\n",
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["turn_finished", "model_retried", "adapter_failed", "message_sent"]),
        ({"level": "warning"}, ["model_retried", "adapter_failed"]),
        ({"event": "turn_*"}, ["turn_finished"]),
        ({"event": "adapter_failed"}, ["adapter_failed"]),
        ({"place": "7"}, ["turn_finished", "adapter_failed"]),
        ({"turn": "4"}, ["model_retried"]),
        ({"text": "überLAST"}, ["model_retried"]),
        ({"text": "nowhere"}, []),
        ({"level": "error", "place": "8"}, []),
    ],
)
def test_lines_are_filtered(wanted: dict[str, str], found: list[str]) -> None:
    """By level, event, conversation or chat, turn and text; what is no line is passed over."""
    assert names(newest(filled(*LINES), (), LineFilter(**wanted), 10)) == found


def test_older_lines_come_from_the_file(tmp_path: Path) -> None:
    """Those of earlier processes, before those in memory, each once; the newest are kept."""
    log, before = tmp_path / "parley.jsonl", tmp_path / "parley.jsonl.1"
    here = [line(f"here{n}") for n in range(2)]
    before.write_bytes(line("older"))
    log.write_bytes(b"".join([line("old"), *here]))
    found = newest(filled(*here), (log, before), LineFilter(), 10)
    assert names(found) == ["older", "old", "here0", "here1"]
    assert names(newest(filled(*here), (log, before), LineFilter(), 3)) == names(found)[1:]
    missing = tmp_path / "none"
    assert names(newest(filled(*here), (missing,), LineFilter(), 10)) == ["here0", "here1"]


def test_only_the_end_of_a_long_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is cut in the middle is none."""
    log = tmp_path / "parley.jsonl"
    log.write_bytes(line("first") + line("last"))
    monkeypatch.setattr(recent, "SEARCHED_BYTES", len(line("last")) + 5)
    assert names(newest(RecentLines(), (log,), LineFilter(), 10)) == ["last"]


def test_lines_are_kept_redacted_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `logging.file` is false, too."""
    kept = RecentLines()
    monkeypatch.setattr("gateway.logging.setup.RECENT", kept)
    undo = configure_logging(LoggingSettings(file=False), tmp_path, Redactor(("hunter22",)))
    try:
        structlog.get_logger().info("key_seen", key="hunter22")
    finally:
        undo()
    [found] = newest(kept, (), LineFilter(event="key_seen"), 10)
    assert found["key"] != "hunter22"


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
