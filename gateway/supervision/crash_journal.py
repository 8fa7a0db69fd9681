"""The crash journal: records how the previous process ended.

Two files in PARLEY_HOME: `process.json` names the running process, when it was last alive and, if
time allows, how it ended; `fatal.txt` gets the stacks of all threads at a fatal signal
(`faulthandler`). Writes never wait for the disk: the kernel keeps them beyond the process, and the
boot id reveals a restart of the machine.
"""

import asyncio
import faulthandler
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import orjson
import structlog

from adapters.base import Clock
from gateway.errors import GatewayError, StorageError
from gateway.storage.queue.blame import Death, DeathCause

log = structlog.get_logger()

T = TypeVar("T")

FILE = "process.json"
STACKS = "fatal.txt"
EARLIER_STACKS = "fatal.previous.txt"
BEAT_S = 1.0
"""Precision of a recorded time of death, in seconds."""
_SIZE = 1024
"""Size of the journal in bytes; overwriting in place works on a full disk."""
_MOST_STACKS_BYTES = 1_000_000
# The formats of threads and frames in `faulthandler` output.
_CURRENT_THREAD = re.compile(r"^Current thread .*\n((?:  .*\n)*)", re.MULTILINE)
_TURN = re.compile(r"turn_(\d+)")
_TURN_FRAME = re.compile(rf'^  File ".*{re.escape(Path(__file__).name)}", line \d+ in turn_(\d+)$')


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts from the kernel about this machine and its control groups (version 2 or 1)."""

    proc: Path = Path("/proc")
    groups: Path = Path("/sys/fs/cgroup")

    def boot_id(self) -> str | None:
        """Return an id that changes with each boot, or None if the system has none."""
        return _text(self.proc / "sys/kernel/random/boot_id")

    def up_s(self) -> float | None:
        """Return the machine's uptime in seconds, or None if unknown."""
        text = _text(self.proc / "uptime")
        return float(text.split()[0]) if text else None

    def oom_kills(self) -> int | None:
        """Return the number of OOM kills on the machine since its boot."""
        return _count(_text(self.proc / "vmstat"))

    def own_oom_kills(self) -> tuple[str | None, int]:
        """Return this process's control group (None if unknown) and its OOM kills."""
        for counter in self._counters():
            count = _count(_text(counter))
            if count is not None:
                status = counter.parent.stat()
                return f"{status.st_dev}:{status.st_ino}", count
        return None, 0

    def _counters(self) -> Iterator[Path]:
        lines = (_text(self.proc / "self/cgroup") or "").splitlines()
        paths = {fields[1]: fields[2] for fields in (line.split(":", 2) for line in lines)}
        for controller, folder, name in (
            ("", self.groups, "memory.events"),
            ("memory", self.groups / "memory", "memory.oom_control"),
        ):
            if controller in paths:
                yield folder / paths[controller].lstrip("/") / name
                # In a container the path may be the host's.
                yield folder / name


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _count(text: str | None) -> int | None:
    """Parse the count of `oom_kill`; a kill of a whole group counts several times."""
    for line in (text or "").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return None


@dataclass(frozen=True, slots=True)
class Life:
    """One process; times in seconds since the epoch.

    Attributes:
        group: Its control group.
        group_oom_kills: OOM kills in the group until `alive_at`.
        asked: Whether it was asked to stop.
        over: Whether it ended by itself.
        error: The class of the exception that ended it.
        turn: The turn whose task raised it.
    """

    pid: int
    boot_id: str | None
    began_at: float
    alive_at: float
    group: str | None = None
    group_oom_kills: int = 0
    machine_oom_kills: int | None = None
    asked: bool = False
    over: bool = False
    error: str | None = None
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How the previous process ended.

    Attributes:
        reason: The fatal signal, or the class of the exception.
        oom_kills: OOM kills on the machine at about that time, if they may include this process.
    """

    death: Death
    up_s: float
    reason: str | None = None
    oom_kills: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself without an exception."""
        return self.death.how == "stopped"


