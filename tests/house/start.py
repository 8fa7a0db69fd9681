"""How many modules a start imports: what costs is counted, for seconds are the machine's.

A new Python imports what starts have in common; each start goes on in a fork of it.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.storage.maintenance import upgrade
from tests.house.bars import APP, FIRST, HELP, READY, READY_TELEGRAM
from tests.house.figures import Figure
from tests.support.bot_api import TOKEN, BotApi

ROOT = Path(__file__).resolve().parents[2]
STARTED = (APP, HELP, READY, READY_TELEGRAM, FIRST)
"""The names of all figures, in their order."""
_HELP = """
import contextlib, os, runpy, sys
sys.argv = ['parley', '--help']
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, 'w')):
    runpy.run_module('gateway', run_name='__main__')
print(*sys.modules)
"""
_STARTS = """
import json, os, signal, sys
import gateway.app

def tell(modules):
    os.write(told, (" ".join(modules) + chr(10)).encode())

def welcome(*_):
    tell(sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

def in_fork(start):
    if (pid := os.fork()) == 0:
        start()
        sys.exit()
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit(f"a start ended with {code}")

def until_ready():
    from gateway.cli import main, run
    run._welcome = welcome
    sys.argv = ["parley", "run", "--port", "0"]
    main.main()

def with_telegram():
    os.environ.update(json.loads(sys.argv[1]))
    until_ready()

def first_message():
    import runpy
    os.dup2(told, 1)
    runpy.run_module("tests.house.path", run_name="__main__")

told = os.dup(1)
os.dup2(2, 1)
tell(sys.modules)
for start in (until_ready, with_telegram, first_message):
    in_fork(start)
"""
"""Tells one line for each start; `parley run` ends itself as soon as it is ready."""


def imported() -> list[Figure]:
    """Count the modules of each start; the places are top-level packages, the largest first."""
    helped = subprocess.run(
        [sys.executable, "-c", _HELP], cwd=ROOT, capture_output=True, text=True, check=True
    )
    app, ready, telegram, first = asyncio.run(_starts())
    return [
        _counted(APP, app),
        _counted(HELP, helped.stdout.split()),
        _counted(READY, ready),
        _counted(READY_TELEGRAM, telegram),
        Figure(FIRST, len(first), first),
    ]


async def _starts() -> list[list[str]]:
    """Return what starts import, on a database that is there."""
    with TemporaryDirectory() as home:
        async with BotApi() as bot_api:
            telegram = {
                "PARLEY_PLATFORMS__TELEGRAM__TOKEN": TOKEN,
                "PARLEY_PLATFORMS__TELEGRAM__BASE_URL": bot_api.root,
            }
            # A start that makes the database imports what migrates it, too.
            upgrade(Path(home) / "parley/parley.db")
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _STARTS, json.dumps(telegram)),
                cwd=ROOT,
                env={"HOME": home, "PARLEY_HOME": f"{home}/parley"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            told, log = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"parley ended before it was ready: {log.decode()}")
    return [line.split() for line in told.decode().split("\n")[:-1]]


def _counted(name: str, modules: Sequence[str]) -> Figure:
    packages = Counter(module.partition(".")[0] for module in modules)
    return Figure(name, len(modules), [f"{count:4} {top}" for top, count in packages.most_common()])
