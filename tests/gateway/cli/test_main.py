"""The `parley` command line: every command, its errors, and the process that `run` is."""

import asyncio
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
import yaml
from typer.main import get_command, get_group

from adapters.errors import SendRejected
from gateway.cli import main
from gateway.http.control import SOCKET
from gateway.logging import setup
from gateway.storage.schema import REVISION
from gateway.storage.sqlite_file import lock_database
from tests.support.command_line import Result, one_line
from tests.support.command_line import Run as Parley
from tests.support.gateway import running
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import Store, made_newer

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _logs_are_closed(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `parley run` opens here is closed."""
    closers, configure = [], setup.configure_logging
    monkeypatch.setattr(
        setup, "configure_logging", lambda *given: closers.append(configure(*given))
    )
    yield
    for close in closers:
        close()


def fill(home: Path, *texts: str, dead: bool = False) -> None:
    """Have conversations of one message each, the first of them with a dead letter if asked."""

    async def talk() -> None:
        adapter = RecordingAdapter()
        adapter.failures["c0"] = deque([SendRejected("bot was [/b]locked")] if dead else [])
        async with running(home, adapter=adapter) as chat:
            for n, text in enumerate(texts):
                await chat.say(text, f"c{n}")
                # Of a dead letter its chat is told.
                await chat.answers(1, f"c{n}")
            await chat.gateway.delivery.wait_idle()

    asyncio.run(talk())


def test_without_a_command_there_is_help(parley: Parley) -> None:
    """All commands are listed."""
    listed = parley("--help").out
    for name in ("run", "chat", "logs", "replay", "config", "db", "backup", "forget"):
        assert name in listed


def test_help_says_all_of_a_command_s_line(parley: Parley) -> None:
    """It goes on below, on a narrow screen too, of commands and of those in a group."""
    assert (
        "Erase a conversation permanently: transcript, queue, sessions, stored outputs, files."
        in (" ".join(parley("--help").out.split()))
    )
    told = " ".join(parley("sessions", "--help").out.split())
    assert "List the conversations, newest first, each with its active segment." in told


def test_config_show_masks_secrets(parley: Parley, tmp_path: Path) -> None:
    """Values, their origin, and no key."""
    (tmp_path / "parley.yaml").write_text("model: {provider: openai, api_key: sk-very-secret}\n")
    shown = parley("config", "show", "--json")
    assert "very-secret" not in shown.out
    assert json.loads(shown.out)
    assert "parley.yaml" in parley("config", "show").out


def test_a_bad_setting_is_one_line(parley: Parley, tmp_path: Path) -> None:
    """It names file, key and what is allowed."""
    (tmp_path / "parley.yaml").write_text("queue: {mode: chaotic}\n")
    for command in (["config", "show"], ["run"], ["sessions", "list"]):
        line = one_line(parley(*command))
        for word in ("parley.yaml", "queue.mode", "chaotic", "followup"):
            assert word in line


def test_another_settings_file(parley: Parley, tmp_path: Path) -> None:
    """`--config` names it, and it must exist."""
    other = tmp_path / "other.yaml"
    assert "other.yaml" in one_line(parley("--config", str(other), "config", "show"))
    other.write_text("queue: {max_pending: 7}\n")
    shown = parley("--config", str(other), "config", "show", "--json")
    assert shown.code == 0


@pytest.mark.usefixtures("sqlite_alone")
def test_the_database_is_made_and_checked(parley: Parley, tmp_path: Path) -> None:
    """Migrate and check agree."""
    assert "there is no database" in one_line(parley("db", "check"))
    assert parley("db", "migrate").out.startswith(f"schema revision {REVISION}")
    assert f"sound and has this version's schema (revision {REVISION})" in parley("db", "check").out
    with closing(sqlite3.connect(tmp_path / "parley.db")) as raw:
        raw.execute("DROP INDEX ix_turn_dead")
        raw.commit()
    checked = parley("db", "check")
    assert (checked.code, "ix_turn_dead" in checked.err) == (1, True)


@pytest.mark.thorough
def test_commands_that_take_long_let_others_go_first(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway may run on the same processor."""
    parley("db", "migrate")
    chosen: list[int] = []
    monkeypatch.setattr(os, "nice", chosen.append)
    for command in (("db", "check"), ("backup", str(tmp_path / "copy.db"))):
        assert parley(*command).code == 0
    assert chosen == [10, 10]


def test_conversations_are_listed_as_they_are_named(parley: Parley, tmp_path: Path) -> None:
    """Also where somebody wrote what looks like markup."""
    fill(tmp_path, "hello", "[red]alarm[/red]", "closing [/b] first")
    listed = parley("sessions", "list")
    assert (listed.code, listed.err) == (0, "")
    for text in ("hello", "[red]alarm[/red]", "closing [/b] first"):
        assert text in listed.out


def test_a_conversation_is_forgotten_after_a_question(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --yes it asks; with it, it does it."""
    fill(tmp_path, "my secret words")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    refused = parley("forget", "1")
    assert (refused.code, refused.out.strip()) == (1, "")
    assert "my secret words" in parley("sessions", "list").out
    assert "erased conversation 1 with 2 messages" in parley("forget", "1", "--yes").out
    assert "my secret words" not in parley("sessions", "list").out
    assert "there is no conversation 1" in one_line(parley("forget", "1", "--yes"))
    for wrong in ("x", "9" * 30):
        assert "not a conversation id" in one_line(parley("forget", wrong, "--yes"))


READS = (
    "sessions list",
    "sessions export 1",
    "dead-letters list",
    "pair list",
    "audit export",
    "usage",
    "prompt show 1",
)
WRITES = (
    "forget 1 --yes",
    "dead-letters retry t1",
    "dead-letters drop t1",
    "pair approve ABCD2345",
    "search reindex",
    "db migrate",
)


@pytest.mark.parametrize("command", [*READS, *WRITES])
def test_a_newer_database_is_left_alone(parley: Parley, store: Store, command: str) -> None:
    """The line says that another version has written it, whatever was asked for."""
    store.run(made_newer)
    store.close()
    assert "9999, which this version" in one_line(parley(*command.split()))


@pytest.mark.parametrize("command", READS)
def test_without_a_database_a_line_says_so(parley: Parley, home: Path, command: str) -> None:
    """Looking creates none."""
    assert "there is no database" in one_line(parley(*command.split()))
    assert list(home.iterdir()) == []


def test_an_option_that_is_not_there_is_a_wrong_call(parley: Parley) -> None:
    """Exit code 2, and nothing on stdout."""
    for command in READS:
        result = parley(*command.split(), "--nope")
        assert (result.code, result.out) == (2, "")
        assert "--nope" in result.err


@pytest.mark.parametrize(("gone", "instead"), main.GONE.items())
def test_a_command_that_went_says_what_does_the_same(
    parley: Parley, gone: str, instead: str
) -> None:
    """On stderr, with the exit code of a wrong call; with whatever stands behind it."""
    result = parley(*gone.split(), "1", "--json")
    assert (result.code, result.out) == (2, "")
    assert f"`parley {gone}` went; instead: {instead}" in " ".join(result.err.split())


def test_dead_letters_are_listed_and_dropped(parley: Parley, tmp_path: Path) -> None:
    """What was given up, why, and its text; markup in it is text."""
    fill(tmp_path, "[/i]mportant", dead=True)
    listed = parley("dead-letters", "list")
    assert (listed.code, "s1.1" in listed.out, "[/b]locked" in listed.out) == (0, True, True)
    letter = json.loads(parley("dead-letters", "list", "--json").out)
    assert (letter["id"], letter["reason"]) == ("s1.1", "bot was [/b]locked")
    assert letter["text"].endswith("re: [/i]mportant")
    assert "s1.1 is dropped" in parley("dead-letters", "drop", "s1.1").out
    assert "s1.1" not in parley("dead-letters", "list").out
    for command in ("retry", "drop"):
        assert "no dead letter s1.1" in one_line(parley("dead-letters", command, "s1.1"))


def test_a_dead_letter_is_retried(parley: Parley, tmp_path: Path) -> None:
    """At the next start it is sent."""
    fill(tmp_path, "one", dead=True)
    assert "back in its queue" in parley("dead-letters", "retry", "s1.1").out

    async def restart() -> list[str]:
        async with running(tmp_path) as chat:
            return await chat.answers(1, "c0")

    assert asyncio.run(restart()) == ["re: one"]


@pytest.mark.usefixtures("sqlite_alone")
def test_a_backup_is_a_database(parley: Parley, tmp_path: Path) -> None:
    """It can be opened, and holds what the original holds."""
    fill(tmp_path, "one")
    target = tmp_path / "copies" / "copy.db"
    assert "cannot back up" in one_line(parley("backup", str(target)))
    target.parent.mkdir()
    assert "bytes" in parley("backup", str(target)).out
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT text FROM inbox").fetchall() == [("one",)]


@pytest.mark.usefixtures("sqlite_alone")
def test_a_home_is_backed_up_and_restored(parley: Parley, tmp_path: Path) -> None:
    """With a question, or none; secrets that stand in the settings file are named."""
    fill(tmp_path, "one")
    (tmp_path / "parley.yaml").write_text("model: {api_key: sk-0123456789abcdef0123}\n")
    assert "where to?" in one_line(parley("backup"))
    assert parley("backup", "copy.db", "--keep", "1").code == 2
    to, home = tmp_path / "kept", tmp_path / "again"
    told = parley("backup", "--to", str(to), "--json")
    made = json.loads(told.out)
    assert made["revision"] == REVISION
    assert parley("restore", made["path"], "--yes").code == 1
    checked = parley("--home", str(home), "restore", made["path"], "--check")
    assert str(home / "parley.db") in checked.out
    assert not home.exists()
    assert "is restored" in parley("--home", str(home), "restore", made["path"], "--yes").out
    assert "one" in parley("--home", str(home), "sessions", "export", "1").out
    (tmp_path / "parley.yaml").write_text(
        f"model: {{api_key: sk-0123456789abcdef0123}}\nbackup: {{to: {to}x, keep: 1}}\n"
    )
    result = parley("backup")
    assert "verified" in result.out
    assert "model.api_key" in result.err
    assert "sk-0" not in result.err


@pytest.mark.usefixtures("sqlite_alone")
def test_what_a_backup_lacks_is_said(parley: Parley, tmp_path: Path) -> None:
    """A settings file that lies elsewhere, though one of its name is there; what cannot be held."""
    home, to, other = tmp_path / "home", tmp_path / "kept", tmp_path / "etc" / "parley.yaml"
    fill(home, "one")
    other.parent.mkdir()
    other.write_text("model: {api_key: sk-0123456789abcdef0123}\n")
    (home / "parley.yaml").write_text("queue: {debounce_ms: 0}\n")
    os.makedirs(os.fsencode(home) + b"/workspaces/1/caf\xe9")  # noqa: PTH103 - of bytes
    result = parley("--home", str(home), "--config", str(other), "backup", "--to", str(to))
    assert f"keep a copy of {other}" in result.err
    assert "model.api_key" not in result.err
    assert "workspaces/1/caf\\xe9 (its name is not UTF-8)" in result.err
    [made] = to.glob("parley-*")
    assert (made / "home/parley.yaml").read_text() == "queue: {debounce_ms: 0}\n"
    again = ("--home", str(tmp_path / "again"), "restore", str(made))
    told = json.loads((made / "backup.json").read_text())
    (made / "backup.json").write_text(json.dumps(told | {"workspaces_at": str(tmp_path / "ws")}))
    assert f"--outside {tmp_path}/ws" in one_line(parley(*again, "--check"))
    assert parley(*again, "--yes", "--outside", str(tmp_path / "ws")).code == 0
    assert (tmp_path / "ws/1").is_dir()


@pytest.mark.usefixtures("sqlite_alone")
def test_an_older_database_is_refused_until_its_mark_is_gone(
    parley: Parley, tmp_path: Path
) -> None:
    """The refusal names the file; without it nothing is lost without a word."""
    fill(tmp_path, "one")
    older = (tmp_path / "parley.db").read_bytes()
    fill(tmp_path, "two")
    (tmp_path / "parley.db").write_bytes(older)
    told = one_line(parley("forget", "1", "--yes"))
    mark = tmp_path / "parley.db.mark"
    assert "commits are missing" in told
    assert f"remove {mark}" in told
    mark.unlink()
    assert "erased conversation 1" in parley("forget", "1", "--yes").out


@pytest.mark.usefixtures("sqlite_alone")
def test_a_database_in_use_is_said(parley: Parley, tmp_path: Path) -> None:
    """A second process is refused, and does no harm: no log, no mode, no program of MCP."""
    fill(tmp_path, "one")
    started = f"open({str(tmp_path / 'started')!r}, 'x')"
    server = {"command": sys.executable, "args": ["-c", started]}
    tools = {"enabled": ["terminal"], "mcp": {"s": server}}
    (tmp_path / "parley.yaml").write_text(yaml.safe_dump({"tools": tools}))
    tmp_path.chmod(0o755)
    with lock_database(tmp_path / "parley.db"):
        before = files_in(tmp_path)
        for command in (["run", "--port", "0"], ["db", "migrate"], ["forget", "1", "--yes"]):
            assert "is in use by another Parley process" in one_line(parley(*command))
            assert files_in(tmp_path) == before


def files_in(home: Path) -> dict[str, tuple[int, str]]:
    """Return mode and digest of everything in a folder, and of itself."""
    return {
        path.name: (path.stat().st_mode, digest(path) if path.is_file() else "")
        for path in (home, *home.rglob("*"))
    }


def digest(path: Path) -> str:
    """Return a short name of what stands in a file."""
    return sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "command",
    [["sessions", "list"], ["db", "check"], ["backup", "copy.db"], ["dead-letters", "drop", "s1"]],
)
def test_a_database_that_nobody_can_look_for_is_said(
    parley: Parley, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """In one line with its path; no file system has such a name, so looking fails for root, too."""
    path = f"/{'x' * 300}/parley.db"
    monkeypatch.setenv("PARLEY_STORAGE__URL", f"sqlite:///{path}")
    assert path in one_line(parley(*command))


def test_chat_needs_a_gateway(parley: Parley) -> None:
    """The line says what to do."""
    assert "parley run" in one_line(parley("chat"))


def test_logs_are_printed_readably(parley: Parley, tmp_path: Path) -> None:
    """From the log file; without one the line says why."""
    folder = tmp_path / "logs"
    folder.mkdir()
    line = {"event": "turn_finished", "level": "info", "timestamp": "2026-01-01T00:00:00Z"}
    (folder / "parley.jsonl").write_text(json.dumps(line) + "\n")
    assert "turn_finished" in parley("logs").out
    assert "turn_finished" not in parley("logs", "--event", "other").out
    (tmp_path / "parley.yaml").write_text("logging: {file: false}\n")
    assert "logging.file is false" in one_line(parley("logs"))


def test_logs_of_one_chat_and_one_trace(parley: Parley, tmp_path: Path) -> None:
    """A chat is known by its platform's id, a trace by its beginning; all lines are JSON."""
    fill(tmp_path, "one", "two")
    lines = [{"timestamp": "2026-11-21T10:00:00Z", "level": "info", "event": "seen"}] * 2
    told = [each | {"conversation": n, "trace": f"{n}" * 32} for n, each in enumerate(lines, 1)]
    (tmp_path / "logs").mkdir(exist_ok=True)
    log = "".join(json.dumps(each) + "\n" for each in told)
    (tmp_path / "logs" / "parley.jsonl").write_text(log)
    for chosen in (("--chat", "c1"), ("--trace", "222222"), ("--grep", "conversation=2")):
        result = parley("logs", "--json", *chosen)
        assert [json.loads(each) for each in result.out.splitlines()] == told[1:]


@pytest.mark.parametrize(
    "wrong", [("--trace", "12"), ("--trace", "xyzxyz"), ("--grep", "("), ("--since", "soon")]
)
def test_what_cannot_be_looked_for_is_told(parley: Parley, wrong: tuple[str, str]) -> None:
    """As a wrong call, before anything is read."""
    result = parley("logs", *wrong)
    assert result.code == 2
    assert wrong[1] in result.err


@pytest.mark.parametrize(("options", "shown"), [([], 10), (["-n", "2"], 2), (["-n", "99"], 12)])
def test_following_begins_with_the_newest_lines(
    parley: Parley,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    shown: int,
) -> None:
    """Ten as with `tail -f`, or as many as are asked for; Ctrl-C ends it well."""
    (home / "logs").mkdir()
    lines = [json.dumps({"event": f"event_{n}", "level": "info"}) for n in range(12)]
    (home / "logs" / "parley.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("gateway.cli.logs.time.sleep", Mock(side_effect=KeyboardInterrupt))
    result = parley("logs", "-f", *options)
    assert result.code == 0
    printed = re.findall(r"event_\d+", result.out)
    assert printed == [f"event_{n}" for n in range(12 - shown, 12)]


def test_a_recording_is_replayed(parley: Parley, tmp_path: Path) -> None:
    """Exit code 0 and a summary; a file of no known format is one line."""
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(turns))
    assert "1 of 1 conversations fully answered" in parley("replay", str(file)).out
    file.write_text("{}")
    assert f"cannot replay {file}" in one_line(parley("replay", str(file)))


class Process:
    """`parley run` as a process of its own."""

    def __init__(self, home: Path) -> None:
        environment = {**os.environ, "PARLEY_HOME": str(home), "PARLEY_LOGGING__FORMAT": "json"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli.main", "run", "--port", "0"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.banner = self._read_banner()

    def _read_banner(self) -> str:
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if "talk in the terminal" in line:
                return "".join(lines)
        pytest.fail(f"parley run ended: {''.join(lines)}")

    def end(self) -> Result:
        """Ask it to stop; return what it wrote after its banner."""
        self._process.send_signal(signal.SIGTERM)
        out, err = self._process.communicate(timeout=60)
        return Result(self._process.returncode, out, err)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


async def ask_through(socket: Path, text: str) -> str:
    """Post a message over the Unix socket and return the answer's markdown."""
    connector = aiohttp.UnixConnector(str(socket))
    path = "http://parley/api/chats/c1"
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.get(f"{path}/events", params={"format": "markdown"}) as events,
        http.post(f"{path}/messages", json={"id": "m1", "text": text}) as posted,
    ):
        assert posted.status == 202
        return await first_answer(events.content)


async def first_answer(stream: aiohttp.StreamReader) -> str:
    """Read events until there is one with an answer."""
    async for line in stream:
        item = json.loads(line[6:]) if line.startswith(b"data: ") else {}
        if item.get("who") == "parley":
            return str(item["markdown"])
    pytest.fail("the stream ended without an answer")


def test_run_is_a_whole_gateway(parley: Parley, tmp_path: Path) -> None:
    """It answers, shares its database with the other commands, and ends well at SIGTERM."""
    with Process(tmp_path) as process:
        assert re.search(r"Parley is ready: http://parley\.localhost:\d+/", process.banner)
        answer = asyncio.run(ask_through(tmp_path / SOCKET, "What is 6 * 7?"))
        assert "offline" in answer.lower()
        assert "What is 6 * 7?" in parley("sessions", "list").out
        assert "bytes" in parley("backup", str(tmp_path / "copy.db")).out
        assert "is in use" in one_line(parley("run", "--port", "0"))
        assert "erased conversation 1" in parley("forget", "1", "--yes").out
        ended = process.end()
    assert ended.code == 0
    assert "Traceback" not in ended.err
    events = [json.loads(line)["event"] for line in ended.out.splitlines()]
    assert {"gateway_ready", "message_admitted", "turn_finished", "message_sent"} <= set(events)
    assert events[-1] == "gateway_stopped"


def test_the_list_of_commands_says_what_the_commands_say(parley: Parley) -> None:
    """The list is apart, so that `parley --help` imports no command; groups have no other words."""
    for name, words in main.COMMANDS.items():
        found = main.app_of(name)
        if found.info.no_args_is_help is True:
            assert (name, get_group(found).help) == (name, None)
            assert words in " ".join(parley(name, "--help").out.split())
        else:
            first = (get_command(found).help or "").split("\n\n")[0].replace("\n", " ")
            assert (name, first) == (name, words)


def test_help_imports_no_command() -> None:
    """Counted in a fresh process: none of the commands' own modules, nor what they stand on."""
    asked = "import sys; from gateway.cli import main; sys.argv = ['parley', '--help']\n"
    tried = "try: main.main()\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", asked + tried], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stderr.split())
    assert "gateway.cli.main" in loaded
    assert not loaded & {"gateway.cli.common", "gateway.app", "sqlalchemy", "aiohttp", "pydantic"}
    # What would draw boxes around it: half of what is imported.
    assert not loaded & {"rich", "markdown_it", "pygments"}
