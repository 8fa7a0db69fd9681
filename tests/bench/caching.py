"""What marking saves, in the billing simulator of `../shared/peerbench`, and what requests cost.

A conversation is replayed as the harness does it: before each call of the model the list is
compacted where the meter says so, then it goes the product's way to the wire, in both layouts and
by both strategies. The harness bills it with 20 tool schemas in front, with short gaps between the
calls (busy) and with gaps of a person's day (chat). The requests are the very ones of
`bench_session.py`, but each compaction is made only once. Needs the corpora of the harness.
"""

import ast
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from agent.messages import ChatMessage, decode, encode, sanitise
from agent.models.anthropic import wire as anthropic_wire
from agent.models.base import ModelRequest, PrefixWatch
from agent.models.openai import wire as openai_wire
from agent.prompt_caching import STRATEGIES, CacheLayout, apply_cache_control
from tests.bench.compaction import SYSTEM, said
from tests.bench.echo import EchoModel
from tests.bench.figures import Figure
from tests.support.shared import SHARED

CORPORA = {"wide12": None, "wide24": None, "agent_loop": 6.0, "synth_3000": 14.6}
"""With the most that the native layout may bill, in millions of tokens, short gaps between."""
LAYOUTS: tuple[CacheLayout, ...] = ("native", "envelope")
GAPS = ("busy", "chat")
LARGEST_TOKENS = 105_000
MESSAGES = 1_000
RUNS = 25
MODEL = "claude-sonnet-4-5"

Sent = list[tuple[int, int, bool]]
"""A request as the simulator takes it: block, its tokens, whether it is marked."""


def measure() -> Iterator[Figure]:
    """Yield the speed, then the bills where the corpora are."""
    yield from _speed()
    if SHARED is not None and _harness().corpora.is_dir():
        for corpus, most in CORPORA.items():
            yield from _bills(corpus, most)


# Speed


def _speed() -> Iterator[Figure]:
    """Yield the CPU time from a view to the body of its request, and of the watch over it."""
    view = _fresh()
    chars = sum(len(encode(message)) for message in view)
    yield Figure(f"view of {MESSAGES:,} messages", chars / 1e6, "MB")
    for layout in LAYOUTS:
        for strategy in STRATEGIES:
            build = partial(_built, layout=layout, strategy=strategy)
            name = f"{layout}, {strategy}: request built"
            yield Figure(f"{name}, again", _cpu_ms(build, lambda: view), "ms", at_most=2)
            yield Figure(f"{name}, messages never seen", _cpu_ms(build, _fresh), "ms")
    for strategy in STRATEGIES:
        mark = partial(apply_cache_control, strategy=strategy)
        yield Figure(f"{strategy}: marking alone", _cpu_ms(mark, lambda: view), "ms")
    model: Any = EchoModel()
    watch = PrefixWatch()
    watch.take(view, (), model)
    watched = _cpu_ms(lambda messages: watch.take(messages, (), model), lambda: view)
    yield Figure("prefix watched, again", watched, "ms")
    first = _cpu_ms(lambda messages: PrefixWatch().take(messages, (), model), _fresh)
    yield Figure("prefix watched, first request of a turn", first, "ms")


def _fresh() -> list[ChatMessage]:
    """Return the view as it comes out of the database."""
    return [decode(encode(message)) for message in (SYSTEM, *said(MESSAGES - 1))]


def _built(messages: list[ChatMessage], layout: CacheLayout, strategy: str) -> dict[str, Any]:
    native = layout == "native"
    marked = apply_cache_control(sanitise(messages), strategy=strategy, native=native)
    request = ModelRequest(marked)
    if native:
        return anthropic_wire.request_body(request, MODEL)
    return openai_wire.request_body(request, MODEL, layout=layout)


def _cpu_ms(
    run: Callable[[list[ChatMessage]], object], make: Callable[[], list[ChatMessage]]
) -> float:
    """Return the median CPU time of several runs."""
    took: list[float] = []
    for _ in range(RUNS):
        messages = make()
        gc.collect()
        started = time.process_time()
        run(messages)
        took.append((time.process_time() - started) * 1e3)
    return statistics.median(took)


# Bills