@dataclass(slots=True)
class CrashJournal:
    """Writes the two files of this process and reads those of the previous one.

    Attributes:
        ending: The end of the previous process, or of an earlier one not logged yet.
        owed: A death not yet charged to its turns.
    """

    home: Path
    machine: Machine = field(default_factory=Machine)
    now: Clock = time.time
    ending: Ending | None = None
    owed: Death | None = None
    _life: Life | None = None
    _file: int = -1
    _stacks: int = -1

    def open(self) -> None:
        """Read how the previous process ended, and start this one's journal."""
        earlier, owed, untold = self._read()
        stacks = self._take_stacks()
        if earlier is not None:
            ended = self._how_it_ended(earlier, stacks)
            self.owed = owed or ended.death
            self.ending = untold if untold and ended.is_clean else ended
        now = self.now()
        self._life = Life(os.getpid(), self.machine.boot_id(), now, now)
        try:
            self._file = _own_file(self.home / FILE, os.O_RDWR)
            self._stacks = _own_file(self.home / STACKS, os.O_WRONLY | os.O_APPEND)
            faulthandler.enable(self._stacks)
        except OSError as exc:
            log.warning("crash_journal_failed", error=exc.strerror)
        self.beat()

    def tell_of_the_one_before(self) -> None:
        """Log how the previous process ended."""
        if (ending := self.ending) is None:
            return
        level = logging.INFO if ending.is_clean else logging.WARNING
        if log.is_enabled_for(level):  # Otherwise the next start logs it, as after `parley ask`.
            self.ending = None
            log.log(
                level,
                "previous_process_ended",
                how=ending.death.how,
                up_s=ending.up_s,
                reason=ending.reason,
                turn=ending.death.turn,
                oom_kills=ending.oom_kills,
            )

    def _read(self) -> tuple[Life | None, Death | None, Ending | None]:
        try:
            found = orjson.loads((self.home / FILE).read_bytes())
            life = Life(**found["life"])
            owed = Death(**found["owed"]) if found["owed"] else None
            untold = found.get("untold")  # Earlier versions had no such field.
            untold = untold and Ending(**untold | {"death": Death(**untold["death"])})
        except FileNotFoundError:
            return None, None, None
        except (OSError, ValueError, KeyError, TypeError) as exc:
            # Torn by a power cut or written by another version.
            log.warning("crash_journal_failed", error=type(exc).__name__)
            return None, None, None
        return life, owed, untold

    def _take_stacks(self) -> str:
        """Return the stacks of a fatal signal, and move them to another file."""
        path = self.home / STACKS
        with suppress(OSError):
            if path.stat().st_size:
                path.replace(self.home / EARLIER_STACKS)
                # Move first: after a crash here the next process must not read them again.
                kept = (self.home / EARLIER_STACKS).read_bytes()[:_MOST_STACKS_BYTES]
                return kept.decode(errors="replace")
        return ""

    def _how_it_ended(self, life: Life, stacks: str) -> Ending:
        how = self._cause(life, stacks)
        died_at = life.alive_at if life.over else life.alive_at + BEAT_S
        turn = turn_of_stacks(stacks) if how == "fatal_signal" else life.turn
        return Ending(
            Death(how, died_at, turn),
            up_s=round(max(life.alive_at - life.began_at, 0.0), 1),
            reason=stacks.partition("\n")[0][:200] if how == "fatal_signal" else life.error,
            oom_kills=self._oom_kills_since(life) if how == "killed" else 0,
        )

    def _cause(self, life: Life, stacks: str) -> DeathCause:
        if life.over:
            return "stopped" if life.error is None else "exception"
        if stacks:
            return "fatal_signal"
        if self._has_restarted(life):
            return "machine_restarted"
        group, kills = self.machine.own_oom_kills()
        # A recreated container has another group with its own counter.
        if group is not None and group == life.group and kills > life.group_oom_kills:
            return "out_of_memory"
        return "stop_cut_off" if life.asked else "killed"

    def _has_restarted(self, life: Life) -> bool:
        boot_id, up_s = self.machine.boot_id(), self.machine.up_s()
        if boot_id and life.boot_id:
            return boot_id != life.boot_id
        # Without a boot id compare the boot time, assuming an unchanged clock.
        return up_s is not None and self.now() - up_s > life.alive_at + BEAT_S

    def _oom_kills_since(self, life: Life) -> int:
        count = self.machine.oom_kills()
        if count is None or life.machine_oom_kills is None:
            return 0
        return max(count - life.machine_oom_kills, 0)

    def settled(self) -> None:
        """Record that the turns were charged."""
        self.owed = None
        self.beat()

    def beat(self) -> None:
        """Record that this process is alive."""
        group, kills = self.machine.own_oom_kills()
        self._note(
            alive_at=self.now(),
            group=group,
            group_oom_kills=kills,
            machine_oom_kills=self.machine.oom_kills(),
        )

    async def run(self) -> None:
        """Call `beat` every `BEAT_S` until cancelled."""
        while True:
            await asyncio.sleep(BEAT_S)
            self.beat()

    def asked_to_stop(self) -> None:
        """Record SIGTERM or SIGINT: a later death was requested."""
        self._note(asked=True)

    def close(self, error: BaseException | None) -> None:
        """Record that this process ends by itself, with or without an exception."""
        name, turn = (type(error).__name__, turn_of_exception(error)) if error else (None, None)
        self._note(alive_at=self.now(), over=True, error=name, turn=turn)
        # First, because it keeps a file descriptor that may be reused soon.
        faulthandler.disable()
        for file in (self._file, self._stacks):
            if file >= 0:
                os.close(file)
        self._file = self._stacks = -1

    def _note(self, **facts: Any) -> None:
        if self._life is None or self._file < 0:
            return
        self._life = replace(self._life, **facts)
        data = orjson.dumps({"life": self._life, "owed": self.owed, "untold": self.ending})
        try:
            # Padded to overwrite a longer record completely.
            os.pwrite(self._file, data.ljust(_SIZE - 1) + b"\n", 0)
        except OSError as exc:
            log.warning("crash_journal_failed", error=exc.strerror)


