"""Replicas on one PostgreSQL beside one process on SQLite: rates, processor time, what is asked.

One run on one machine: replicas, database and those who write share its cores, so that the rates
say less than the processor time for a turn. What is compared talks in turns, since a machine that
others use as well takes half as long again in one minute as in the next; a figure is the median of
the rounds, a ratio that of the rounds' ratios. The database is the tests' own server with what a
real one has switched on (fsync, autovacuum). Its processor time is that of all its processes;
statements and commits are counted in its log, in a run of their own.
"""

import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.copied import copy_conversations
from tests.bench.figures import Figure
from tests.bench.page import ROOT
from tests.bench.scaling_replica import SQLITE
from tests.support.postgres import PostgresServer, postgres_server

PAGE = ROOT / "docs" / "scaling.md"
REAL = {
    "autovacuum": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
}
CHATS, TURNS = 120, 2
"""In a round, shared by the replicas."""
ROUNDS = 12
WARM = 2
COUNTED_CHATS, COUNTED_TURNS = 10, 5
REST_S = 20
FEW, MANY = 100, 100_000
"""Conversations that are there when a turn's cost is compared."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_ASKED = re.compile(r"LOG:  (?:execute [^:]*|statement): (?P<sql>.*)")
_CONTROL = re.compile(r"BEGIN|COMMIT|ROLLBACK|SET|DISCARD", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Taken:
    """What turns took, of all replicas together.

    Attributes:
        database_s: Processor time of the database.
    """

    turns: int
    took_s: float
    cpu_s: float
    database_s: float = 0.0

    @property
    def rate(self) -> float:
        """Turns in a second."""
        return self.turns / self.took_s

    @property
    def cpu_ms(self) -> float:
        """Processor time of a replica for a turn."""
        return self.cpu_s / self.turns * 1000

    @property
    def database_ms(self) -> float:
        """Processor time of the database for a turn."""
        return self.database_s / self.turns * 1000


def measure() -> Iterator[Figure]:
    """Yield SQLite, PostgreSQL with 1, 2 and 3 replicas, what a turn asks, and what rest costs."""
    with postgres_server(REAL) as server:
        for count in (1, 2, 3):
            yield from _beside_sqlite(server, count)
        yield from _asked(server)
        yield from _rest(server)
        yield from _growth(server)


def _beside_sqlite(server: PostgresServer, count: int) -> Iterator[Figure]:
    name = f"PostgreSQL, {count} replica{'s' if count > 1 else ''}"
    with (
        _replicas([SQLITE]) as sqlite,
        _database(server) as url,
        _replicas([url] * count) as shared,
    ):
        alone, together = _in_turns(server, sqlite, shared)
    if count == 1:
        yield Figure("SQLite", median(each.rate for each in alone), "turns/s")
        yield Figure("SQLite, CPU per turn", median(each.cpu_ms for each in alone), "ms")
    cpu_ms = [each.cpu_ms for each in together]
    yield Figure(name, median(each.rate for each in together), "turns/s")
    yield Figure(f"{name}, CPU of a replica per turn", median(cpu_ms), "ms")
    yield Figure("… to SQLite's", _ratio(cpu_ms, [it.cpu_ms for it in alone]), "times", at_most=2.5)
    database_ms = median(each.database_ms for each in together)
    yield Figure(f"{name}, CPU of the database per turn", database_ms, "ms", at_most=2)


def _in_turns(server: PostgresServer, *groups: Sequence["Replica"]) -> list[list[Taken]]:
    """Have groups of replicas talk in turns; return what each took, by round."""
    for each in groups:
        _talk(each, CHATS, WARM)
    taken: list[list[Taken]] = [[] for _ in groups]
    for _ in range(ROUNDS):
        for rounds, each in zip(taken, groups, strict=True):
            before = database_s(server)
            talked = _talk(each, CHATS, TURNS)
            rounds.append(replace(talked, database_s=database_s(server) - before))
    return taken


def _ratio(values: Sequence[float], bases: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(value / base for value, base in zip(values, bases, strict=True))


def _asked(server: PostgresServer) -> Iterator[Figure]:
    """Count what one replica asks of the database for plain turns."""
    with _database(server) as url, _replicas([url]) as replicas:
        _talk(replicas, COUNTED_CHATS, WARM)
        with _logging(server) as log:
            taken = _talk(replicas, COUNTED_CHATS, COUNTED_TURNS)
    asked = [match["sql"] for match in map(_ASKED.search, log) if match]
    statements = [sql for sql in asked if not _CONTROL.match(sql)]
    writes = [sql for sql in asked if sql.startswith("BEGIN") and "READ ONLY" not in sql]
    reads = [sql for sql in asked if sql.startswith("BEGIN") and "READ ONLY" in sql]
    yield Figure("statements per turn", len(statements) / taken.turns, "", at_most=25)
    yield Figure("commits of writes per turn", len(writes) / taken.turns, "", at_most=6)
    yield Figure("reads per turn, in transactions", len(reads) / taken.turns, "")


@contextmanager
def _logging(server: PostgresServer) -> Iterator[list[str]]:
    """Have the server log each statement meanwhile; the lines are there at the end."""
    lines: list[str] = []
    file = server.folder / "log"
    server.run("ALTER SYSTEM SET log_statement = 'all'")
    server.run("SELECT pg_reload_conf()")
    time.sleep(1.0)
    begins = file.stat().st_size
    yield lines
    server.run("ALTER SYSTEM RESET log_statement")
    server.run("SELECT pg_reload_conf()")
    with file.open("rb") as stream:
        stream.seek(begins)
        lines += stream.read().decode(errors="replace").splitlines()


def _rest(server: PostgresServer) -> Iterator[Figure]:
    """Yield what a replica costs that nobody writes to."""
    with _database(server) as url, _replicas([url]) as replicas:
        _talk(replicas, COUNTED_CHATS, WARM)
        time.sleep(2.0)
        before = database_s(server)
        [told] = _told(replicas, "rest", REST_S)
        spent_s = database_s(server) - before
    share = told["cpu_s"] / told["took_s"] * 100
    yield Figure("a replica at rest, part of a core", share, "%", at_most=0.5)
    yield Figure("… of the database's", spent_s / told["took_s"] * 100, "%")


def _growth(server: PostgresServer) -> Iterator[Figure]:
    """Yield how a turn's cost grows with the conversations that are there."""
    with _among(server, FEW) as few, _among(server, MANY) as many:
        less, more = _in_turns(server, few, many)
    for name, part in (("a replica", "cpu_ms"), ("the database", "database_ms")):
        ratio = _ratio(*([getattr(each, part) for each in rounds] for rounds in (more, less)))
        text = f"CPU of {name} per turn among {MANY:,} conversations, to {FEW}"
        yield Figure(text, ratio, "times", at_most=1.2)