@dataclass(slots=True)
class Replay:
    """The requests of a conversation, by layout and strategy.

    Attributes:
        gaps: Before each call: "u" waits for a person, "t" for a tool.
        sizes: Tokens of each context as the harness counts them.
    """

    sent: dict[tuple[CacheLayout, str], list[Sent]] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def _bills(corpus: str, most: float | None) -> Iterator[Figure]:
    replay = _replayed(corpus)
    yield Figure(f"{corpus}: largest context", max(replay.sizes), "tokens", at_most=LARGEST_TOKENS)
    for (layout, strategy), sent in sorted(replay.sent.items(), reverse=True):
        anchored = strategy == "anchored"
        for gaps in GAPS:
            billed, ratio = _billed(sent, _harness().timeline(replay.gaps, gaps))
            name = f"{corpus}, {layout}, {gaps}, {strategy}"
            limit = most if anchored and layout == "native" and gaps == "busy" else None
            yield Figure(f"{name}: billed", billed / 1e6, "M tokens", at_most=limit)
            above = (ratio - 1) * 100
            bar = 0.5 if anchored else None
            yield Figure(f"{name}: above the minimum", above, "%", at_most=bar)


def _replayed(corpus: str) -> Replay:
    """Return what goes out when a corpus is a conversation, one request for each answer in it."""
    harness, replay = _harness(), Replay()
    messages, tokens = harness.load(corpus)
    adapter = import_module("ours").Adapter("aligned")
    build, known = adapter.wire_blocks, _Blocks(import_module("tok").count_text)

    def recorded(native: list[Any], _layout: str) -> list[Any]:
        for adapter.strategy in STRATEGIES:
            for layout in LAYOUTS:
                sent = known.sent(build(native, layout))
                replay.sent.setdefault((layout, adapter.strategy), []).append(sent)
        return []

    adapter.wire_blocks = recorded
    state: dict[str, Any] = {name: [] for name in ("events", "wire", "gap", "btext", "ctx")}
    state |= {"calls": 0, "seconds_deciding": 0.0, "seconds_compressing": 0.0, "blocks": {}}
    harness.one_session(adapter, {"wire": "native"}, messages, tokens, state, 0)
    replay.gaps, replay.sizes = state["gap"], state["ctx"]
    return replay


class _Blocks:
    """The blocks of all requests, each counted once."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._known: dict[str, tuple[int, int]] = {}

    def sent(self, blocks: list[tuple[str, bool]]) -> Sent:
        return [(*self._number(text), marked) for text, marked in blocks]

    def _number(self, text: str) -> tuple[int, int]:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = len(self._known), self._count(text)
        return known


def _billed(requests: list[Sent], times: list[float]) -> tuple[float, float]:
    """Return the tokens billed, in tokens of plain input, and their ratio to the minimum."""
    simulator = import_module("cachesim").Sim(ttl=300)
    for request, at in zip(requests, times, strict=True):
        simulator.request(request, at)
    summary = simulator.summary()
    assert not summary["requests_over_4_breakpoints"], "the API would refuse this"
    return summary["billed"], summary["ratio_to_minimum"]


@dataclass(frozen=True, slots=True)
class _Harness:
    """What is used of the harness."""

    corpora: Path
    load: Callable[[str], tuple[list[Any], list[int]]]
    timeline: Callable[[list[str], str], list[float]]
    one_session: Callable[..., None]


@cache
def _harness() -> _Harness:
    """Import the harness; `bench_session.py` is a script, of which two functions are taken."""
    assert SHARED is not None
    folder = SHARED.parent / "peerbench"
    sys.path[:0] = [str(folder), str(Path(__file__).parent / "peers")]
    one_session = import_module("worker").one_session
    names = ("os", "json", "random", "paths", "tok")
    scope: dict[str, Any] = {name: import_module(name) for name in names}
    scope["C"] = import_module("corpus")
    script = ast.parse((folder / "bench_session.py").read_text("utf-8"))
    kept = [node for node in script.body if getattr(node, "name", "") in {"ensure", "timeline"}]
    exec(compile(ast.Module(kept, []), "bench_session.py", "exec"), scope)  # noqa: S102

    def load(corpus: str) -> tuple[list[Any], list[int]]:
        messages = scope["ensure"](corpus)
        counted = (corpora / f"{corpus}.tok.json").read_text("utf-8")
        return messages, scope["json"].loads(counted)

    corpora = Path(scope["paths"].CORPORA)
    return _Harness(corpora, load, scope["timeline"], one_session)
