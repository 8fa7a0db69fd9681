"""Parley in `bench_gateway.py` of ../shared/peerbench: the whole gateway, a null platform.

Named by `GW_OURS_MODULE=gw_ours`. The model is `tests.bench.echo`; nothing else is replaced, each
message is durable (synchronous=FULL) and JSON logs are written. `queue.debounce_ms` is 0.
"""

import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from adapters.messages import Outgoing
from agent.messages import ChatMessage
from agent.models.base import ChatModel


class Gateway:
    name = "ours"
    skip_rapid = False
    import_seconds = 0.0
    on_send: Any = None

    async def start(self, home: str) -> None:
        """Import, build and start."""
        started = time.perf_counter()
        from tests.bench import running  # noqa: PLC0415 - the import is measured

        self.import_seconds = time.perf_counter() - started
        self._running = running
        self._stack = AsyncExitStack()
        model = await self.build_model()
        self._gateway = await self._stack.enter_async_context(
            running.running(Path(home), self._sent, model)
        )

    async def build_model(self) -> ChatModel:
        """Return the model: an echo in this process, with a window that holds the whole session.

        Hermes with its agent replaced compacts nothing either.
        """
        from tests.bench.overhead import Wide  # noqa: PLC0415 - after the measured import

        return Wide()

    def _sent(self, message: Outgoing) -> None:
        self.on_send(message.address.chat, message.payload)

    async def submit(self, chat: str, text: str, mid: int) -> None:
        """Admit one message, durably."""
        message = self._running.inbound(str(chat), str(mid), text)
        await self._gateway.intake.accept([message])

    async def seed_history(self, chat: str, n: int) -> None:
        """Give the chat `n` stored messages, the same that Hermes gets."""
        from tests.bench.seeding import seed  # noqa: PLC0415 - after the measured import

        first = self._running.inbound(str(chat), f"seed:{chat}", "seed")
        await self._gateway.database.write(seed, first, _corpus(n))

    async def stop(self) -> None:
        """Stop all parts."""
        await self._stack.aclose()


def _corpus(n: int) -> list[ChatMessage]:
    import paths  # type: ignore[import-not-found] # noqa: PLC0415 - a module of peerbench

    corpus = json.loads(Path(paths.CORPORA, "synth_1000.json").read_text(encoding="utf-8"))
    messages: list[ChatMessage] = [each for each in corpus if each["role"] != "system"][:n]
    for message in messages:
        message["content"] = str(message.get("content") or "")[:300]
    return messages
