"""The crash journal: how the process before ended is known at the next start."""

import asyncio
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
import structlog

from gateway.errors import SettingsError, StorageUnavailable
from gateway.storage.queue.blame import Death
from gateway.supervision import crash_journal
from gateway.supervision.crash_journal import (
    BEAT_S,
    CrashJournal,
    Ending,
    Machine,
    as_turn,
    keeping_journal,
)


@dataclass
class Host:
    """A machine made of files; `now` is its clock."""

    folder: Path
    now: float = 1000.0
    booted_at: float = 0.0
    machine: Machine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Machine(self.folder / "proc", self.folder / "groups")
        self.write("proc/self/cgroup", "0::/parley.service\n")
        self.boot("first")
        self.kills(0, 0)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def boot(self, name: str) -> None:
        self.booted_at = self.now
        self.write("proc/sys/kernel/random/boot_id", f"{name}\n")
        self.write("proc/uptime", "10.00 9.00\n")

    def kills(self, own: int, all_of_them: int) -> None:
        self.write("groups/parley.service/memory.events", f"max 3\noom 9\noom_kill {own}\n")
        self.write("proc/vmstat", f"nr_free_pages 7\noom_kill {all_of_them}\n")

    def start(self, home: Path) -> CrashJournal:
        """Begin a process; what it was before is in its `ending`."""
        journal = CrashJournal(home, self.machine, lambda: self.now)
        journal.open()
        return journal

    def end(self, home: Path) -> Ending:
        """Return what the next process finds out."""
        ending = self.start(home).ending
        assert ending is not None
        return ending


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine with one process killed for memory so far: none."""
    return Host(tmp_path / "host")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """PARLEY_HOME."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@contextmanager
def quiet_log() -> Iterator[None]:
    """The log of a gateway that lives for one question."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(wrapper_class=before)


def test_a_first_start_has_nothing_before_it(host: Host, home: Path) -> None:
    """There is no line for it, and nobody to charge."""
    journal = host.start(home)
    assert (journal.ending, journal.owed) == (None, None)


def test_a_clean_stop_is_one(host: Host, home: Path) -> None:
    """Whether it was asked to or not."""
    journal = host.start(home)
    host.now += 60
    journal.asked_to_stop()
    journal.close(None)
    assert host.end(home) == Ending(Death("stopped", 1060.0), up_s=60.0)


def test_a_kill_leaves_the_time_of_the_newest_beat(host: Host, home: Path) -> None:
    """It is exact to a beat."""
    journal = host.start(home)
    host.now += 60
    journal.beat()
    host.now += 500
    assert host.end(home) == Ending(Death("killed", 1060.0 + BEAT_S), up_s=60.0)


def test_an_end_that_no_log_tells_of_is_told_by_the_next_process(
    host: Host, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when somebody asks a question with `parley ask` between a kill and the next start."""
    host.start(home)
    for _ in range(2):
        guest = host.start(home)
        with quiet_log():
            guest.tell_of_the_one_before()
        guest.close(None)
    assert capsys.readouterr().out == ""
    journal = host.start(home)
    journal.tell_of_the_one_before()
    assert "how=killed" in capsys.readouterr().out
    journal.close(None)
    assert host.end(home).death.how == "stopped"


def test_a_kill_after_a_stop_was_asked_for_is_no_crash(host: Host, home: Path) -> None:
    """As by a container's runtime that does not wait for `queue.grace_s`."""
    host.start(home).asked_to_stop()
    assert host.end(home).death.how == "stop_cut_off"


def test_a_machine_that_went_down_is_known_by_its_boot_id(host: Host, home: Path) -> None:
    """Whatever else is there."""
    host.start(home)
    host.boot("second")
    host.kills(0, 9)
    assert host.end(home).death.how == "machine_restarted"


def test_a_machine_without_a_boot_id_is_known_by_its_uptime(host: Host, home: Path) -> None:
    """It booted after the process was alive last."""
    boot_id = host.folder / "proc/sys/kernel/random/boot_id"
    boot_id.unlink()
    host.start(home)
    host.now += 5
    assert host.end(home).death.how == "killed"
    host.now += 50
    assert host.end(home).death.how == "machine_restarted"


def test_a_kill_for_memory_is_told_by_the_control_group(host: Host, home: Path) -> None:
    """Of the same group, after the newest beat."""
    host.kills(2, 5)
    host.start(home)
    host.kills(3, 6)
    assert host.end(home).death.how == "out_of_memory"


def test_a_kill_of_another_process_of_the_group_is_known_before(host: Host, home: Path) -> None:
    """A tool's process that was killed a while ago is not this process."""
    journal = host.start(home)
    host.kills(1, 1)
    journal.beat()
    assert host.end(home).death.how == "killed"


def test_a_kill_for_memory_in_a_group_that_is_gone_is_a_hint(host: Host, home: Path) -> None:
    """A restarted container or service has a new group: only the machine has counted."""
    host.start(home)
    (host.folder / "groups/parley.service").rename(host.folder / "groups/gone")
    host.kills(0, 2)
    ending = host.end(home)
    assert (ending.death.how, ending.oom_kills) == ("killed", 2)