@contextmanager
def _among(server: PostgresServer, count: int) -> Iterator[list["Replica"]]:
    """Run a replica that has so many conversations."""
    with _database(server) as url, _replicas([url]) as replicas:
        _talk(replicas, CHATS, WARM)
        copy_conversations(url, count)
        yield replicas


@contextmanager
def _database(server: PostgresServer) -> Iterator[str]:
    name = server.create()
    try:
        yield server.url(name)
    finally:
        server.drop(name)


class Replica:
    """A process of `scaling_replica`; what it shows for others' chats is handed on to them."""

    def __init__(self, folder: Path, url: str, number: int) -> None:
        command = [sys.executable, "-m", "tests.bench.scaling_replica"]
        self._process = subprocess.Popen(
            [*command, str(folder / f"{number}"), url, f"{number}"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._writing = threading.Lock()
        self.others: list[Replica] = []
        self._reader = threading.Thread(target=self._read, name=f"replica {number}")
        self._reader.start()
        self.answer()

    def tell(self, *told: Any) -> None:
        """Have it do something."""
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(f"{json.dumps(told)}\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return what it says when it has done it."""
        said = self._said.get()
        assert said is not None, "a replica ended; what it said stands above"
        return said

    def end(self) -> None:
        """Have it end, and wait for that."""
        if self._process.poll() is None:
            self.tell("end")
        self._process.wait(timeout=60)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "shown" in said:
                number, _, _ = said["shown"][0].partition("-")
                self.others[int(number) - 1].tell("shown", *said["shown"])
            else:
                self._said.put(said)
        self._said.put(None)


@contextmanager
def _replicas(urls: Sequence[str]) -> Iterator[list[Replica]]:
    """Run a replica for each URL, one after the other: the first one migrates."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas: list[Replica] = []
        for number, url in enumerate(urls, 1):
            replica = Replica(folder, url, number)
            stack.callback(replica.end)
            replica.others = replicas
            replicas.append(replica)
        yield replicas


def _told(replicas: Sequence[Replica], *task: Any) -> list[dict[str, Any]]:
    """Have all replicas do something at once; return what each says."""
    for each in replicas:
        each.tell(*task)
    return [each.answer() for each in replicas]


def _talk(replicas: Sequence[Replica], chats: int, turns: int) -> Taken:
    told = _told(replicas, "talk", chats // len(replicas), turns)
    return Taken(
        sum(each["turns"] for each in told),
        max(each["took_s"] for each in told),
        sum(each["cpu_s"] for each in told),
    )


def database_s(server: PostgresServer) -> float:
    """Return the processor time of all the server's processes so far, also of those that ended."""
    postmaster = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    used = _used(postmaster, with_children=True)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == postmaster:
            used += (int(fields[11]) + int(fields[12])) * _TICK_S
    return used


def _used(pid: int, *, with_children: bool) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    last = 15 if with_children else 13
    return sum(map(int, fields[11:last])) * _TICK_S
