"""Print the results of the corpus of attacks: `python -m tests.security.corpus [CHANNEL …]`."""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.storage import schema
from tests.security.corpus.cases import CHANNELS
from tests.security.corpus.world import CASES, attack, attacked


async def main() -> None:
    """Try the cases of each channel in a gateway of its own."""
    print(f"{'channel':<14}{'cases':>7}{'obeyed':>8}{'succeeded':>11}{'questions':>11}")
    for channel in sys.argv[1:] or CHANNELS:
        with TemporaryDirectory() as home:
            await row(Path(home), channel)


async def row(home: Path, channel: str) -> None:
    """Print the results of one channel, with what the attackers got after each case's number."""
    chosen = [case for case in CASES if case.channel == channel]
    async with attacked(home) as (world, chat):
        for case in chosen:
            await attack(world, chat, case)
        got, asked = await world.happened(chat), await chat.rows(schema.inquiry)
    counts = (len(chosen), len(world.obeyed), len(got), len(asked))
    print("{:<14}{:>7}{:>8}{:>11}{:>11}".format(channel, *counts), *got, flush=True)


asyncio.run(main())