def test_the_older_control_groups_tell_it_likewise(host: Host, home: Path) -> None:
    """Version 1 counts in another file; in a container its path may be the host's."""
    host.write("proc/self/cgroup", "4:memory:/docker/4711\n0::/\n")
    counter = "groups/memory/memory.oom_control"
    host.write(counter, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    host.start(home)
    host.write(counter, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert host.end(home).death.how == "out_of_memory"


async def fail() -> None:
    raise LookupError("not in any log")


async def test_an_exception_is_named_with_the_turn_it_came_from(host: Host, home: Path) -> None:
    """By its class alone; its text may quote people."""
    with pytest.raises(LookupError) as caught:
        await as_turn(12, fail())
    host.start(home).close(ExceptionGroup("of tasks", [ValueError(), caught.value]))
    ending = host.end(home)
    assert (ending.death.how, ending.death.turn) == ("exception", 12)
    assert ending.reason == "ExceptionGroup"
    assert "not in any log" not in (home / "process.json").read_text()


async def test_an_exception_of_another_part_names_no_turn(host: Host, home: Path) -> None:
    """A bug beside the turns is none of their business."""
    with pytest.raises(LookupError) as caught:
        await fail()
    host.start(home).close(caught.value)
    assert host.end(home).death == Death("exception", 1000.0)


def test_what_nobody_was_charged_with_is_owed(host: Host, home: Path) -> None:
    """A process that dies before it has taken over leaves that to the next one."""
    host.start(home).asked_to_stop()
    second = host.start(home)
    third = host.start(home)
    assert second.owed == third.owed == Death("stop_cut_off", 1000.0 + BEAT_S)
    assert third.ending is not None
    assert third.ending.death.how == "killed"
    third.settled()
    assert host.start(home).owed == Death("killed", 1000.0 + BEAT_S)


@pytest.mark.parametrize("torn", [b"", b"{", b'{"life": {"pid": 1}}', b"[]", b'{"life": []}'])
def test_a_torn_journal_is_as_good_as_none(host: Host, home: Path, torn: bytes) -> None:
    """The start goes on; the next end is known again."""
    (home / "process.json").write_bytes(torn)
    assert host.start(home).ending is None
    assert host.end(home).death.how == "killed"


def test_the_journal_is_its_owners_alone(host: Host, home: Path) -> None:
    """It is small, and overwritten in place."""
    journal = host.start(home)
    size = (home / "process.json").stat().st_size
    for _ in range(3):
        journal.beat()
    assert (home / "process.json").stat().st_size == size == 1024
    modes = {stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
    assert modes == {0o600}


def test_a_journal_that_cannot_be_written_stops_nothing(host: Host, home: Path) -> None:
    """The gateway runs; the next start knows nothing of it."""
    (home / "process.json").mkdir()
    journal = host.start(home)
    journal.beat()
    journal.close(None)
    assert host.start(home).ending is None


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.supervision import crash_journal

async def work():
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))

async def main():
    await asyncio.gather(crash_journal.as_turn(5, asyncio.sleep(60)), turn())

async def turn():
    await (crash_journal.as_turn(12, work()) if sys.argv[3] == "turn" else work())

with crash_journal.keeping_journal(Path(sys.argv[1])):
    asyncio.run(main())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT"])
@pytest.mark.parametrize(("where", "turn"), [("turn", 12), ("beside", None)])
def test_a_fatal_signal_names_the_turn_whose_task_ran(
    home: Path, name: str, where: str, turn: int | None
) -> None:
    """Not one that waits beside it; its stacks are kept for the operator."""
    command = [sys.executable, "-c", DYING, str(home), name, where]
    ended = subprocess.run(command, check=False, cwd=Path(__file__).parents[3])
    assert ended.returncode == -signal.Signals[name]
    journal = CrashJournal(home)
    journal.open()
    assert journal.ending is not None
    assert journal.ending.death.how == "fatal_signal"
    assert journal.ending.death.turn == turn
    assert (journal.ending.reason or "").startswith("Fatal Python error: ")
    assert "in work" in (home / crash_journal.EARLIER_STACKS).read_text()
    assert (home / crash_journal.STACKS).read_text() == ""
    journal.close(None)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (SystemExit(1), "SystemExit"),
        (StorageUnavailable("disk full"), "StorageUnavailable"),
        (KeyboardInterrupt(), None),
        (SettingsError("the port is taken"), None),
    ],
)
def test_whatever_ends_a_process_goes_on_as_it_was(
    home: Path, error: BaseException, named: str | None
) -> None:
    """The journal only takes note; Ctrl-C is a stop, and so is a start that was refused."""
    with pytest.raises(type(error)), keeping_journal(home):
        raise error
    life = orjson.loads((home / "process.json").read_bytes())["life"]
    assert (life["over"], life["error"]) == (True, named)


async def test_beats_are_noted_as_long_as_it_runs(
    host: Host, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the newest one is what a kill leaves."""
    monkeypatch.setattr(crash_journal, "BEAT_S", 0.0)
    journal = host.start(home)
    beating = asyncio.create_task(journal.run())
    host.now += 7
    for _ in range(5):
        await asyncio.sleep(0)
    beating.cancel()
    await asyncio.wait([beating])
    assert host.end(home).up_s == 7.0
    assert os.getpid() == orjson.loads((home / "process.json").read_bytes())["life"]["pid"]
