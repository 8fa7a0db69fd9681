"""How many modules a start imports: what costs is counted, for seconds are the machine's."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.house.bars import APP, HELP
from tests.house.figures import Figure

ROOT = Path(__file__).resolve().parents[2]
_STARTS = {
    APP: "import gateway.app",
    HELP: (
        "import contextlib, os, runpy; sys.argv = ['parley', '--help']\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, 'w')):\n"
        "    runpy.run_module('gateway', run_name='__main__')"
    ),
}
"""Figure → what is run in a new Python."""


def imported() -> list[Figure]:
    """Count the modules of each start; the places are top-level packages, the largest first."""
    return [_counted(name, code) for name, code in _STARTS.items()]


def _counted(name: str, code: str) -> Figure:
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    modules = ran.stdout.split()
    packages = Counter(module.partition(".")[0] for module in modules)
    return Figure(name, len(modules), [f"{count:4} {top}" for top, count in packages.most_common()])
