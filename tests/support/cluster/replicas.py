"""Replicas of `parley run` as processes: each with a PARLEY_HOME of its own, started again.

What they share: one database, one web token, one address, and the folder of the workspaces.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Before each restart in a row; the last one from then on."""
LIVED_S = 30.0
"""Whoever lives for so long begins with the first pause again."""
STOPS_IN_S = 45.0
"""More than `queue.grace_s` and the last deliveries."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all replicas have in common.

    Attributes:
        folder: Where their homes are made.
        database_url: Of PostgreSQL.
        address: Where browsers come to.
        settings: Beside what is said here.
    """

    folder: Path
    database_url: str
    address: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    settings: Mapping[str, Any] = field(default_factory=dict)

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables of a replica: the secrets, and what it needs of this process."""
        given = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
        return given | {
            "HOME": str(home),
            "PARLEY_HOME": str(home),
            "PARLEY_STORAGE__URL": self.database_url,
            "PARLEY_WEB__TOKEN": self.token,
        }

    def written(self, home: Path) -> None:
        """Make a home with its settings."""
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        workspaces = self.folder / "shared" / "workspaces"
        workspaces.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = {
            "model": {"provider": "offline"},
            "web": {"public_url": self.address},
            "tools": {"workspace": {"root": str(workspaces)}},
            "storage": {"migrate": "wait"},
            **self.settings,
        }
        (home / "parley.yaml").write_text(yaml.safe_dump(settings))


async def command(shared: Shared, name: str, *arguments: str) -> str:
    """Run a command of `parley` to its end; returns what it prints.

    Raises:
        RuntimeError: It failed; the message is what it said.
    """
    home = shared.folder / name
    shared.written(home)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", *arguments),
        cwd=ROOT,
        env=shared.environment(home),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"parley {' '.join(arguments)}: {err.decode().strip()}")
    return out.decode()


@dataclass(slots=True)
class Replica:
    """One replica; `lives` counts how often it was started."""

    shared: Shared
    name: str
    port: int
    lives: int = 0
    process: asyncio.subprocess.Process | None = None
    _stopping: bool = False

    @property
    def home(self) -> Path:
        """Its PARLEY_HOME."""
        return self.shared.folder / self.name

    async def run(self) -> None:
        """Start it, and start it again whenever it ends, until `stop`."""
        self.shared.written(self.home)
        loop, in_a_row = asyncio.get_running_loop(), 0
        while not self._stopping:
            began = loop.time()
            self.lives += 1
            await self._live()
            if self._stopping:
                return
            in_a_row = 0 if loop.time() - began > LIVED_S else in_a_row + 1
            pause_s = PAUSES_S[min(in_a_row, len(PAUSES_S)) - 1] if in_a_row else PAUSES_S[0]
            print(f"  {self.name} ended; it starts again in {pause_s:g} s", flush=True)
            await asyncio.sleep(pause_s)

    async def _live(self) -> None:
        with (self.home / "output.log").open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.cli.main", "run", "--port", str(self.port)),
                cwd=ROOT,
                env=self.shared.environment(self.home),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=output,
                # A Ctrl-C at the terminal is ours: replicas are stopped in order.
                start_new_session=True,
            )
        await self.process.wait()

    async def stop(self) -> None:
        """Stop it as a service manager does; kill it where it does not end in time."""
        self._stopping = True
        process = self.process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOPS_IN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()


@asynccontextmanager
async def running(replicas: list[Replica]) -> AsyncIterator[None]:
    """Run all of them meanwhile; at the end they are stopped side by side."""
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(each.run(), name=each.name) for each in replicas]
        try:
            yield
        finally:
            await asyncio.gather(*(each.stop() for each in replicas))
            for each in working:
                each.cancel()
