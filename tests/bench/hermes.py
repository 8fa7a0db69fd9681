"""Parley's gateway beside Hermes': the worker of ../shared/peerbench runs both, in turns.

Each side has an interpreter of its own; Parley's is tests/bench/peers. With a stub agent Hermes
stores two messages for each question, and Parley runs its whole turn with an echo for a model; with
the whole agent nothing is replaced but the platform and the model's server.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.figures import Figure, LeftOut
from tests.support.shared import SHARED

COLUMNS = ("Hermes", "Parley", "ratio", "bar", "")
ROUNDS = 3
WITHIN_S = 900
PEERS = Path(__file__).parent / "peers"
_SESSION = "sequential_chat_with_1000_messages"


@dataclass(frozen=True, slots=True)
class Pair:
    """A way to run both sides.

    Attributes:
        hermes: What peerbench calls it.
        parley: The module of Parley's side.
        figures: Name → place in the worker's result, unit, bar of the ratio (None for none).
    """

    name: str
    hermes: str
    parley: str
    messages: int
    rounds: int
    figures: Mapping[str, tuple[tuple[str, str], str, float | None]]


STUB = Pair(
    "stub agent",
    "hermes",
    "gw_ours",
    300,
    ROUNDS,
    {
        "p50 per message": (("sequential_one_chat", "p50_ms"), "ms", None),
        "p99 per message": (("sequential_one_chat", "p99_ms"), "ms", None),
        "CPU per message": (("sequential_one_chat", "cpu_ms_per_message"), "ms", 0.40),
        "50 chats at once": (("burst_one_each", "messages_per_second"), "/s", None),
        "session of 1,000 messages, p50": ((_SESSION, "p50_ms"), "ms", None),
        "session of 1,000 messages, p99": ((_SESSION, "p99_ms"), "ms", None),
    },
)
WHOLE = Pair(
    "whole agent",
    "hermes_full",
    "gw_ours_full",
    100,
    1,
    {
        "p50 per message": (("sequential_one_chat", "p50_ms"), "ms", None),
        "CPU per message": (("sequential_one_chat", "cpu_ms_per_message"), "ms", None),
        "50 chats at once": (("burst_one_each", "messages_per_second"), "/s", None),
        "session of 1,000 messages, p50": ((_SESSION, "p50_ms"), "ms", None),
    },
)


def measure() -> Iterator[Figure | LeftOut]:
    """Yield both sides of each figure, and their ratio."""
    home = Path(os.environ.get("PEERBENCH_HOME", Path.home() / ".cache" / "peerbench"))
    python = home / "venvs" / "hermes" / "bin" / "python"
    if SHARED is None or not python.exists():
        yield LeftOut("beside Hermes", f"{python} is not there; peerbench/setup.sh makes it")
        return
    for pair in (STUB, WHOLE):
        sides: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(pair.rounds):
            sides[0].append(_run(home, python, pair.hermes, pair))
            sides[1].append(_run(home, Path(sys.executable), "ours", pair))
        yield from compared(pair, *sides)


def compared(pair: Pair, hermes: list[Any], parley: list[Any]) -> Iterator[Figure]:
    """Yield the medians of what the workers have told."""
    for name, ((part, key), unit, bar) in pair.figures.items():
        theirs, ours = (median(each[part][key] for each in side) for side in (hermes, parley))
        is_rate = unit == "/s"
        ratio = ours / theirs
        figure = Figure(
            f"{pair.name}: {name}",
            ratio,
            "",
            at_least=bar if is_rate else None,
            at_most=None if is_rate else bar,
        )
        cells = (f"{theirs:.4g} {unit}", f"{ours:.4g} {unit}", f"{ratio:.2f}", *figure.verdict)
        yield figure.showing(*cells)


def _run(home: Path, python: Path, peer: str, pair: Pair) -> Any:
    """Run one side in a process of its own; return what its worker has told."""
    assert SHARED is not None
    bench = SHARED.parent / "peerbench"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = {"warm": 20, "n": pair.messages, "chats": 50, "history": 1000}
        (folder / "asked.json").write_text(json.dumps(asked))
        (folder / "home").mkdir()
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": f"{folder}/home",
            "HERMES_HOME": f"{folder}/hermes",
            "PEERBENCH_HOME": str(home),
            "PEER_OURS_PATH": str(PEERS),
            "GW_OURS_MODULE": pair.parley,
            # The harness may lie where nothing can be written.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = (
            python,
            bench / "gw_worker.py",
            peer,
            folder / "asked.json",
            folder / "told.json",
        )
        ran = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if not (folder / "told.json").exists():
            raise RuntimeError(f"{peer} told nothing: {ran.stderr[-1000:]}")
        return json.loads((folder / "told.json").read_text())
