"""The logging pipeline: form of the lines, redaction, libraries, unhandled exceptions, rotation."""

import asyncio
import gc
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from agent.safety.redaction import MASK, Redactor, printable
from gateway.errors import SettingsError
from gateway.logging.setup import (
    LINES_PER_S,
    MOST_ADDRESSES,
    REFUSALS,
    REFUSALS_PER_MIN,
    TROUBLES_PER_S,
    LogFile,
    LogOutput,
    configure_logging,
    log_path,
    predecessors,
)
from gateway.settings.tree import LoggingSettings

BOT_TOKEN = "123456789:AAabcdefghijklmnopqrstuvwxyz0123456"
SECRETS = ('quo"ted\\sécret', "hunter22")
log = structlog.get_logger()


def fail(text: str) -> None:
    """Raise an error."""
    raise LookupError(text)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    @override
    def isatty(self) -> bool:
        return True


class Lines:
    """Configures logging into memory and reads the lines back."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.now = 0.0
        self.stream: io.StringIO = io.StringIO()
        self._closers: list[Callable[[], None]] = []

    def configure(self, stream: io.StringIO | None = None, **settings: Any) -> None:
        self.stream = stream or self.stream
        chosen = LoggingSettings(**{"file": False, **settings})
        close = configure_logging(
            chosen, self.home, Redactor(SECRETS), self.stream, lambda: self.now
        )
        self._closers.append(close)

    def close(self) -> None:
        while self._closers:
            self._closers.pop()()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    """Logging that is put back after the test."""
    lines = Lines(tmp_path)
    yield lines
    lines.close()


class TestLines:
    def test_a_line_is_json_with_time_level_and_name_first(self, lines: Lines) -> None:
        """The fields that every reader needs lead the line."""
        lines.configure()
        log.info("turn_finished", tokens=5)
        (record,) = lines.records
        assert list(record) == ["timestamp", "level", "event", "tokens"]
        assert (record["level"], record["event"], record["tokens"]) == ("info", "turn_finished", 5)
        assert record["timestamp"].endswith("Z")

    def test_bound_ids_are_in_every_line(self, lines: Lines) -> None:
        """What a turn binds once goes with all its events."""
        lines.configure()
        with structlog.contextvars.bound_contextvars(conversation=7):
            log.info("tool_started")
        log.info("tool_started")
        assert [record.get("conversation") for record in lines.records] == [7, None]

    def test_events_below_the_level_are_dropped(self, lines: Lines) -> None:
        """Level warning keeps warnings and errors."""
        lines.configure(level="warning")
        for method in (log.debug, log.info, log.warning, log.error):
            method("thing_happened")
        assert [record["level"] for record in lines.records] == ["warning", "error"]

    def test_an_exception_is_one_readable_field(self, lines: Lines) -> None:
        """The traceback is text in the field `exception`."""
        lines.configure()
        try:
            fail("gone")
        except LookupError:
            log.exception("send_failed")
        (record,) = lines.records
        assert record["level"] == "error"
        assert record["exception"].startswith("Traceback")
        assert record["exception"].endswith("LookupError: gone")

    @pytest.mark.parametrize("value", ["\ud800", 2**80, {1: {2}}, object(), b"x", [[1]]])
    def test_any_value_makes_a_line(self, lines: Lines, value: Any) -> None:
        """A log call never raises because of what it is given."""
        lines.configure()
        log.info("thing_happened", value=value)
        assert lines.records[0]["event"] == "thing_happened"

    def test_a_value_that_holds_itself_makes_a_line(self, lines: Lines) -> None:
        """A loop is cut, not followed."""
        lines.configure()
        loop: list[Any] = []
        loop.append(loop)
        log.info("thing_happened", value=loop)
        assert lines.records[0]["event"] == "thing_happened"

    def test_a_value_whose_repr_fails_makes_a_line(self, lines: Lines) -> None:
        """Its class is named instead."""

        class Broken:
            @override
            def __repr__(self) -> str:
                raise RuntimeError

        lines.configure()
        log.info("thing_happened", value=Broken())
        assert "Broken instance" in lines.records[0]["value"]

    def test_a_terminal_gets_readable_lines(self, lines: Lines) -> None:
        """Format auto chooses the console on a terminal."""
        lines.configure(Terminal())
        log.info("turn_finished", tokens=5)
        shown = lines.stream.getvalue()
        assert "turn_finished" in shown
        assert "\x1b[" in shown
        assert not shown.startswith("{")

    def test_the_format_can_be_forced(self, lines: Lines) -> None:
        """Console into a pipe has no colours; json on a terminal is json."""
        lines.configure(format="console")
        log.info("turn_finished")
        assert "\x1b[" not in lines.stream.getvalue()
        lines.configure(Terminal(), format="json")
        log.info("turn_finished")
        assert lines.records[0]["event"] == "turn_finished"

    def test_a_terminal_never_gets_control_characters_of_a_value(self, lines: Lines) -> None:
        """A sender's name must not repaint the operator's screen."""
        lines.configure(format="console")
        try:
            fail("\x1b[2J")
        except LookupError:
            log.exception("turn_failed", sender="\x1b[2J")
        assert "\x1b" not in lines.stream.getvalue()
        assert "sender='\\x1b[2J'" in lines.stream.getvalue()
        assert "LookupError: \\x1b[2J" in lines.stream.getvalue()

    def test_closing_puts_everything_back(self, lines: Lines) -> None:
        """Handlers, hooks and structlog's configuration are as before."""

        def state() -> tuple[Any, ...]:
            root = logging.getLogger()
            return root.handlers, root.level, sys.excepthook, threading.excepthook

        before, configured = state(), structlog.get_config()
        lines.configure()
        assert state() != before
        lines.close()
        assert state() == before
        assert structlog.get_config() == configured


