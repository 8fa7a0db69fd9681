"""What compactions cost: their commit, the time they hold the event loop, a pass, and loading.

The conversations are synthetic: rounds of a question, a call with its result, and an answer, 2.6 KB
a message, each with a word of its own. Nothing in a pass asks a model; where a summary model is
named it is a script.
"""

import asyncio
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection
from typing_extensions import override

from agent.library import CompactionResult, compact_messages
from agent.messages import (
    ChatMessage,
    FunctionCall,
    ToolCall,
    Usage,
    assistant_message,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest, TextSink
from agent.ports import Compaction, PlannerState
from agent.view.view import Summary, ViewPlan
from gateway.storage.conversation import compactions, transcript
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from tests.bench.echo import EchoModel
from tests.bench.figures import Figure
from tests.bench.running import Chats, inbound, running
from tests.bench.seeding import begun, seed
from tests.support.long_chats import SUMMARY, is_summary

if TYPE_CHECKING:
    import sqlite3

MESSAGES = 10_000
FEW_MESSAGES = 100
WINDOW_TOKENS = 200_000
SPLITS = 200
LOADS = 9
PASSES = {1_000: 9, 10_000: 5}
PASS_MS = {1_000: 40, 10_000: 400}
BEAT_S = 0.001
SYSTEM = ChatMessage(role="system", content="You are a helpful assistant.")


def measure() -> Iterator[Figure]:
    """Yield the cost of commits, of a compaction in a gateway, of single passes, and of loads."""
    yield from asyncio.run(_commits())
    for provider, writer in (("offline", "the extractor"), ("echo", "a summary model")):
        yield from asyncio.run(_held_up(provider, writer))
    yield from _passes()
    yield from asyncio.run(_loads())


def said(messages: int) -> list[ChatMessage]:
    """Return the beginning of a conversation; the same each time."""
    return list(islice(_rounds(), messages))


def _rounds() -> Iterator[ChatMessage]:
    words = _Words()
    for n in count(1):
        yield user_message(f"Fact {_fact(n, 'asked')}. {words.some(60, 400)}")
        arguments = f'{{"path": "src/module_{n}.py", "note": "{words.some(20, 200)}"}}'
        function = FunctionCall(name="read_file", arguments=arguments)
        asking = assistant_message(words.some(60, 400))
        asking["tool_calls"] = [ToolCall(id=f"call_{n}", type="function", function=function)]
        yield asking
        result = f"{words.some(500, 8_000)} {_fact(n, 'found')} {words.some(500, 8_000)}"
        yield tool_message(f"call_{n}", "read_file", result)
        yield assistant_message(f"Noted {_fact(n, 'said')}. {words.some(100, 900)}")


def _fact(n: int, kind: str) -> str:
    return f"{kind}-{7919 * n:08d}"


class _Words:
    """Pieces of a text whose words are as unevenly frequent as those of a language."""

    def __init__(self) -> None:
        self._random = Random(7)  # noqa: S311 - synthetic text

    def some(self, least_chars: int, most_chars: int) -> str:
        start = self._random.randrange(len(_prose()) - most_chars)
        return _prose()[start : start + self._random.randint(least_chars, most_chars)]


@cache
def _prose() -> str:
    random = Random(11)  # noqa: S311 - synthetic text
    sizes = random.choices(range(2, 11), k=8_000)
    known = ["".join(random.choices("etaoinshrdlucmfwypvbgkq", k=size)) for size in sizes]
    return " ".join(random.choices(known, [1 / (n + 8) for n in range(8_000)], k=100_000))


# Commits


async def _commits() -> list[Figure]:
    """Compare splits of a long and a short conversation with the smallest durable commit."""
    async with _store() as database:
        await database.write(_make_counter)
        split = {
            "long": await database.write(begun, inbound("long", "long", "Go on."), said(MESSAGES)),
            "short": await database.write(
                begun, inbound("short", "short", "Go on."), said(FEW_MESSAGES)
            ),
        }
        took: dict[str, list[float]] = {"empty": [], "long": [], "short": []}
        rows: dict[str, int] = {}
        for _ in range(SPLITS):
            await _timed(took["empty"], database, _count_up)
            for name, current in split.items():
                done = await _timed(took[name], database, _split, current)
                split[name], rows[name] = done
    empty, long, short = (statistics.median(each) * 1e3 for each in took.values())
    return [
        Figure("smallest durable commit, p50", empty, "ms"),
        Figure(f"split of {MESSAGES:,} messages, p50", long, "ms", at_most=5),
        Figure(f"split of {FEW_MESSAGES:,} messages, p50", short, "ms"),
        Figure(f"split of {MESSAGES:,} to smallest commit", long / empty, "times", at_most=2.5),
        Figure(f"rows changed, {MESSAGES:,} messages", rows["long"], "", at_most=rows["short"]),
    ]


@asynccontextmanager
async def _store() -> AsyncIterator[Database]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_database(Path(folder) / "parley.db") as database:
            yield database


async def _timed(took: list[float], database: Database, fn: Callable[..., Any], *args: Any) -> Any:
    started = time.perf_counter()
    value = await database.write(fn, *args)
    took.append(time.perf_counter() - started)
    return value


def _make_counter(conn: Connection) -> None:
    conn.exec_driver_sql("CREATE TABLE bench (n INTEGER)")
    conn.exec_driver_sql("INSERT INTO bench VALUES (0)")


def _count_up(conn: Connection) -> None:
    conn.exec_driver_sql("UPDATE bench SET n = n + 1")


def _split(conn: Connection, current: Turn) -> tuple[Turn, int]:
    """Commit a compaction; returns the turn as it goes on, and how many rows were written."""
    before = _rows_changed(conn)
    plan = _plan(current)
    done = Compaction(plan, "threshold", "compressor", "summary", 900, 34, 100_000, 35_000, 9, 0)
    child = compactions.compact(conn, current, done, PlannerState())
    return replace(current, session=child), _rows_changed(conn) - before


def _rows_changed(conn: Connection) -> int:
    raw = cast("sqlite3.Connection", conn.connection.driver_connection)
    return raw.total_changes


def _plan(current: Turn) -> ViewPlan:
    """Return what is shown of 33 messages, the rest being in the largest of all summaries."""
    newest_seq = current.entries[0].seq
    summary = Summary(_prose()[:40_000], 4, newest_seq - 30, "user", "model")
    return ViewPlan(head_upto=3, summaries=(summary,), tail_from=newest_seq - 29)


# The event loop


@dataclass(slots=True)
class Heartbeat:
    """Beats in the event loop as often as it can, and knows the longest pause.

    Attributes:
        cpu_s: Most CPU time that the loop's thread took between two beats.
        wall_s: The longest delay of a beat, for whatever reason.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0
    _last: tuple[float, float] = (0.0, 0.0)
    _timer: asyncio.TimerHandle | None = field(default=None)

    def start(self) -> None:
        """Begin to beat; must be called in the event loop."""
        self.cpu_s = self.wall_s = 0.0
        self._last = time.thread_time(), time.perf_counter()
        self._again()

    def stop(self) -> None:
        """Beat once more, then no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._note()

    def _beat(self) -> None:
        self._note()
        self._again()

    def _note(self) -> None:
        now = time.thread_time(), time.perf_counter()
        self.cpu_s = max(self.cpu_s, now[0] - self._last[0])
        self.wall_s = max(self.wall_s, now[1] - self._last[1] - BEAT_S)
        self._last = now

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)


