"""What turns and tools run against, in memory: journal, reader, store of compactions."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

from typing_extensions import override

from agent.context_engine import Archive, Days, Node
from agent.messages import ChatMessage, ToolCall, text_of
from agent.models.base import Completion, ModelRequest, TextSink
from agent.models.recovery import RetryTiming
from agent.ports import (
    Compaction,
    Decision,
    JournaledEffect,
    ModelCall,
    NewSegment,
    Origin,
    PastMessage,
    PlannerState,
    StepMark,
    ToolStatus,
)
from agent.tools.context import NoPast, ToolContext, ToolOutcome, ToolServices, TurnRights
from agent.tools.gate import ApprovalRules, Gate
from agent.tools.registry import ToolRegistry
from agent.view.view import Summary
from tests.support.scripted_model import ScriptedModel

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@dataclass
class KnownPast(NoPast):
    """A past that has read what it is made with."""

    read: set[Origin]

    @override
    async def taints(self, *, of_scope: bool = False) -> set[Origin]:
        return self.read


class MemoryJournal:
    """Keeps what a turn would commit, in the order in which it is committed."""

    def __init__(self) -> None:
        self.seq = 0
        self.events: list[tuple[str, ...]] = []
        self.outputs: dict[str, str] = {}
        self.decided: dict[str, Decision | None] = {}
        self.changed = asyncio.Condition()

    async def record_message(self, message: ChatMessage, call: ModelCall | None = None) -> int:
        await self._note("message", text_of(message))
        return self._next_seq()

    async def book(self, calls: Sequence[ModelCall]) -> None:
        for call in calls:
            await self._note("book", call.purpose)

    def begin_call(self, call: ModelCall | None) -> None:
        """Nothing here is ever cut off."""

    async def start_tool(
        self, call: ToolCall, effect: JournaledEffect, decision: Decision | None = None
    ) -> None:
        self.decided[call["id"]] = decision
        await self._note("start", call["id"], effect)

    async def record_result(
        self,
        message: ChatMessage,
        status: ToolStatus,
        origins: Collection[Origin] = (),
        marks: Collection[StepMark] = (),
    ) -> int:
        await self._note("result", message["tool_call_id"], status)
        return self._next_seq()

    async def store_output(self, text: str) -> str:
        output_id = f"o{len(self.outputs) + 1}"
        self.outputs[output_id] = text
        return output_id

    async def wait_for(self, *event: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: event in self.events)

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    async def _note(self, *event: str) -> None:
        async with self.changed:
            self.events.append(event)
            self.changed.notify_all()


class MemoryReader:
    """A transcript and stored outputs, given in full."""

    def __init__(self, messages: Sequence[PastMessage] = (), **outputs: str) -> None:
        self.messages = messages
        self.outputs = outputs

    async def read(
        self, *, from_seq: int | None, limit: int, contains: str | None
    ) -> Sequence[PastMessage]:
        wanted = (contains or "").lower()
        found = [it for it in self.messages if wanted in it.text.lower()]
        if from_seq is None:
            return found[-limit:]
        return [it for it in found if it.seq >= from_seq][:limit]

    async def read_output(self, output_id: str) -> str | None:
        return self.outputs.get(output_id)


class PassingTime:
    """A clock of its own for summaries: all time that is left passes once `model` was asked."""

    def __init__(self, model: "HangingModel") -> None:
        self._model = model
        self._now = 0.0

    @property
    def timing(self) -> dict[str, Any]:
        """What a summariser is given."""
        return {"now": lambda: self._now, "wait": self._wait}

    def _wait(self, call: Future[Completion], left_s: float) -> Completion:
        wait([call, self._model.reached], timeout=60, return_when=FIRST_COMPLETED)
        if call.done():
            return call.result()
        self._now += left_s
        raise TimeoutError


class HangingModel(ScriptedModel):
    """A model that never answers.

    Attributes:
        ended: Set when a call was cancelled.
        reached: Done, for threads, when it was asked.
    """

    def __init__(self) -> None:
        super().__init__(lambda _: "never", gate=asyncio.Event())
        self.ended = asyncio.Event()
        self.reached: Future[None] = Future()

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        if not self.reached.done():
            self.reached.set_result(None)
        try:
            return await super().complete(request, sink)
        finally:
            self.ended.set()


class MemoryArchive:
    """Serves rows and nodes from memory; a search finds what holds one of the words.

    Attributes:
        rows: Stored messages by seq.
        stored: The nodes, in order of number.
        turn_begins_at: Where the running turn begins.
    """

    def __init__(self, rows: Mapping[int, str] | None = None, stored: Sequence[Node] = ()) -> None:
        self.rows = dict(rows or {})
        self.stored = list(stored)
        self.turn_begins_at = 2**31 - 1

    def bodies(self, first_seq: int, last_seq: int, limit: int) -> Sequence[tuple[int, str]]:
        within = [(seq, body) for seq, body in self.rows.items() if first_seq <= seq <= last_seq]
        return sorted(within)[:limit]

    def nodes(self) -> Sequence[Node]:
        return self.stored

    def find(self, words: str, limit: int, before_seq: int) -> Sequence[int]:
        wanted = words.lower().split()
        counts = {
            seq: sum(word in body.lower() for word in wanted)
            for seq, body in self.rows.items()
            if seq < before_seq
        }
        ranked = sorted((seq for seq in counts if counts[seq]), key=lambda seq: -counts[seq])
        return ranked[:limit]


class RetryClock:
    """Time that passes where it is slept, and nowhere else."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    @property
    def timing(self) -> dict[str, Any]:
        """Return the clock of retries, each of which waits as long as it may."""
        return {"retries": RetryTiming(self.now, self.sleep, lambda _low, high: high)}