class TestRedaction:
    @pytest.mark.parametrize(
        "secret",
        [
            *SECRETS,
            BOT_TOKEN,
            "sk-ant-api03-abcdefghijklmnop",
            "sk-proj-abcdefghijklmnop",
            "xoxb-123456789012-abcdef",
            "xapp-1-A0123456789-abc",
        ],
    )
    def test_secrets_are_masked_wherever_they_stand(self, lines: Lines, secret: str) -> None:
        """In plain and nested values, keys, objects and tracebacks."""
        lines.configure()
        try:
            fail(f"at https://host/{secret}/send")
        except LookupError as exc:
            log.exception("send_failed", a=secret, b={"c": [f"\n{secret}"]}, d={secret: 1}, e=exc)
        text = lines.stream.getvalue()
        assert secret not in text
        assert orjson.dumps(secret)[1:-1].decode() not in text
        assert text.count(MASK) == 5

    def test_authorization_and_urls_with_passwords_are_masked(self, lines: Lines) -> None:
        """Only the credential goes, the rest stays readable."""
        lines.configure()
        log.info("thing_happened", header="Bearer abcdefgh123", url="postgresql://me:pw@db/x")
        (record,) = lines.records
        assert record["header"] == f"Bearer {MASK}"
        assert record["url"] == f"postgresql://{MASK}@db/x"

    @pytest.mark.parametrize(
        "text", ["task-turn_finished_something", "12:30", "telegram:default:123456789", "a@b.org"]
    )
    def test_ordinary_text_is_left_alone(self, text: str) -> None:
        """Names and keys that only resemble a credential stay."""
        assert Redactor().text(text) == text

    def test_the_token_in_a_bot_api_address_is_masked(self) -> None:
        """There it follows the letters "bot" without a gap."""
        url = f"https://api.telegram.org/bot{BOT_TOKEN}/getMe"
        assert Redactor().text(url) == f"https://api.telegram.org/bot{MASK}/getMe"

    def test_a_secret_that_contains_another_goes_as_a_whole(self) -> None:
        """No rest of the longer one remains."""
        assert Redactor(["abcd", "abcdefgh"]).text("-abcdefgh-") == f"-{MASK}-"

    def test_time_and_level_are_never_masked(self, lines: Lines) -> None:
        """A secret that equals a level does not break the line."""
        lines.configure(level="debug")
        with structlog.contextvars.bound_contextvars(token="hunter22"):
            log.debug("thing_happened")
        assert lines.records[0]["level"] == "debug"

    @given(st.text(min_size=4), st.text(), st.text())
    def test_the_quick_check_misses_no_secret(self, secret: str, before: str, after: str) -> None:
        """Whatever a secret is made of, its JSON form is suspected."""
        try:
            line = orjson.dumps({"a": before + secret + after}).decode()
            redactor = Redactor([secret])
        except (TypeError, UnicodeEncodeError):
            return
        assert redactor.suspects(line)

    def test_control_characters_are_spelled_out(self) -> None:
        """All but newline and tab."""
        assert printable("a\x1b[1m\r\n\tb\x9b") == "a\\x1b[1m\\x0d\n\tb\\x9b"


