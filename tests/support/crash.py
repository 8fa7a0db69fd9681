"""The crash harness: starts gateways in forked processes, kills them, gathers the evidence.

`make test-deep` multiplies the seeds; `PARLEY_TEST_SEED=n` runs one given seed.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gateway.storage.maintenance import upgrade
from tests.support.crash_oracle import (
    Evidence,
    each_trouble_is_told_once,
    finished_ids,
    is_answer,
    opened,
    read_events,
    violations,
)
from tests.support.crash_platform import LoopbackPlatform
from tests.support.crash_script import LAST_PAYLOAD, RESENT
from tests.support.thorough import DEEP, WAIT_S, thorough

_ONE_SEED = os.environ.get("PARLEY_TEST_SEED")
ENDED_IN_S = 100.0
"""A stop with connections to PostgreSQL that say nothing waits twice for their limit of 40 s."""
TRIED_SOON = {"quiet_s": 4.0, "trial_share": 0.75}
"""A short quiet time, and a trial in which a busy machine, too, comes to the end of a turn."""
KILLED = -signal.SIGKILL
SETTLED_IN_S = WAIT_S
LOOKS = 2
"""At alerts, of each process, before nobody is to be told any more."""

Point = list[Any]
"""[name, which time it is reached]."""


def seeds(desk: int, everything: int, deep: int) -> list[Any]:
    """Return the seeds to run; the test's id names them."""
    if _ONE_SEED is not None:
        return [int(_ONE_SEED)]
    others = range(desk, deep if DEEP else everything)
    return [*range(desk), *(thorough(seed) for seed in others)]


@dataclass(frozen=True, slots=True)
class Spec:
    """How one gateway process lives.

    Attributes:
        style: Of the platform: plain (a repeated send shows twice), once (nonces), edit (answers
            take the place of a preview).
        quiet_s: How long it lives without a suspect before that is tried.
        trial_share: How much of that a trial lasts.
        beat_s: How often it notes that it is alive.
        retry_after_s: How long its worker waits after the first failure of a turn.
        think_s: How long its model takes for each answer and each summary.
        kill: Where it kills itself.
        pause: Where it stops itself until SIGCONT.
        mutant: Which flaw it has, see tests/crash/mutants.py.
        batch: Most updates in one poll.
        pages: By how many pages the database may grow; None for no limit.
        window: Of the model, in tokens; a small one makes compactions happen.
        child_s: How long a delegated child may take.
        preview_looks: How often the model looks, a millisecond apart, whether the gateway has shown
            what was streamed.
        locked: Whether it respects the file lock.
        approval: For which tools people are asked.
        engine: Which context engine it has.
        mcp: Its MCP servers.
        real: A real platform to use instead of the loopback one: its name and its settings.
        url: Of its database on PostgreSQL; None for SQLite in its home.
        direct_url: Past the pooler that `url` leads to; None where there is none.
        losses: Where the next COMMIT is lost: a point, and whether the request or the answer is.
        lease_s: How long a lease lasts without a heartbeat; None for as long as in earnest.
        minute_s: How long a minute of the alerts lasts: after how many of them a trouble is told,
            and how many calm ones end it. They are looked for all the time.
        alerts_to: Which chat is told.
        disk_free_bytes: Less room than that is a full disk.
    """

    home: str
    events: str
    port: int
    style: Literal["plain", "once", "edit"] = "plain"
    mode: Literal["collect", "followup", "interrupt"] = "collect"
    debounce_ms: int = 0
    grace_s: float = 10.0
    slots: int = 64
    attempts: int = 3
    quiet_s: float = 0.3
    trial_share: float = 0.25
    beat_s: float = 0.05
    retry_after_s: float = 0.05
    think_s: float = 0.0
    kill: Point | None = None
    pause: Point | None = None
    mutant: str | None = None
    batch: int = 10
    pages: int | None = None
    window: int = 100_000
    child_s: float = 60.0
    locked: bool = True
    preview_looks: int = 50
    real: tuple[str, dict[str, Any]] | None = None
    web_port: int = 0
    approval: Literal["side_effects", "never"] = "never"
    engine: str = "compressor"
    mcp: dict[str, Any] = field(default_factory=dict)
    url: str | None = None
    direct_url: str | None = None
    lease_s: float | None = None
    losses: list[list[Any]] = field(default_factory=list)
    minute_s: float = 60.0
    alerts_to: str = "loopback:ops"
    disk_free_bytes: int = 0


