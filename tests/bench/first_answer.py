"""A stranger's first minutes, timed by phase: `git clone`, the install, set-up, start, an answer.

The clone is of this checkout's last commit, with an empty home and the package cache of who runs
this. Before it the cache is filled by one install that does not count. Telegram and the model are
loopback servers that answer at once; the stranger types as fast as a program can.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.support.anthropic_server import AnthropicServer
from tests.support.bot_api import BotApi
from tests.support.first_answer import KEY, ROOT, Stranger, environment, walk
from tests.support.model_server import Reply

ANSWER_S = 120.0
READY_S = 45.0
ANSWER = "I am here."
INSTALL = (".venv/.installed-run",)
"""The target of make behind `make run`."""


def measure() -> Iterator[Figure]:
    """Yield the seconds of each phase, and their sums beside what was promised."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        _install(_clone(home, "warm"), home)
        shutil.rmtree(home / "warm")
        began = time.perf_counter()
        tree = _clone(home, "parley")
        cloned_s = time.perf_counter() - began
        installed_s, cpu_s = _install(tree, home)
        phases = asyncio.run(_walk(tree, home))
    yield Figure("git clone", cloned_s, "s")
    yield Figure("make run: the install", installed_s, "s")
    yield Figure("make run: the install, CPU", cpu_s, "s")
    for name, seconds in phases.items():
        yield Figure(name, seconds, "s")
    ready_s = installed_s + phases["parley run, until ready"]
    yield Figure("`make run` on a fresh clone, until ready", ready_s, "s", at_most=READY_S)
    whole_s = cloned_s + installed_s + sum(phases.values())
    yield Figure("all, from `git clone` to the answer", whole_s, "s", at_most=ANSWER_S)


def _clone(home: Path, name: str) -> Path:
    command = ["git", "clone", "--quiet", str(ROOT), str(home / name)]
    subprocess.run(command, check=True, capture_output=True)
    return home / name


def _install(tree: Path, home: Path) -> tuple[float, float]:
    """Return the seconds, and the processor seconds, of what `make run` installs."""
    began, before = time.perf_counter(), os.times()
    caches = {"PIP_CACHE_DIR": str(home / "pip"), "UV_CACHE_DIR": str(home / "uv")}
    environ = {**os.environ, "HOME": str(home / "empty"), **caches}
    subprocess.run(["make", *INSTALL], cwd=tree, env=environ, check=True, capture_output=True)
    after = os.times()
    cpu_s = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    return time.perf_counter() - began, cpu_s


async def _walk(tree: Path, home: Path) -> dict[str, float]:
    async with BotApi() as api, AnthropicServer(KEY, default=Reply(text=ANSWER)) as model:
        program = (str(tree / ".venv/bin/parley"),)
        stranger = Stranger(home / "parley-home", environment(api, model), program)
        if await walk(stranger, api) != ANSWER:
            raise RuntimeError("another text was answered")
    return stranger.phases
