"""Runs the tool calls of one assistant message: concurrently, journaled, cut to size."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from agent.messages import ToolCall, clean_text, tool_message
from agent.ports import ToolStatus, TurnJournal
from agent.settings import OutputSettings
from agent.tools.registry import ToolBox, ToolContext, ToolOutcome
from agent.tools.truncate import TruncationStats, truncate
from agent.view import Entry

MAX_CONCURRENT = 8
"""Calls of one message that run at the same time."""


async def run_calls(
    calls: Sequence[ToolCall],
    toolbox: ToolBox,
    context: ToolContext,
    journal: TurnJournal,
    limits: OutputSettings,
) -> list[Entry]:
    """Run calls side by side, exclusive ones one at a time; commit each result when it is there.

    The intent is journaled before a call runs, so the transcript holds results in the order in
    which they finished. A cancellation ends all calls and goes on.

    Returns:
        One tool message for each call with its `seq`, in the order of the calls.

    Raises:
        LeaseLost: From the journal; running calls are cancelled.
        RecordingMismatch: A recorded tool box does not know a call.
    """
    batch = _Batch(toolbox, context, journal, limits)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(batch.run(call), name=f"tool {call['function']['name']}")
                for call in calls
            ]
    except BaseExceptionGroup as failures:
        # The caller tells errors apart by their class.
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


@dataclass(slots=True)
class _Batch:
    """The calls of one message while they run."""

    toolbox: ToolBox
    context: ToolContext
    journal: TurnJournal
    limits: OutputSettings
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, call: ToolCall) -> Entry:
        """Run one call from its intent to its committed result."""
        name = call["function"]["name"]
        async with AsyncExitStack() as stack:
            if self.toolbox.exclusive(name):
                await stack.enter_async_context(self.alone)
            await stack.enter_async_context(self.slots)
            await self.journal.start_tool(call, self.toolbox.effect(name))
            outcome = await self.toolbox.execute(call, self.context)
            text, status = await self._fit(outcome)
            message = tool_message(call["id"], name, text)
            seq = await self.journal.record_result(message, status)
        return Entry(seq, message)

    async def _fit(self, outcome: ToolOutcome) -> tuple[str, ToolStatus]:
        """Return text and status as they enter the view; a long text is stored in full."""
        text = clean_text(outcome.text)
        observation = truncate(text, self.limits)
        if not observation.truncated:
            return text, outcome.status
        output_id = await self.journal.store_output(text)
        pointer = _pointer(observation.stats, output_id)
        status: ToolStatus = "partial" if outcome.status == "ok" else outcome.status
        return f"{observation.preview}\n{pointer}", status


def _pointer(stats: TruncationStats, output_id: str) -> str:
    where = {"head": "the first", "tail": "the last", "head_tail": "the first and last"}
    kept, total, unit = stats.kept_lines, stats.original_lines, "lines"
    if kept == total:
        kept, total, unit = stats.kept_bytes, stats.original_bytes, "bytes"
    return (
        f"[output truncated: showing {where[stats.direction]} {kept:,} of {total:,} {unit}; "
        f'full output id {output_id}, read it with read_conversation(output_id="{output_id}")]'
    )