class SummaryModel(EchoModel):
    """Answers at once; with the provider "offline" the gateway asks it for no summaries."""

    def __init__(self, provider: str) -> None:
        self.provider = provider

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        if is_summary(request):
            return Completion(assistant_message(SUMMARY), "stop", Usage(1000, 10), self.name)
        return await super().complete(request, sink)


async def _held_up(provider: str, writer: str) -> list[Figure]:
    """Ask in a conversation of 10,000 messages that nobody has measured or compacted yet.

    Its view is loaded, measured, compacted, committed and shown anew before the answer.
    """
    chats, heart = Chats(), Heartbeat()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send, SummaryModel(provider)) as gateway:
            chats.gateway = gateway
            await gateway.database.write(seed, inbound("1", "seed", ""), said(MESSAGES))
            await chats.ask("2", "warm up")
            started = time.perf_counter()
            heart.start()
            await chats.ask("1", "And now?")
            heart.stop()
            took_s = time.perf_counter() - started
            assert await gateway.database.read(_compacted), "nothing was compacted"
    name = f"turn with a compaction of {MESSAGES:,} messages by {writer}"
    return [
        Figure(name, took_s * 1e3, "ms"),
        Figure("  longest hold of the event loop, CPU", heart.cpu_s * 1e3, "ms", at_most=10),
        Figure("  longest wait for the event loop, wall", heart.wall_s * 1e3, "ms"),
    ]


