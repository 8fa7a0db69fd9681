"""Parley in `bench_gateway.py` with its real OpenAI client against peerbench's stub model server.

Named by `GW_OURS_MODULE=gw_ours_full`; compare with the row `hermes_full`. Nothing is replaced but
the platform.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path

from typing_extensions import override

sys.path.insert(0, str(Path(__file__).parent))
import gw_ours  # type: ignore[import-not-found]
import paths  # type: ignore[import-not-found]

from agent.models.base import ChatModel


class Gateway(gw_ours.Gateway):  # type: ignore[misc] # its module has no name of its own
    name = "ours_full"

    @override
    async def build_model(self) -> ChatModel:
        from pydantic import SecretStr  # noqa: PLC0415 - the import is measured

        from agent.models.factory import build_models  # noqa: PLC0415
        from agent.settings import ModelSettings  # noqa: PLC0415

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        delay = os.environ.get("STUB_DELAY", "0")
        script = f"{paths.ROOT}/stub_llm_server.py"
        self._server = await asyncio.create_subprocess_exec(
            paths.BENCH_PY, script, str(port), delay
        )
        await _listening(port)
        settings = ModelSettings(
            provider="openai",
            name="stub",
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key=SecretStr("x"),
        )
        return build_models(settings)[0]

    @override
    async def stop(self) -> None:
        await super().stop()
        self._server.terminate()
        await self._server.wait()


async def _listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
