"""`parley logs`: what is shown, in which form, and following over rotation."""

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
import typer
from rich.console import Console

from gateway.cli.logs import Choose, choosing, first_moment, known_level, view
from gateway.errors import NotFound
from gateway.logging.recent import LineFilter
from gateway.logging.setup import LogFile

ALL = choosing(LineFilter())


def line(event: str, level: str = "info", **fields: Any) -> bytes:
    """Return a log line."""
    record = {"timestamp": "2026-11-21T10:00:00Z", "level": level, "event": event, **fields}
    return orjson.dumps(record) + b"\n"


def shown(path: Path, chosen: Choose = ALL, **options: Any) -> list[str]:
    """Return the lines that a view prints on something that is no terminal."""
    out = io.StringIO()
    view(path, chosen, Console(file=out, width=20), **options)
    return out.getvalue().splitlines()


def events(lines: list[str]) -> list[str]:
    """Return the names of the events in printed lines."""
    return [text.split()[2] for text in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log file of a test lies."""
    return tmp_path / "parley.jsonl"


class TestForm:
    def test_a_record_is_one_line(self, path: Path) -> None:
        """Time, level, event, then the fields; never wrapped, quoted only where needed."""
        path.write_bytes(line("turn_finished", model="a-b", text="two words", tokens=5, none=None))
        assert shown(path) == [
            (
                "2026-11-21T10:00:00Z info    turn_finished "
                'model=a-b text="two words" tokens=5 none=null'
            )
        ]

    def test_a_traceback_follows_its_line(self, path: Path) -> None:
        """The exception is printed as it would look in a terminal."""
        path.write_bytes(line("send_failed", "error", exception="Traceback\n  LookupError: gone"))
        assert shown(path)[1:] == ["Traceback", "  LookupError: gone"]

    @pytest.mark.parametrize("text", ["not json", "5", '{"a": 1}', "{"])
    def test_other_lines_are_shown_as_they_are(self, path: Path, text: str) -> None:
        """What another program wrote into the file is not hidden."""
        path.write_text(text + "\n")
        assert shown(path) == [text]

    def test_control_characters_are_spelled_out(self, path: Path) -> None:
        """A stranger's text does not reach the terminal's controls, in no part of a line."""
        path.write_bytes(
            line("e\x1b[2J", "l\x1b[2J", value="\x9b2J", exception="\x1b[2J") + b"raw \x1b[2J\n"
        )
        text = "\n".join(shown(path))
        assert not set(text) & {"\x1b", "\x9b"}

    def test_a_terminal_gets_colours(self, path: Path) -> None:
        """Rich decides by the console."""
        path.write_bytes(line("turn_finished"))
        out = io.StringIO()
        view(
            path,
            ALL,
            Console(file=out, force_terminal=True, color_system="standard"),
        )
        assert "\x1b[" in out.getvalue()


class TestFilters:
    LINES = (
        line("turn_started", "debug", conversation=7, session="s-1", turn=3, trace="ab12cd34ef"),
        line("turn_finished", conversation=7, session_id="s-2", turn=30, trace="ab12ffffff"),
        line("send_failed", "error", conversation=8, session="s-1", chat="c9", reason="too fast"),
        b"not json\n",
    )

    @pytest.mark.parametrize(
        ("chosen", "expected"),
        [
            (LineFilter(place="s-1"), ["turn_started", "send_failed"]),
            (LineFilter(place="s-2"), ["turn_finished"]),
            (LineFilter(place="8"), ["send_failed"]),
            (LineFilter(place="7"), ["turn_started", "turn_finished"]),
            (LineFilter(event="turn_finished"), ["turn_finished"]),
            (LineFilter(event="turn_*"), ["turn_started", "turn_finished"]),
            (LineFilter(level="info"), ["turn_finished", "send_failed"]),
            (LineFilter(level="error"), ["send_failed"]),
            (LineFilter(place="s-1", level="error"), ["send_failed"]),
            (LineFilter(turn="3"), ["turn_started"]),
            (LineFilter(trace="ab12cd"), ["turn_started"]),
            (LineFilter(turn="3", trace="ab12ff"), []),
            (LineFilter(chat=("c9",)), ["send_failed"]),
            (LineFilter(chat=("c9", "7")), ["turn_started", "turn_finished", "send_failed"]),
            (LineFilter(since="2026-11-21T10:00:00.000001"), []),
            (LineFilter(since="2026-11-21T09:59:59.000000", event="send*"), ["send_failed"]),
        ],
    )
    def test_a_filter_chooses_lines(
        self, path: Path, chosen: LineFilter, expected: list[str]
    ) -> None:
        """All parts of a filter must fit."""
        path.write_bytes(b"".join(self.LINES))
        assert events(shown(path, choosing(chosen))) == expected

    def test_a_pattern_is_looked_for_in_what_is_printed(self, path: Path) -> None:
        """Beside the filter; a line that is not JSON is not shown then."""
        path.write_bytes(b"".join(self.LINES))
        fast = re.compile('reason="too f.st"')
        assert events(shown(path, choosing(LineFilter(), fast))) == ["send_failed"]
        assert shown(path, choosing(LineFilter(level="error"), re.compile("nowhere"))) == []


def test_an_unknown_level_is_told() -> None:
    """Instead of showing nothing."""
    with pytest.raises(NotFound, match="no level 'warn'; there are debug, info, warning, error"):
        known_level("warn")


class TestMoments:
    NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("90s", "2026-11-27T11:58:30.000000"),
            ("15m", "2026-11-27T11:45:00.000000"),
            ("2h", "2026-11-27T10:00:00.000000"),
            ("7d", "2026-11-20T12:00:00.000000"),
            ("2026-11-26", "2026-11-26T00:00:00.000000"),
            ("2026-11-26T06:30", "2026-11-26T06:30:00.000000"),
            ("2026-11-26T06:30+02:00", "2026-11-26T04:30:00.000000"),
        ],
    )
    def test_a_moment_is_that_of_the_log(self, text: str, expected: str) -> None:
        """Its timestamps are compared as texts."""
        assert first_moment(text, self.NOW) == expected

    @pytest.mark.parametrize("text", ["yesterday", "0s", "5 minutes", "2026-13-01"])
    def test_what_is_no_moment_is_told(self, text: str) -> None:
        """With both forms that are."""
        with pytest.raises(typer.BadParameter, match="15m"):
            first_moment(text, self.NOW)


def test_lines_come_as_they_are_stored(path: Path) -> None:
    """For programs: without what is no JSON, and without what a terminal would obey."""
    path.write_bytes(line("seen", text="\x9b2J") + b"not json\n" + line("seen_again"))
    out = io.StringIO()
    view(path, ALL, Console(file=out, width=20), json=True)
    first, second = out.getvalue().splitlines()
    assert orjson.loads(first)["text"] == "\x9b2J"
    assert "\x9b" not in first
    assert orjson.loads(second)["event"] == "seen_again"


class TestHistory:
    def write_rotated(self, path: Path, count: int) -> None:
        """Write one event per file, rotating after each."""
        file = LogFile(path, max_bytes=10)
        for number in range(count):
            file.write(line(f"event_{number}"))
        file.close()

    def test_rotated_files_come_first(self, path: Path) -> None:
        """The oldest line is at the top."""
        self.write_rotated(path, 3)
        assert events(shown(path)) == ["event_0", "event_1", "event_2"]

    @pytest.mark.parametrize(
        ("lines", "expected"), [(0, []), (1, ["event_2"]), (2, ["event_1", "event_2"])]
    )
    def test_only_the_newest_lines_are_shown(
        self, path: Path, lines: int, expected: list[str]
    ) -> None:
        """The number counts over all files."""
        self.write_rotated(path, 3)
        assert events(shown(path, lines=lines)) == expected

    def test_the_number_counts_matching_lines(self, path: Path) -> None:
        """Filtered lines do not use it up."""
        self.write_rotated(path, 3)
        assert events(shown(path, choosing(LineFilter(event="event_0")), lines=1)) == ["event_0"]

    def test_a_missing_file_is_told(self, path: Path) -> None:
        """With its path."""
        with pytest.raises(NotFound, match=r"cannot read the log .*parley\.jsonl.*No such file"):
            shown(path)


class TestFollow:
    def follow(self, path: Path, *steps: Callable[[], object], **options: Any) -> list[str]:
        """Follow a file; each time there is nothing new, take the next step, at the end Ctrl-C."""
        remaining = list(steps)

        def wait(_: float) -> None:
            if not remaining:
                raise KeyboardInterrupt
            remaining.pop(0)()

        with patch("gateway.cli.logs.time.sleep", wait):
            return shown(path, follow=True, **options)

    def append(self, path: Path, data: bytes) -> None:
        """Write to the end of the file, which need not be there."""
        with path.open("ab") as file:
            file.write(data)

    def test_new_lines_are_printed(self, path: Path) -> None:
        """After what was there, until interrupted."""
        path.write_bytes(line("first_seen"))
        found = self.follow(path, lambda: self.append(path, line("second_seen")))
        assert events(found) == ["first_seen", "second_seen"]

    def test_a_filter_holds_for_new_lines(self, path: Path) -> None:
        """As for the old ones."""
        path.touch()
        added = line("first_seen") + line("second_seen", "error")
        found = self.follow(
            path, lambda: self.append(path, added), chosen=choosing(LineFilter(level="error"))
        )
        assert events(found) == ["second_seen"]

    def test_half_a_line_waits_for_its_rest(self, path: Path) -> None:
        """Nothing is printed in pieces."""
        whole = line("first_seen")
        path.write_bytes(whole[:9])
        found = self.follow(
            path, lambda: self.append(path, whole[9:20]), lambda: self.append(path, whole[20:])
        )
        assert events(found) == ["first_seen"]

    def test_it_goes_on_after_a_rotation(self, path: Path) -> None:
        """The old file is read to its end, then the new one from its beginning."""
        path.write_bytes(line("first_seen"))

        def rotate() -> None:
            self.append(path, line("second_seen"))
            path.rename(f"{path}.1")
            self.append(path, line("third_seen"))

        found = self.follow(path, rotate, lambda: self.append(path, line("fourth_seen")))
        assert events(found) == ["first_seen", "second_seen", "third_seen", "fourth_seen"]

    def test_it_waits_for_the_new_file(self, path: Path) -> None:
        """Between the two steps of a rotation there is none."""
        path.write_bytes(line("first_seen"))
        found = self.follow(
            path,
            lambda: path.rename(f"{path}.1"),
            lambda: self.append(path, line("second_seen")),
        )
        assert events(found) == ["first_seen", "second_seen"]

    def test_it_starts_again_after_a_truncation(self, path: Path) -> None:
        """A file that was emptied is read from its beginning."""
        path.write_bytes(line("first_seen", filler="x" * 100))
        found = self.follow(path, lambda: path.write_bytes(line("second_seen")))
        assert events(found)[1:] == ["second_seen"]

    def test_a_rotation_before_the_history_is_read_doubles_nothing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file that was opened may have become a predecessor meanwhile."""
        path.write_bytes(line("first_seen"))
        opened = Path.open

        def rotate_after_opening(self: Path, *args: Any) -> Any:
            file = opened(self, *args)
            monkeypatch.undo()
            path.rename(f"{path}.1")
            path.write_bytes(line("second_seen"))
            return file

        monkeypatch.setattr(Path, "open", rotate_after_opening)
        assert events(shown(path)) == ["first_seen", "second_seen"]
