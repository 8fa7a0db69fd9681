"""Which files of the product one warm "hello" on Telegram enters, from the update to the receipt.

The whole gateway runs, on the offline model, against the strict Bot API server. The first message
warms it up. What is done besides, now and then, does not count: a file has to be entered by each
of the messages that follow.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import yaml

from tests.house.bars import HELLO, Figure
from tests.support.bot_api import TOKEN, BotApi

ROOT = Path(__file__).resolve().parents[2]
_HELLOS = 20
_PERSON = 4711
_END_S = 120.0
"""Longer than it takes on the slowest machine."""

Span = tuple[int, int]


async def hello(home: Path) -> Figure:
    """Run a gateway in a folder, write to it, and return how many files that needs."""
    written = home / "entered.json"
    async with asyncio.timeout(_END_S), BotApi() as api:
        settings = {
            "access": {"mode": "open"},
            "platforms": {"telegram": {"token": TOKEN, "base_url": api.root}},
        }
        (home / "parley.yaml").write_text(yaml.safe_dump(settings))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.house.traced", str(written), "run", "--port", "0"),
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PARLEY_HOME": str(home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            spans = await _spans(api, process)
        finally:
            process.terminate()
            await process.communicate()
        assert api.violations == []
    entered: dict[str, list[int]] = json.loads(written.read_text())
    files = sorted(file for file, at in entered.items() if all(_any_in(at, it) for it in spans))
    return Figure(HELLO, len(files), files)


async def _spans(api: BotApi, process: asyncio.subprocess.Process) -> list[Span]:
    """Say hello, and again whenever it is answered; return when, but for the first time."""
    await _logged(process, "gateway_ready")
    spans: list[Span] = []
    for _ in range(1 + _HELLOS):
        begun = int(time.monotonic() * 1000)
        api.push_text(_PERSON, "hello")
        await _logged(process, "message_sent")
        spans.append((begun, int(time.monotonic() * 1000)))
    return spans[1:]


async def _logged(process: asyncio.subprocess.Process, event: str) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        if json.loads(line)["event"] == event:
            return
    raise AssertionError(f"the gateway ended before {event}")


def _any_in(moments: list[int], span: Span) -> bool:
    return any(span[0] <= each <= span[1] for each in moments)