class Nursery:
    """The warm process that forks gateways; one per test process.

    Args:
        module: Its program.
    """

    def __init__(self, module: str = "tests.crash.nursery") -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def obey(self, **command: Any) -> int:
        """Send a command and return its answer; blocks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(command) + "\n")
            return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


class Crashes:
    """One PARLEY_HOME, one platform, and the gateways that live and die on them.

    Attributes:
        seen: Adds to the evidence what people see on a platform of another kind.
    """

    def __init__(self, nursery: Nursery, platform: LoopbackPlatform, folder: Path) -> None:
        self.platform = platform
        self.home = folder / "home"
        self.home.mkdir()
        self.database = self.home / "parley.db"
        self.kills = 0
        self._nursery = nursery
        self._events = folder / "events.jsonl"
        self._alive: set[int] = set()
        self._ids = 0
        self._excused: set[str] = set()
        self._in_parts: set[str] = set()
        self._troubles: list[str] = []
        self.seen: Callable[[Evidence], Evidence] = lambda evidence: evidence
        self.spec = Spec(str(self.home), str(self._events), platform.port)

    @property
    def books(self) -> Path | str:
        """Return where the oracle looks: the file, or a URL."""
        return self.database

    def migrate(self, template: Path) -> None:
        """Start with an empty database that has its schema already."""
        if not template.exists():
            upgrade(template)
        with (
            closing(sqlite3.connect(template)) as source,
            closing(sqlite3.connect(self.database)) as target,
        ):
            source.backup(target)

    def configure(self, **changes: Any) -> None:
        """Let all gateways from now on live like this."""
        self.spec = replace(self.spec, **changes)

    def excuse(self, message_id: str) -> None:
        """Expect no answer to a message: it is stopped, buried or rejected."""
        self._excused.add(message_id)

    def expect(self, *kinds: str) -> None:
        """Expect that owners are told of these troubles, once, and once that they are over."""
        self._troubles += kinds

    async def write(self, chat: str, verbs: str = "") -> str:
        """Let a person write a message; returns its id."""
        self._ids += 1
        message_id = f"m{self._ids}"
        if "parts" in verbs.split():
            self._in_parts.add(message_id)
        await self.platform.push(chat, f"{message_id} {verbs}".strip())
        return message_id

    def start(self, **changes: Any) -> int:
        """Start a gateway; returns its pid."""
        self._note(what="boot", finished=finished_ids(self.books))
        return self._begin(replace(self.spec, **changes))

    def _begin(self, spec: Spec) -> int:
        pid = self._nursery.obey(run=asdict(spec))
        self._alive.add(pid)
        return pid

    async def ended(self, pid: int) -> int:
        """Wait for the end of a process; returns its exit code, negative for a signal."""
        async with asyncio.timeout(ENDED_IN_S):
            code = await asyncio.to_thread(self._nursery.obey, wait=pid)
        self._alive.discard(pid)
        self.kills += code == KILLED
        await self.platform.hang_up(pid)
        return code

    async def kill(self, pid: int) -> int:
        """Kill a process with SIGKILL; returns its exit code, which may be one of before."""
        os.kill(pid, signal.SIGKILL)
        return await self.ended(pid)

    async def disturb(self, pid: int, *, after_s: float, pause_s: float = 0.0) -> None:
        """Let a process live for a while, maybe stop it for a while, then kill it.

        It may have killed itself before.
        """
        end = asyncio.ensure_future(self.ended(pid))
        await asyncio.wait([end], timeout=after_s)
        with contextlib.suppress(ProcessLookupError):
            if pause_s:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.wait([end], timeout=pause_s)
                os.kill(pid, signal.SIGCONT)
                await asyncio.wait([end], timeout=pause_s)
            os.kill(pid, signal.SIGKILL)
        assert await end == KILLED, self.log()

    async def stop(self, pid: int) -> int:
        """Ask a process to end; returns its exit code."""
        os.kill(pid, signal.SIGTERM)
        return await self.ended(pid)

    async def live_until_answered(self, within_s: float = WAIT_S, **changes: Any) -> None:
        """Run a gateway without further disruption until all is answered, then stop it."""
        before = self.platform.polls
        pid = self.start(**changes)
        await self.platform.wait_for(lambda: self.platform.polls > before)
        with contextlib.suppress(TimeoutError):
            await self.platform.wait_for(self.all_answered, within_s)
        await self.settle()
        assert await self.stop(pid) == 0, self.log()

    async def settle(self, processes: int = 1) -> None:
        """Wait until owners were told what they are to be told, and some looks found no more."""
        with contextlib.suppress(TimeoutError):
            await self.looked(processes)
            await until(lambda: not self.untold(), SETTLED_IN_S)

    async def looked(self, processes: int = 1) -> None:
        """Wait until so many processes have looked for troubles a few times more."""
        looks = self.platform.noted("looked") + LOOKS * processes
        await self.platform.wait_for(lambda: self.platform.noted("looked") >= looks)

    def untold(self) -> list[str]:
        """Return how far what owners were told is from what they are to be told."""
        with opened(self.books) as ask:
            return [*each_trouble_is_told_once(self.evidence(), ask)]

    def raised(self) -> list[str]:
        """Return the kinds of the alerts that chats have been told of, the oldest first."""
        with opened(self.books) as ask:
            rows = ask("SELECT kind FROM alert WHERE told_at IS NOT NULL ORDER BY id")
            return [row["kind"] for row in rows]

    def all_answered(self) -> bool:
        """Whether every message has been answered in full."""
        return self.answered() >= {f"m{n}" for n in range(1, self._ids + 1)} - self._excused

    def answered(self) -> set[str]:
        """Return the ids of all messages whose answer is shown up to its last payload."""
        complete: set[str] = set()
        for text in filter(is_answer, self.platform.all_finals()):
            ids = set(text.removeprefix(RESENT).split()[0].split(","))
            if text.endswith(LAST_PAYLOAD) or ids.isdisjoint(self._in_parts):
                complete |= ids
        for text in self.platform.rejected:
            complete |= set(text.split()[0].split(","))
        return complete

    def violations(self) -> list[str]:
        """Ask the oracle; only when no gateway runs any more."""
        return violations(self.evidence())

    def evidence(self) -> Evidence:
        """Return what the loopback platform, the database and the children's notes say."""
        platform = self.platform
        found = Evidence(
            sent=[
                (update.chat, update.text)
                for update in platform.pushed
                if update.number < platform.acknowledged
            ],
            shown={chat: platform.finals(chat) for chat in platform.chats},
            previews=[
                shown.text for chat in platform.chats.values() for shown in chat if not shown.final
            ],
            rejected=platform.rejected,
            resends=self.spec.style != "once",
            events=self.events(),
            database=self.books,
            troubles=self._troubles,
        )
        return self.seen(found)

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        """Return what the children noted."""
        found = read_events(self._events)
        return found if what is None else [event for event in found if event["what"] == what]

    def logged_at(self, event: str) -> list[float]:
        """Return when the gateways logged this, by their own clocks."""
        log = (self.home / "child.log").read_text()
        lines = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
        return [float(line["timestamp"]) for line in lines if line["event"] == event]

    def log(self) -> str:
        """Return the end of the gateways' log, for a failed assertion."""
        return (self.home / "child.log").read_text()[-4000:]

    def close(self) -> None:
        """Kill what is still alive; a blocked wait for it ends then too."""
        for pid in self._alive:
            os.kill(pid, signal.SIGKILL)

    def _note(self, **event: Any) -> None:
        with self._events.open("a") as file:
            file.write(json.dumps(event) + "\n")


async def until(holds: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait until something holds of which nobody tells: what a log, a file or a table says."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


def describe(found: Sequence[str], crashes: Crashes) -> str:
    """Return the violations and the log's end, for a failed assertion."""
    return "\n".join(["", *found, "--- child.log", crashes.log()])
