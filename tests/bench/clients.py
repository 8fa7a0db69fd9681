"""Parley over the real Telegram and OpenAI clients, beside a loop of these clients alone.

The loop polls, asks the model and sends, and does nothing else. Bot API and model are the strict
servers of the tests, in a process of their own together with the people who write: what is measured
is the CPU of the other process, all its threads, for messages that come one after another, each in
a chat of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
import yaml

from tests.bench.figures import Figure
from tests.support.bot_api import TOKEN, BotApi
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 5
CHATS = 60
ANSWER = "Your order is on its way and should be with you tomorrow."
SETTLES_S = 0.5
"""What follows a send (receipt, release) belongs to the message too."""
ANSWERED_WITHIN_S = 120.0
MOST_BESIDE_CLIENTS = 2.2
ALONE, PARLEY = "the clients alone", "Parley"


def measure() -> Iterator[Figure]:
    """Yield the CPU of a message on both sides, taken in turns, and their ratio."""
    found: dict[str, list[Round]] = {ALONE: [], PARLEY: []}
    for _ in range(ROUNDS):
        for name, rounds in found.items():
            rounds.append(_round(name))
    cpu_ms = {name: median(each.cpu_ms for each in rounds) for name, rounds in found.items()}
    for name, rounds in found.items():
        requests = median(each.requests for each in rounds)
        sent_kb = median(each.sent_kb for each in rounds)
        yield Figure(f"{name}: CPU per message", cpu_ms[name], "ms")
        yield Figure(f"{name}: requests to the Bot API per message", requests, "")
        yield Figure(f"{name}: sent to the model per message", sent_kb, "KB")
    ratio = cpu_ms[PARLEY] / cpu_ms[ALONE]
    yield Figure("CPU of Parley ÷ the clients alone", ratio, "", at_most=MOST_BESIDE_CLIENTS)


class Round(NamedTuple):
    """What a message took of one side."""

    cpu_ms: float
    requests: float
    sent_kb: float


def _round(name: str) -> Round:
    """Measure one side, once every chat has been written in before."""
    with tempfile.TemporaryDirectory() as home, _servers() as servers:
        assert servers.stdout is not None
        telegram, model = servers.stdout.readline().split()
        with _answering(name, Path(home), telegram, model) as process:
            _write(servers)
            before = _cpu_s(process)
            requests, sent_kb = _write(servers)
            return Round((_cpu_s(process) - before) / CHATS * 1e3, requests, sent_kb)


def _write(servers: "subprocess.Popen[str]") -> tuple[float, float]:
    """Have people write, one after another; return when all are answered and all is quiet.

    Returns:
        Requests to the Bot API and KB that the model was sent, of one message.
    """
    assert servers.stdin is not None
    assert servers.stdout is not None
    servers.stdin.write("go\n")
    servers.stdin.flush()
    told, *counts = servers.stdout.readline().split() or ["the servers ended"]
    if told != "answered":
        raise RuntimeError(f"the people were not answered: {told}")
    time.sleep(SETTLES_S)
    calls, sent = map(int, counts)
    return calls / CHATS, sent / CHATS / 1024


def _cpu_s(process: "subprocess.Popen[bytes]") -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


@contextmanager
def _servers() -> Iterator["subprocess.Popen[str]"]:
    command = (sys.executable, "-m", "tests.bench.clients", "servers")
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as servers:
        try:
            yield servers
        finally:
            servers.terminate()


@contextmanager
def _answering(
    name: str, home: Path, telegram: str, model: str
) -> Iterator["subprocess.Popen[bytes]"]:
    command = ["-m", "gateway.cli.main", "run", "--port", "0"]
    if name == ALONE:
        command = ["-m", "tests.bench.clients", "alone", telegram, model]
    settings = {
        "access": {"mode": "open"},
        "queue": {"debounce_ms": 0},
        "platforms": {"telegram": {"token": TOKEN, "base_url": telegram}},
        "model": {"base_url": model, "name": "double"},
    }
    (home / "parley.yaml").write_text(yaml.safe_dump(settings))
    with subprocess.Popen(
        (sys.executable, *command),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PARLEY_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


async def _alone(telegram: str, model: str) -> None:
    """Answer messages by the clients alone, until killed."""
    # The process of the servers does without them.
    from openai import AsyncOpenAI  # noqa: PLC0415
    from telegram import Bot  # noqa: PLC0415

    offset = None
    bot = Bot(TOKEN, base_url=f"{telegram}/bot")
    async with bot, AsyncOpenAI(base_url=model, api_key="none") as openai:
        while True:
            updates = await bot.get_updates(offset, timeout=30, allowed_updates=["message"])
            for update in updates:
                offset = update.update_id + 1
                message = update.message
                assert message is not None
                stream = await openai.chat.completions.create(
                    model="double",
                    messages=[{"role": "user", "content": message.text or ""}],
                    max_completion_tokens=1024,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                texts = [
                    each.choices[0].delta.content or "" async for each in stream if each.choices
                ]
                await bot.send_message(message.chat.id, "".join(texts))


async def _serve() -> None:
    """Serve both, and write for the people at each line of standard input."""
    loop = asyncio.get_running_loop()
    async with BotApi() as api, OpenAIServer(default=Reply(text=ANSWER)) as model:
        print(api.root, model.url, flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            calls, requests = len(api.calls), len(model.requests)
            for chat in range(1, CHATS + 1):
                await _ask(api, chat)
            sent = sum(len(json.dumps(each.body)) for each in model.requests[requests:])
            wrong = [*api.violations, *model.refused]
            print(wrong or f"answered {len(api.calls) - calls} {sent}", flush=True)


async def _ask(api: BotApi, chat: int) -> None:
    answers = len(api.shown(chat))
    api.push_text(chat, "Where is my order?")

    def is_answered() -> bool:
        return api.shown(chat)[answers:] == [ANSWER]

    await api.wait_for(is_answered, ANSWERED_WITHIN_S)


if __name__ == "__main__":
    _, role, *given = sys.argv
    asyncio.run(_serve() if role == "servers" else _alone(*given))
