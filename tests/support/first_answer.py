"""A stranger's first minutes: `parley setup` at a terminal, `parley run`, a code, a question.

The stranger types at a pseudo-terminal; Telegram and the model are loopback servers.
"""

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pexpect

from tests.support.anthropic_server import AnthropicServer
from tests.support.bot_api import TOKEN, BotApi
from tests.support.process import free_port

ROOT = Path(__file__).resolve().parents[2]
PARLEY = (sys.executable, "-m", "gateway.cli.main")
WITHIN_S = 120
"""Of what hangs, on the slowest machine."""
ANN = 4711
KEY = "sk-ant-the-right-key"
CODE = re.compile(r"send ([A-Z0-9]{4}-?[A-Z0-9]{4}) to your bot|start=([A-Z0-9-]{8,9})\s")


@dataclass
class Stranger:
    """Somebody with a key and a token, in front of a terminal.

    Attributes:
        home: PARLEY_HOME.
        environ: Variables of the terminal.
        program: What `parley` is.
        phases: Seconds that each part took, in order.
        seen: All that the terminal has shown.
    """

    home: Path
    environ: Mapping[str, str]
    program: tuple[str, ...] = PARLEY
    phases: dict[str, float] = field(default_factory=dict)
    seen: str = ""

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Note how long a part takes."""
        began = time.perf_counter()
        yield
        self.phases[phase] = time.perf_counter() - began

    def terminal(self, *words: str) -> "pexpect.spawn[str]":
        """Start `parley …` at a terminal of its own."""
        command, *rest = [*self.program, *words]
        return pexpect.spawn(
            command,
            rest,
            env={"TERM": "dumb", **self.environ, "PARLEY_HOME": str(self.home)},
            cwd=str(ROOT),
            encoding="utf-8",
            timeout=WITHIN_S,
            dimensions=(50, 200),
        )

    def type(self, terminal: "pexpect.spawn[str]", *turns: tuple[str, str]) -> None:
        """Wait for each question and answer it."""
        for question, answer in turns:
            terminal.expect_exact(question)
            self.seen += (terminal.before or "") + question
            terminal.sendline(answer)

    def end(self, terminal: "pexpect.spawn[str]") -> int:
        """Wait for the command to end; return its exit code."""
        terminal.expect(pexpect.EOF)
        self.seen += terminal.before or ""
        terminal.close()
        return int(terminal.exitstatus if terminal.exitstatus is not None else -1)


def environment(api: BotApi, model: AnthropicServer) -> dict[str, str]:
    """Return variables that point at the loopback servers; neither key nor token is among them."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PARLEY_MODEL__BASE_URL": model.url,
        "PARLEY_PLATFORMS__TELEGRAM__BASE_URL": api.root,
        "PARLEY_WEB__PORT": str(free_port()),
    }


EVERYTHING = (
    ("Which one (number or name)", "1"),
    ("Key (not shown", KEY),
    ("Model", ""),
    ("bot token (not shown", TOKEN),
    # Discord and Slack are left out.
    ("bot token (not shown", ""),
    ("OAuth Token (not shown", ""),
    ("Or name yourself", ""),
    ("Which one", "1"),
)


async def walk(stranger: Stranger, api: BotApi) -> str:
    """Go from nothing to the first answer on Telegram; return that answer."""
    with stranger.timed("parley setup"):
        await asyncio.to_thread(_set_up, stranger)
    running = stranger.terminal("run")
    try:
        with stranger.timed("parley run, until ready"):
            code = await asyncio.to_thread(_until_ready, stranger, running)
        with stranger.timed("the code, until one is the owner"):
            api.push_text(ANN, code)
            await api.wait_for(lambda: api.shown(ANN), WITHIN_S)
        greeted = len(api.shown(ANN))
        with stranger.timed("the question, until its answer"):
            api.push_text(ANN, "Are you there?")
            await api.wait_for(lambda: len(api.shown(ANN)) > greeted, WITHIN_S)
        return api.shown(ANN)[-1]
    finally:
        await asyncio.to_thread(_stop, running)


def _set_up(stranger: Stranger) -> None:
    terminal = stranger.terminal("setup")
    stranger.type(terminal, *EVERYTHING)
    code = stranger.end(terminal)
    if code:
        raise RuntimeError(f"parley setup ended with {code}:\n{stranger.seen}")


def _until_ready(stranger: Stranger, running: "pexpect.spawn[str]") -> str:
    """Return the owner's code, which stands behind the word that it is ready."""
    running.expect("Parley is ready")
    running.expect(CODE)
    stranger.seen += str(running.after)
    return next(group for group in running.match.groups() if group)


def _stop(running: "pexpect.spawn[str]") -> None:
    running.sendintr()
    running.expect(pexpect.EOF)
    running.close()