class MemoryParts:
    """Keeps summaries of parts, as a database does.

    Attributes:
        texts: What is kept, by key.
        booked: What their calls cost.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.booked: list[ModelCall] = []

    async def load(self) -> Mapping[str, str]:
        return dict(self.texts)

    async def keep(self, key: str, text: str, calls: Sequence[ModelCall]) -> None:
        self.texts[key] = text
        self.booked += calls

    async def forget(self) -> None:
        self.texts.clear()


class MemoryCompactions:
    """Keeps what a planner commits, asks for and tells; the turn begins in segment s1.

    Attributes:
        ahead: The summary that stands prepared; an error is raised to who asks for it.
        failure: Raised by the next commit.
    """

    def __init__(self) -> None:
        self.committed: list[Compaction] = []
        self.states: list[PlannerState] = []
        self.ahead: Summary | Exception | None = None
        self.asked_ahead = 0
        self.told: list[str] = []
        self.failure: Exception | None = None
        self.booked: list[ModelCall] = []
        self.kept_parts = MemoryParts()
        self.said_on: Days = ()

    def parts(self) -> MemoryParts:
        return self.kept_parts

    async def commit(self, compaction: Compaction, state: PlannerState) -> NewSegment:
        if self.failure is not None:
            raise self.failure
        self.committed.append(compaction)
        self.states.append(state)
        return NewSegment(f"s{1 + len(self.committed)}")

    async def book(self, calls: Sequence[ModelCall]) -> None:
        self.booked += calls

    async def days(self, first_seq: int, last_seq: int) -> Days:
        return [each for each in self.said_on if first_seq <= each[0] <= last_seq]

    def archive(self) -> Archive:
        return MemoryArchive()

    async def prepared(self) -> Summary | None:
        if isinstance(self.ahead, Exception):
            raise self.ahead
        return self.ahead

    def prepare(self) -> None:
        self.asked_ahead += 1

    async def tell(self, what: Literal["clipped", "floor"]) -> None:
        self.told.append(what)


class NoLimits:
    """No budget is set; keeps what was forecast, and raises `failure` where there is one.

    Attributes:
        used_up: Whether nothing is left all the same.
    """

    def __init__(self, *, used_up: bool = False) -> None:
        self.forecasts: list[float | None] = []
        self.failure: Exception | None = None
        self.used_up = used_up

    async def exhausted(self) -> bool:
        return self.used_up

    def call(self, forecast_usd: float | None) -> AbstractAsyncContextManager[None]:
        self.forecasts.append(forecast_usd)
        if self.failure is not None:
            raise self.failure
        return nullcontext()


def context(reader: MemoryReader | None = None, **using: Any) -> ToolContext:
    """Return a tool's context; `using` are its fields, and those of its rights and services."""
    rights, services = (
        {each.name: using.pop(each.name) for each in fields(part) if each.name in using}
        for part in (TurnRights, ToolServices)
    )
    return ToolContext(
        "c1",
        reader or MemoryReader(),
        lambda: NOW,
        rights=TurnRights(**rights),
        services=ToolServices(**services),
        **using,
    )


async def through_gate(tools: ToolRegistry, asked: ToolCall, using: ToolContext) -> ToolOutcome:
    """Run a call as a turn does: refused by the policy, or executed."""
    refused, _ = await Gate(ApprovalRules(), tools, using).check(asked, using)
    return refused or await tools.execute(asked, using)


def call(name: str, arguments: str = "{}", call_id: str = "call_1") -> ToolCall:
    return ToolCall(id=call_id, type="function", function={"name": name, "arguments": arguments})
