"""`parley run` as a subprocess: real command line, real settings, nothing inherited but the path.

Its standard output is read as the log that it is; tests wait for events in it, not for time.
"""

import asyncio
import itertools
import json
import os
import secrets
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import psycopg
import yaml

from tests.support.engines import storage_of
from tests.support.forks import Forked
from tests.support.thorough import ALL

_ROOT = Path(__file__).resolve().parents[2]
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_END_S = 200.0
"""Longer than anything takes on the slowest machine: it ends what hangs, below pytest's limit."""
_LONGEST_LINE_BYTES = 1 << 24

DATABASE_URL = "DATABASE_URL"
"""The variable that tells a process where its database is, where that is on a server."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


class ParleyProcess:
    """A gateway in a process of its own; use as an async context manager.

    Leaving it stops the process. Nothing may have been logged with a traceback then.

    At the desk it is forked from a process that has imported everything, but where it is to be
    `fresh`; in `make test-all` each is a new Python.

    Its database is of the engine that the test runs on.

    Args:
        home: PARLEY_HOME.
        settings: Written to `parley.yaml` there at each start.
        environ: Variables; no others are set but PARLEY_HOME, HOME, PATH and COLUMNS.
        port: Where it listens; 0 for any free port.
        descriptors: Hard limit of its file descriptors; None for that of the tests.
        fresh: Whether it is always a new Python, as when a person types the command.

    Attributes:
        port: Where it listens, also after a `restart`.
        records: The lines of its log, of all its lives, in order.
        stderr: The lines that were written beside the log.
        storage: What its settings say of its database, whatever else they say.
        program: What Python is called with.
        tree: Where its code is; this checkout, or another one's.
    """

    program: tuple[str, ...] = ("-m", "gateway.cli.main")
    tree: Path = _ROOT

    def __init__(
        self,
        home: Path,
        settings: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
        port: int = 0,
        descriptors: int | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        is_own = self.program == ParleyProcess.program
        self._is_fresh = fresh or ALL or descriptors is not None or not is_own
        limit = f'ulimit -n {descriptors}; exec "$@"'
        self._limited = [] if descriptors is None else ["/bin/sh", "-c", limit, "sh"]
        self.home = home
        self.settings = settings or {}
        self.port = port or free_port()
        self.records: list[Record] = []
        self.stderr: list[str] = []
        self._environ = environ or {}
        self.storage: dict[str, Any] = {}
        if url := storage_of(home).get("url"):
            self._environ = {DATABASE_URL: url, **self._environ}
            self.storage = {"storage": {"url": f"env:{DATABASE_URL}"}}
        self._changed = asyncio.Condition()
        self._process: asyncio.subprocess.Process | Forked | None = None
        self._life: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException as exc:
            await self.__aexit__(type(exc))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.terminate()
                self.check()
        finally:
            await self.kill9()

    def check(self) -> None:
        """Fail if anything was logged with a traceback so far."""
        assert [record for record in self.records if "exception" in record] == []
        assert "Traceback" not in "\n".join(self.stderr)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        known = len(self.records)
        await self.spawn()
        await self.wait_until(lambda: self.named("gateway_ready", since=known) or not self.running)
        ready = self.named("gateway_ready", since=known)
        assert ready, "\n".join(["parley run ended:", *self.stderr])

    async def spawn(self) -> None:
        """Start the process without waiting for anything."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.configure(self.settings)
        self._process = await self.execute("run", "--port", str(self.port))
        life = self._follow(self._process)
        self._life = asyncio.get_running_loop().create_task(life, name="parley run")

    def configure(self, settings: dict[str, Any] | str) -> None:
        """Replace its settings file, but for its database; or by a text as it is.

        At once, as an editor does: a gateway that is stopped by the machine between two looks at a
        file that is being written would go by an empty one.
        """
        is_text = isinstance(settings, str)
        text = settings if is_text else yaml.safe_dump(self.storage | settings)
        draft = self.home / "parley.yaml.draft"
        draft.write_text(text)
        draft.replace(self.home / "parley.yaml")

    async def restart(self) -> None:
        """Start it again on the same port, after its end."""
        assert not self.running
        await self.start()

    async def kill9(self) -> None:
        """Kill it, if it lives."""
        if self.running:
            self.signal(signal.SIGKILL)
        await self.ended()

    async def terminate(self) -> int:
        """Stop it as a service manager does; returns its exit code."""
        if self.running:
            self.signal(signal.SIGTERM)
        return await self.ended()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Return its exit code when it has ended and all it wrote was read."""
        assert self._process is not None
        assert self._life is not None
        async with asyncio.timeout(_END_S):
            await asyncio.shield(self._life)
        assert self._process.returncode is not None
        return self._process.returncode

    async def run(self, *arguments: str, stdin: str = "") -> Finished:
        """Run another command of `parley` on the same PARLEY_HOME to its end."""
        process = await self.execute(*arguments)
        try:
            async with asyncio.timeout(_END_S):
                out, err = await process.communicate(stdin.encode())
        except TimeoutError:
            process.kill()
            await process.communicate()
            raise
        return Finished(process.returncode or 0, out.decode(), err.decode())

    def named(self, event: str, *, since: int = 0, **fields: Any) -> list[Record]:
        """Return the log's records of this event with these fields."""
        return [
            record
            for record in self.records[since:]
            if record["event"] == event and fields.items() <= record.items()
        ]

    async def event(self, name: str, *, count: int = 1, **fields: Any) -> Record:
        """Wait until the event was logged `count` times, in all its lives; return that record."""
        await self.wait_until(lambda: len(self.named(name, **fields)) >= count)
        return self.named(name, **fields)[count - 1]

    async def wait_until(self, holds: Callable[[], object], within_s: float = _END_S) -> None:
        """Wait until it holds; it is looked at after every line, and at the end of the process."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: bool(holds()))

    async def health(self, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
        """Return status and body of a health route, with the details that the Unix socket has."""
        connector = aiohttp.UnixConnector(str(self.home / "parley.sock"))
        async with (
            aiohttp.ClientSession("http://parley", connector=connector) as http,
            http.get(path) as response,
        ):
            return response.status, await response.json()

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what a query finds in the database; each value stands for a `?`."""
        url = self._environ.get(DATABASE_URL)
        if url is not None:
            with psycopg.connect(url) as server:
                return server.execute(query.replace("?", "%s"), values).fetchall()
        path = f"file:{self.home / 'parley.db'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True)) as books:
            return books.execute(query, values).fetchall()

    def transcript(self, conversation: int = 1) -> list[tuple[str, str]]:
        """Return role and text of a conversation's messages; a tool call is named."""
        query = "SELECT body FROM message WHERE conversation = ? ORDER BY seq"
        bodies = [json.loads(body) for (body,) in self.rows(query, conversation)]
        return [(body["role"], _words(body)) for body in bodies]

    async def execute(self, *arguments: str) -> asyncio.subprocess.Process | Forked:
        """Start a command of `parley` on the same PARLEY_HOME."""
        environ = {
            "PATH": _SYSTEM_PATH,
            "HOME": str(self.home),
            "PARLEY_HOME": str(self.home),
            "COLUMNS": "200",
            **self._environ,
        }
        if not self._is_fresh:
            return await Forked.start(arguments, environ, _LONGEST_LINE_BYTES)
        return await asyncio.create_subprocess_exec(
            *self._limited,
            sys.executable,
            *self.program,
            *arguments,
            cwd=self.tree,
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE_BYTES,
        )

    async def _follow(self, process: asyncio.subprocess.Process | Forked) -> None:
        """Read what the process writes until it has ended."""
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(process.stdout, self._take_record), name="stdout")
            tasks.create_task(self._read(process.stderr, self.stderr.append), name="stderr")
        await process.wait()
        await self._notify()

    async def _read(self, stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
        # Who was killed may have begun a line.
        while (line := await stream.readline()).endswith(b"\n"):
            take(line.decode().rstrip("\n"))
            await self._notify()

    def _take_record(self, line: str) -> None:
        self.records.append(json.loads(line))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


NOT_GIVEN = (15_000, 32_000)
"""Below what Linux gives to connections. Source: ip(7), ip_local_port_range."""
_OF_WORKER = 1_000
# Not of `random`: Hypothesis seeds that, so that two runs would have the same.
_next = itertools.count(secrets.randbelow(_OF_WORKER))


def free_port() -> int:
    """Return a TCP port that nobody listens on, and that nobody else in this run is told of.

    One that the system picks may be given to a connection of another test before it is used. Those
    of a worker of xdist are its own, and the same one comes again after a thousand others.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = NOT_GIVEN[0] + worker * _OF_WORKER % (NOT_GIVEN[1] - NOT_GIVEN[0])
    while True:
        port = first + next(_next) % _OF_WORKER
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def _words(body: dict[str, Any]) -> str:
    calls = [call["function"]["name"] for call in body.get("tool_calls", [])]
    return f"calls {', '.join(calls)}" if calls else str(body["content"])