def _own_file(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def keeping_journal(home: Path) -> Iterator[CrashJournal]:
    """Keep the journal of this process until its end."""
    journal = CrashJournal(home)
    journal.open()
    try:
        yield journal
    except BaseException as exc:
        # A refused start has already informed the operator and is not a crash.
        refused = isinstance(exc, GatewayError) and not isinstance(exc, StorageError)
        journal.close(None if refused or isinstance(exc, KeyboardInterrupt) else exc)
        raise
    journal.close(None)


async def as_turn(turn_id: int, work: Awaitable[T]) -> T:
    """Await a turn's work in a frame named `turn_<id>` in stacks."""
    # At a fatal signal `faulthandler` writes only function names.
    code = _frame.__code__.replace(co_name=f"turn_{turn_id}")
    named: Callable[[Awaitable[T]], Awaitable[T]] = FunctionType(code, globals())
    return await named(work)


async def _frame(work: Awaitable[T]) -> T:
    return await work


def turn_of_stacks(stacks: str) -> int | None:
    """Return the turn in the thread of a fatal signal, or None."""
    current = _CURRENT_THREAD.search(stacks)
    for line in current[1].splitlines() if current else ():
        if match := _TURN_FRAME.match(line):
            return int(match[1])
    return None


def turn_of_exception(error: BaseException) -> int | None:
    """Return the turn that raised an exception, or None."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == __file__ and (match := _TURN.fullmatch(code.co_name)):
            return int(match[1])
        trace = trace.tb_next
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    found = (turn_of_exception(each) for each in (*inner, error.__cause__) if each is not None)
    return next((turn for turn in found if turn is not None), None)