class TestLibraries:
    def test_their_records_come_as_one_event(self, lines: Lines) -> None:
        """Logger and message are fields; secrets are masked there too."""
        lines.configure()
        logging.getLogger("somelib").info("using %s", "hunter22")
        (record,) = lines.records
        assert (record["event"], record["level"]) == ("library_logged", "info")
        assert (record["logger"], record["message"]) == ("somelib", f"using {MASK}")

    def test_their_exceptions_are_rendered(self, lines: Lines) -> None:
        """exc_info of a record becomes the field `exception`."""
        lines.configure()
        try:
            fail("gone")
        except LookupError:
            logging.getLogger("somelib").exception("failed")
        assert lines.records[0]["exception"].endswith("LookupError: gone")

    @pytest.mark.parametrize("name", ["httpx", "httpcore.http11", "telegram.ext", "aiohttp.access"])
    def test_talkative_ones_start_at_warning(self, lines: Lines, name: str) -> None:
        """They log every request, httpx with the bot token in it."""
        lines.configure(level="debug")
        logging.getLogger(name).info("request")
        logging.getLogger(name).warning("trouble")
        assert [record["message"] for record in lines.records] == ["trouble"]

    @pytest.mark.parametrize(("level", "expected"), [("debug", ["debug"]), ("info", [])])
    def test_migrations_are_for_debugging(
        self, lines: Lines, level: str, expected: list[str]
    ) -> None:
        """Alembic's INFO is our debug."""
        lines.configure(level=level)
        logging.getLogger("alembic.runtime.migration").info("Running upgrade")
        assert [record["level"] for record in lines.records] == expected

    @pytest.mark.parametrize(("number", "level"), [(35, "warning"), (50, "error"), (25, "info")])
    def test_foreign_levels_become_ours(self, lines: Lines, number: int, level: str) -> None:
        """There are four levels, whatever a library invents."""
        lines.configure()
        logging.getLogger("somelib").log(number, "x")
        assert lines.records[0]["level"] == level

    def test_a_record_with_wrong_arguments_is_still_logged(self, lines: Lines) -> None:
        """A library's mistake does not hide what it wanted to say."""
        lines.configure()
        logging.getLogger("somelib").warning("%d items", "many")
        assert lines.records[0]["message"] == "%d items ('many',)"