def _compacted(conn: Connection) -> bool:
    return len(compactions.of_conversation(conn, 1)) == 1


# One pass


def _passes() -> Iterator[Figure]:
    for size, times in PASSES.items():
        messages: list[Any] = [SYSTEM, *said(size - 1)]
        chars = sum(len(text_of(message)) for message in messages)
        yield Figure(f"{size:,} messages", chars / 1e6, "MB")
        for name, answer in (("the extractor", None), ("a summary model", SUMMARY)):
            cpu_s = _cpu_s(partial(_compacted_list, messages, answer), times)
            yield Figure(f"one pass with {name}, CPU", cpu_s * 1e3, "ms", at_most=PASS_MS[size])
        peak_bytes = _peak_bytes(partial(_compacted_list, messages, SUMMARY))
        yield Figure("  peak memory", peak_bytes / 1e6, "MB", at_most=37)
        seen = _share_shown(messages)
        yield Figure("  facts that left, shown to the summary model", seen, "", at_least=1)


def _compacted_list(messages: list[Any], answer: str | None) -> CompactionResult:
    summarise = None if answer is None else lambda _prompt, _max_tokens: answer
    return compact_messages(messages, context_length=WINDOW_TOKENS, summarise=summarise)


def _cpu_s(run: Callable[[], object], times: int) -> float:
    """Return the median CPU time of several runs; the first one, which imports, is left out."""
    run()
    took: list[float] = []
    for _ in range(times):
        started = time.process_time()
        run()
        took.append(time.process_time() - started)
    return statistics.median(took)


def _peak_bytes(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _share_shown(messages: list[Any]) -> float:
    """Return the share of the facts that leave the view which the summary model gets to see."""
    prompts: list[str] = []

    def summarise(prompt: str, _max_tokens: int) -> str:
        prompts.append(prompt)
        return SUMMARY

    done = compact_messages(messages, context_length=WINDOW_TOKENS, summarise=summarise)
    seen = set("\n".join(prompts).replace(".", " ").split())
    left = {
        word
        for n in done.evicted
        for word in text_of(messages[n]).replace(".", " ").split()
        if word.startswith(("asked-", "found-", "said-"))
    }
    return len(left & seen) / len(left)


# Loads


async def _loads() -> list[Figure]:
    """Compare the view of a compacted conversation with all of its messages."""
    async with _store() as database:
        current = await database.write(begun, inbound("long", "long", "Go on."), said(MESSAGES))
        full = await _load_s(database, current, ViewPlan())
        short = await _load_s(database, current, _plan(current))
    return [
        Figure(f"load of {MESSAGES:,} messages", full * 1e3, "ms"),
        Figure("load of their compacted view", short * 1e3, "ms", at_most=5),
    ]


async def _load_s(database: Database, current: Turn, plan: ViewPlan) -> float:
    took: list[float] = []
    for _ in range(LOADS):
        started = time.perf_counter()
        rows = await database.read(transcript.load_rows, current.lease.conversation, plan)
        transcript.decoded(rows)
        took.append(time.perf_counter() - started)
    return statistics.median(took)
