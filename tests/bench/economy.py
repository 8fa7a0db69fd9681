"""What tool loops cost with a summary model, beside 0.5: the same loops, prices and cache rules.

Both play the loops through their own path (tests/bench/loop_player.py), at a window of 200K tokens,
with Claude Sonnet 4.5 and the billing simulator; summaries are written by Claude Haiku 4.5, or by
the model itself. 0.5 comes from git; it runs with the interpreter of this checkout.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.models.catalog import Prices, find_facts
from tests.bench.figures import Figure, LeftOut

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "4ba95c6"
"""The last commit of 0.5."""
PLAYER = Path(__file__).with_name("loop_player.py")
LOOPS = {"steps of 1,200 tokens": (600, 280), "steps of 3,700 tokens": (250, 900)}
"""Steps, and words of a result on average."""
WRITERS = {"claude-haiku-4-5": "a small summary model", "main": "the model itself"}
MODEL = "claude-sonnet-4-5"
MOST = 0.84
COLUMNS = ("0.5", "now", "ratio", "bar", "")
WITHIN_S = 900


def measure() -> Iterator[Figure | LeftOut]:
    """Yield the input cost of each loop and writer, beside 0.5."""
    with tempfile.TemporaryDirectory() as scratch:
        before = Path(scratch) / "before"
        try:
            packed = subprocess.run(
                ("git", "archive", "--format=tar", RELEASE),
                cwd=ROOT,
                capture_output=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            yield LeftOut("beside 0.5", f"this clone does not have {RELEASE}")
            return
        before.mkdir(exist_ok=True)
        subprocess.run(("tar", "-x", "-C", before), input=packed.stdout, check=True)
        for name, (steps, words) in LOOPS.items():
            file = Path(scratch) / f"{steps}.json"
            file.write_text(json.dumps(tool_loop(steps, words)), "utf-8")
            for writer, told in WRITERS.items():
                old, new = (input_usd(_played(tree, writer, file)) for tree in (before, ROOT))
                cells = (f"${old:.2f}", f"${new:.2f}", f"{new / old:.2f}", f"≤ {MOST}")
                figure = Figure(f"{name}, summaries by {told}", new / old, "", at_most=MOST)
                yield figure.showing(*cells, figure.verdict[1])


def tool_loop(steps: int, words: int) -> list[dict[str, Any]]:
    """Return a question and so many steps, each of which reads something; the same each time."""
    chance = random.Random(7)  # noqa: S311 - made-up results
    lines: list[dict[str, Any]] = [
        {"role": "user", "content": "Migrate every module, step by step."}
    ]
    for n in range(steps):
        arguments = json.dumps({"path": f"src/m{n}.py"})
        call = {"name": "read_file", "arguments": arguments}
        calls = [{"id": f"c{n}", "type": "function", "function": call}]
        lines.append({"role": "assistant", "content": f"Reading module {n}.", "tool_calls": calls})
        size = int(chance.expovariate(1 / words)) + 20
        text = " ".join(f"w{chance.randrange(900):03d}" for _ in range(size))
        lines.append({"role": "tool", "tool_call_id": f"c{n}", "content": f"module {n}: {text}"})
    return [*lines, {"role": "assistant", "content": "All done."}]


def _played(tree: Path, writer: str, file: Path) -> dict[str, Any]:
    ran = subprocess.run(
        (sys.executable, PLAYER, writer, file),
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert not found["problems"], "an answer is missing"
    return found


def input_usd(found: Mapping[str, Any]) -> float:
    """Return what requests and summaries have read and written into the cache, in US dollars."""
    asked = _usd(found["asked"], _prices(MODEL))
    return asked + sum(_usd(usage, _prices(name)) for name, usage in found["summaries"].items())


def _usd(usage: Mapping[str, int], prices: Prices) -> float:
    input_usd = usage["input"] * prices.input + usage["read"] * prices.cache_read
    return (input_usd + usage["write"] * prices.cache_write_5m) / 1e6


def _prices(name: str) -> Prices:
    facts = find_facts(name)
    assert facts is not None
    assert facts.prices is not None
    return facts.prices