class TestUnhandled:
    def test_an_exception_nobody_caught_is_logged(self, lines: Lines) -> None:
        """sys.excepthook writes it into the log."""
        lines.configure()
        error = LookupError("gone")
        sys.excepthook(LookupError, error, None)
        (record,) = lines.records
        assert (record["event"], record["level"]) == ("exception_unhandled", "error")
        assert record["exception"].endswith("LookupError: gone")

    def test_an_interrupt_is_not_an_error(
        self, lines: Lines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C goes to the hook that was there before."""
        seen: list[type[BaseException]] = []
        monkeypatch.setattr(sys, "excepthook", lambda kind, *_: seen.append(kind))
        lines.configure()
        sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert (seen, lines.records) == ([KeyboardInterrupt], [])

    def test_one_in_a_thread_names_the_thread(
        self, lines: Lines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A dying thread is not silent."""
        # pytest watches threads itself and would call this test failed.
        monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
        lines.configure()
        thread = threading.Thread(target=[].pop, name="sqlite-writer")
        thread.start()
        thread.join()
        (record,) = lines.records
        assert (record["event"], record["thread"]) == ("exception_unhandled", "sqlite-writer")
        assert "IndexError" in record["exception"]

    @pytest.mark.thorough
    def test_one_in_a_forgotten_task_is_logged(self, lines: Lines) -> None:
        """Its report comes through asyncio's own logger."""
        # What other tests have forgotten is reported before.
        gc.collect()
        lines.configure()

        async def forget() -> None:
            task = asyncio.ensure_future(asyncio.to_thread(fail, "gone"))
            await asyncio.wait([task])

        with asyncio.Runner() as runner:
            runner.run(forget())
            gc.collect()
        (record,) = lines.records
        assert (record["logger"], record["level"]) == ("asyncio", "error")
        assert record["exception"].endswith("LookupError: gone")


class TestFile:
    def test_null_means_a_file_in_the_home(self, lines: Lines) -> None:
        """The file has the same JSON lines as stdout, and is nobody else's."""
        lines.configure(file=None)
        log.info("turn_finished", tokens=5)
        path = lines.home / "logs" / "parley.jsonl"
        assert path.read_text() == lines.stream.getvalue()
        assert path.stat().st_mode & 0o077 == 0

    def test_the_file_is_json_also_beside_a_console(self, lines: Lines) -> None:
        """A terminal does not change what is kept."""
        lines.configure(Terminal(), file=None)
        log.info("turn_finished")
        line = (lines.home / "logs" / "parley.jsonl").read_bytes()
        assert orjson.loads(line)["event"] == "turn_finished"

    @pytest.mark.parametrize(
        ("file", "expected"),
        [(False, None), ("x.log", Path("/h/x.log")), ("/y/x.log", Path("/y/x.log"))],
    )
    def test_its_path_may_be_set(self, file: Any, expected: Path | None) -> None:
        """False is no file, a relative path starts in the home."""
        assert log_path(LoggingSettings(file=file), Path("/h")) == expected

    def test_a_path_that_cannot_be_written_is_a_settings_error(self, lines: Lines) -> None:
        """The start fails with the key's name instead of logging nowhere."""
        (lines.home / "logs").write_text("in the way")
        with pytest.raises(SettingsError, match=r"logging\.file: cannot write"):
            lines.configure(file=None)

    def test_a_full_file_is_rotated(self, tmp_path: Path) -> None:
        """Lines stay whole, five old files are kept, the newest has number 1."""
        path = tmp_path / "a.jsonl"
        file = LogFile(path, max_bytes=10)
        for number in range(16):
            file.write(b"%04d\n" % number)
        file.close()
        assert path.read_bytes() == b"0014\n0015\n"
        assert [old.name for old in predecessors(path)] == [f"a.jsonl.{n}" for n in range(1, 6)]
        assert (tmp_path / "a.jsonl.5").read_bytes() == b"0004\n0005\n"

    def test_a_restart_goes_on_in_the_same_file(self, tmp_path: Path) -> None:
        """The size that is there counts towards the rotation."""
        for text in (b"12345678\n", b"next\n"):
            file = LogFile(tmp_path / "a.jsonl", max_bytes=10)
            file.write(text)
            file.close()
        assert (tmp_path / "a.jsonl.1").read_bytes() == b"12345678\n"

    @pytest.mark.parametrize(
        "happens",
        ["moved", "moved and made", "removed", "copied and cut", "folder moved", "link moved on"],
    )
    def test_a_file_that_is_moved_from_outside_is_opened_anew(
        self, tmp_path: Path, happens: str
    ) -> None:
        """As logrotate does it, with or without `create` and `copytruncate`; no line is lost."""
        path, old = tmp_path / "logs" / "a.jsonl", tmp_path / "old"
        if happens == "link moved on":
            path.parent.mkdir()
            path.symlink_to(tmp_path / "first")
        file = LogFile(path, max_bytes=12)
        file.write(b"before\n")
        match happens:
            case "removed":
                path.unlink()
            case "copied and cut":
                old.write_bytes(path.read_bytes())
                os.truncate(path, 0)
            case "folder moved":
                path.parent.rename(tmp_path / "moved")
                old = tmp_path / "moved" / "a.jsonl"
            case "link moved on":
                path.unlink()
                path.symlink_to(tmp_path / "second")
                old = tmp_path / "first"
            case _:
                path.rename(old)
                if happens == "moved and made":
                    path.touch()
        file.write(b"after\n")
        file.write(b"more\n")
        file.close()
        assert path.read_bytes() == b"after\nmore\n"
        assert predecessors(path) == []
        assert happens == "removed" or old.read_bytes() == b"before\n"

    def test_where_no_file_can_be_opened_lines_go_on_in_the_old_one(self, tmp_path: Path) -> None:
        """Until one can."""
        path, old = tmp_path / "logs" / "a.jsonl", tmp_path / "old"
        file = LogFile(path)
        path.parent.rename(old)
        path.parent.write_text("in the way")
        file.write(b"one\n")
        path.parent.unlink()
        file.write(b"two\n")
        file.close()
        assert ((old / "a.jsonl").read_bytes(), path.read_bytes()) == (b"one\n", b"two\n")

    def test_a_line_after_a_torn_one_starts_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that filled up in mid-line spoils that line only."""
        file = LogFile(tmp_path / "a.jsonl")
        with monkeypatch.context() as patch:
            whole_write = os.write
            patch.setattr(os, "write", lambda fd, data: whole_write(fd, data[:3]))
            with pytest.raises(OSError, match="only a part"):
                file.write(b"first\n")
        file.write(b"second\n")
        file.close()
        assert (tmp_path / "a.jsonl").read_bytes() == b"fir\nsecond\n"

    def test_an_output_counts_what_it_lost_and_tells_once(self) -> None:
        """The number comes with the first line that is taken again."""
        answers: list[Exception | None] = [OSError("full"), ValueError("closed"), None, None]

        def write(_: bytes) -> None:
            if error := answers.pop(0):
                raise error

        output = LogOutput("file", write)
        assert [output.take(b"x") for _ in range(4)] == [0, 0, 2, 0]

    def test_a_rotation_that_always_fails_moves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen: without descriptors each line moved the files on, until all were empty."""
        path = tmp_path / "a.jsonl"
        file = LogFile(path, max_bytes=10)
        for number in range(12):
            file.write(b"%04d\n" % number)
        monkeypatch.setattr("gateway.logging.setup.os.open", no_space)
        for number in range(12, 100):
            file.write(b"%04d\n" % number)
        file.close()
        assert lines_in(path) == [b"%04d" % number for number in range(100)]

    @pytest.mark.parametrize("broken", range(6))
    def test_a_rotation_that_breaks_off_costs_no_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
    ) -> None:
        """Wherever it does, and however often: the oldest file goes once, when it succeeds."""
        path = tmp_path / "a.jsonl"
        file = LogFile(path, max_bytes=10)
        for number in range(12):
            file.write(b"%04d\n" % number)
        rename, calls = Path.replace, count()
        with monkeypatch.context() as patch:
            patch.setattr(
                Path,
                "replace",
                lambda old, new: no_space() if next(calls) >= broken else rename(old, new),
            )
            for number in range(12, 60):
                file.write(b"%04d\n" % number)
        file.write(b"0060\n")
        file.close()
        assert lines_in(path) == [b"%04d" % number for number in range(2, 61)]

    def test_lost_lines_are_an_event(self, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full disk stops neither the program nor stdout, and is told when it is over."""
        lines.configure(file=None)
        with monkeypatch.context() as patch:
            patch.setattr(LogFile, "_rotate", no_space)
            patch.setattr("gateway.logging.setup.os.write", no_space)
            log.info("first_happened")
        log.info("second_happened")
        assert [(r["event"], r.get("output"), r.get("lines")) for r in lines.records] == [
            ("first_happened", None, None),
            ("second_happened", None, None),
            ("log_lines_lost", "file", 1),
        ]


class TestFloods:
    def test_an_event_without_end_is_written_some_times_a_second(self, lines: Lines) -> None:
        """What was left out is told when the second is over, with of how many conversations."""
        lines.configure()
        for number in range(5_000):
            log.error("turn_failed", conversation=number % 300)
        log.info("turn_finished", conversation=7)
        lines.now = 1.5
        with structlog.contextvars.bound_contextvars(conversation=8):
            log.error("turn_failed")
        events = [record["event"] for record in lines.records]
        assert events == ["turn_failed"] * TROUBLES_PER_S + [
            "turn_finished",
            "log_lines_left_out",
            "turn_failed",
        ]
        told = lines.records[-2]
        assert (told["of"], told["lines"], told["conversations"]) == ("turn_failed", 4_980, 300)
        assert "conversation" not in told

    def test_what_messages_leave_is_written_a_thousand_times_a_second(self, lines: Lines) -> None:
        """The lines of a busy second are a record, and no flood."""
        lines.configure()
        for number in range(LINES_PER_S):
            log.info("turn_finished", conversation=number)
        assert len(lines.records) == LINES_PER_S

    def test_libraries_are_counted_one_by_one(self, lines: Lines) -> None:
        """One that floods leaves room for the others."""
        lines.configure()
        for _ in range(100):
            logging.getLogger("noisy").error("again")
        logging.getLogger("calm").error("once")
        assert [record["logger"] for record in lines.records].count("noisy") == TROUBLES_PER_S
        assert lines.records[-1]["logger"] == "calm"

    def test_what_is_told_below_a_warning_leaves_room_for_errors(self, lines: Lines) -> None:
        """A library has one event for all that it says."""
        lines.configure()
        for _ in range(TROUBLES_PER_S):
            logging.getLogger("noisy").info("fine")
        logging.getLogger("noisy").error("broken")
        assert lines.records[-1]["message"] == "broken"

    @pytest.mark.parametrize("name", sorted(REFUSALS))
    def test_refusals_of_an_address_are_written_five_times_a_minute(
        self, lines: Lines, name: str
    ) -> None:
        """Then counted; lines for another address are still written."""
        lines.configure()
        for _ in range(2_000):
            log.warning(name, address="2001:db8::1")
            log.warning(name, address="2001:db8::ffff:2")
        log.warning(name, address="192.0.2.1")
        lines.now = 59.9
        log.warning(name, address="2001:db8::1")
        assert [each["event"] for each in lines.records] == [name] * 6
        lines.now = 60.0
        log.info("turn_finished")
        told = lines.records[-2]
        assert (
            told.items()
            >= {
                "event": "refusals_counted",
                "level": "warning",
                "of": name,
                "address": "2001:db8::",
                "count": 3_996,
            }.items()
        )

    def test_many_addresses_take_neither_memory_nor_the_log(self, lines: Lines) -> None:
        """A hundred are counted separately; another event still has lines."""
        lines.configure()
        for number in range(50_000):
            log.info("web_request_refused", address=f"2001:db8:{number:x}::1")
        sink = structlog.get_config()["logger_factory"]()
        assert len(sink.refusals) == MOST_ADDRESSES + 1
        assert len(lines.records) == MOST_ADDRESSES + REFUSALS_PER_MIN
        log.warning("telegram_webhook_denied", address="192.0.2.1")
        assert lines.records[-1]["event"] == "telegram_webhook_denied"
        lines.close()
        counted = [each for each in lines.records if each["event"] == "refusals_counted"]
        assert [(each["address"], each["count"]) for each in counted] == [
            ("others", 50_000 - MOST_ADDRESSES - REFUSALS_PER_MIN)
        ]

    def test_each_address_of_a_flood_is_counted(self, lines: Lines) -> None:
        """With any number of counts at once."""
        lines.configure()
        for number in range(MOST_ADDRESSES):
            for _ in range(REFUSALS_PER_MIN + 1):
                log.warning("connection_displaced", address=f"192.0.2.{number}")
        lines.close()
        counted = [each["count"] for each in lines.records if each["event"] == "refusals_counted"]
        assert counted == [1] * MOST_ADDRESSES

    def test_a_warning_comes_through_refusals_that_are_none(self, lines: Lines) -> None:
        """Of a wrong setting, for example, during an attack."""
        lines.configure()
        for _ in range(100):
            log.info("web_request_refused", address="192.0.2.1", code="sign_in_needed")
        log.warning("web_request_refused", address="192.0.2.1", code="host_refused")
        assert lines.records[-1]["code"] == "host_refused"

    def test_every_event_of_a_refused_request_is_known(self) -> None:
        """As docs/logging.md lists them: refused, with the requester's address."""
        page = (Path(__file__).parents[3] / "docs/logging.md").read_text("utf-8")
        rows = re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", page, re.MULTILINE)
        refused = re.compile(r"_(refused|denied|displaced|too_\w+)$")
        named = {name for name, fields in rows if refused.search(name) and "`address`" in fields}
        assert len(named) == 8
        assert named <= REFUSALS

    def test_the_end_tells_what_was_left_out_last(self, lines: Lines) -> None:
        """Nothing is lost that no further line follows."""
        lines.configure()
        for _ in range(TROUBLES_PER_S + 3):
            log.warning("send_delayed")
        lines.close()
        assert (lines.records[-1]["event"], lines.records[-1]["lines"]) == ("log_lines_left_out", 3)


def lines_in(path: Path) -> list[bytes]:
    """Return the lines of a log file and its predecessors, oldest first."""
    files = [*reversed(predecessors(path)), path]
    return [line for file in files if file.exists() for line in file.read_bytes().split()]


def no_space(*_: Any) -> int:
    """Fail as a full disk does."""
    raise OSError(28, "No space left on device")
