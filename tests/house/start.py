"""How many modules a start imports: what costs is counted, for seconds are the machine's."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.storage.maintenance import upgrade
from tests.house.bars import APP, HELP, READY, READY_TELEGRAM
from tests.house.figures import Figure
from tests.support.bot_api import TOKEN, BotApi

ROOT = Path(__file__).resolve().parents[2]
STARTED = (APP, HELP, READY, READY_TELEGRAM)
"""The names of all figures, in their order."""
_IMPORTS = {
    APP: "import gateway.app",
    HELP: (
        "import contextlib, os, runpy; sys.argv = ['parley', '--help']\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, 'w')):\n"
        "    runpy.run_module('gateway', run_name='__main__')"
    ),
}
"""Figure → what is run in a new Python."""
_RUN = """
import os, signal, sys
from gateway.cli import main, run

def welcome(*_):
    sys.stderr.write(" ".join(sys.modules))
    os.kill(os.getpid(), signal.SIGTERM)

run._welcome = welcome
sys.argv = ["parley", "run", "--port", "0"]
main.main()
"""
"""`parley run`, which ends itself as soon as it is ready."""


def imported() -> list[Figure]:
    """Count the modules of each start; the places are top-level packages, the largest first."""
    counted = [_counted(name, _modules(code)) for name, code in _IMPORTS.items()]
    return [*counted, *asyncio.run(_until_ready())]


def _modules(code: str) -> Sequence[str]:
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.split()


async def _until_ready() -> list[Figure]:
    """Count what whole starts import, on a database that is there."""
    with TemporaryDirectory() as home:
        async with BotApi() as bot_api:
            environ = {"HOME": home, "PARLEY_HOME": f"{home}/parley"}
            telegram = {
                "PARLEY_PLATFORMS__TELEGRAM__TOKEN": TOKEN,
                "PARLEY_PLATFORMS__TELEGRAM__BASE_URL": bot_api.root,
            }
            # A start that makes the database imports what migrates it, too.
            upgrade(Path(home) / "parley/parley.db")
            return [
                _counted(READY, await _run(environ)),
                _counted(READY_TELEGRAM, await _run(environ | telegram)),
            ]


async def _run(environ: Mapping[str, str]) -> Sequence[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _RUN),
        cwd=ROOT,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    log, modules = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"parley ended before it was ready: {log!r} {modules!r}")
    return modules.decode().split()


def _counted(name: str, modules: Sequence[str]) -> Figure:
    packages = Counter(module.partition(".")[0] for module in modules)
    return Figure(name, len(modules), [f"{count:4} {top}" for top, count in packages.most_common()])
