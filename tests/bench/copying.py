"""How long `parley db copy` takes, and how much memory.

`python -m tests.bench.copying [TURNS]`: a database as service leaves one (aged_database.py) with so
many turns, of which each has two messages and those with a tool four; 42,000 are 100,000 messages.
The server is the tests' own on the same machine; it syncs nothing.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.aged_database import Size, make
from tests.bench.figures import Figure
from tests.support.postgres import postgres_server

TURNS = 42_000
TURNS_OF_A_CHAT = 10


def measure(turns: int) -> Iterator[Figure]:
    """Yield time and memory of a copy."""
    with tempfile.TemporaryDirectory() as name, postgres_server() as server:
        file = Path(name) / "parley.db"
        make(file, Size(turns // TURNS_OF_A_CHAT, turns))
        title = f"{turns:,} turns, {file.stat().st_size / 1e6:,.0f} MB"
        target = server.url(server.create())
        took_s, used_s, rss_mb = _copied(Path(name) / "home", f"sqlite:///{file}", target)
        yield Figure(title, took_s, "s")
        yield Figure(f"{title}: processor time of the command", used_s, "s")
        yield Figure(f"{title}: most memory", rss_mb, "MB")


def _copied(home: Path, source: str, target: str) -> tuple[float, float, float]:
    """Run the command in a process of its own.

    Returns:
        Seconds, processor time, and megabytes at most.
    """
    begun = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "--home",
        str(home),
        "db",
        "copy",
        source,
        target,
    ]
    process = os.posix_spawn(sys.executable, command, os.environ)
    _, status, used = os.wait4(process, 0)
    assert status == 0
    # Linux counts kilobytes. Source: getrusage(2).
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main(arguments: list[str]) -> int:
    """Print the figures."""
    for figure in measure(int(arguments[0]) if arguments else TURNS):
        print(figure, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
