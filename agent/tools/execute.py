"""Run the tool calls of one assistant message: concurrently, journaled, cut to size."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Literal

from agent import spans
from agent.errors import ToolError, TurnSuspended
from agent.messages import ToolCall, clean_text, tool_message
from agent.ports import Files, ToolStatus, TurnJournal
from agent.safety.redaction import Redactor
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.gate import ApprovalRules, Gate, arguments_of, is_asked
from agent.tools.links import RECALLING
from agent.tools.registry import ToolRegistry
from agent.tools.truncate import Observation, truncate
from agent.view.view import Entry

TOOL = "execute_tool"
TOOL_NAME = "gen_ai.tool.name"
TOOL_STATUS = "parley.tool.status"
"""Attribute of a call's span. Source: OpenTelemetry's conventions for generative AI."""
MOST_NAME_CHARS = 100
MAX_CONCURRENT = 8
"""Most calls of one message that run concurrently."""
MAX_ASKED = 8
"""Most open approval questions per message, so as not to flood the chat; further ones follow."""


async def run_calls(
    calls: Sequence[ToolCall],
    toolbox: ToolRegistry,
    context: ToolContext,
    journal: TurnJournal,
    approval: ApprovalRules,
) -> list[Entry]:
    """Run calls concurrently, exclusive ones one at a time; commit each result as it arrives.

    Each call first passes the gate (agent/tools/gate.py), and its intent is journaled before it
    runs. The transcript lists results in the order in which they finished. A cancellation ends all
    calls and propagates.

    Returns:
        One tool message for each call with its `seq`, in the order of the calls.

    Raises:
        TurnSuspended: Calls await a person's approval; all other calls have results.
        LeaseLost: Raised by the journal; running calls are cancelled.
        RecordingMismatch: The replayed recording does not contain a call.
    """
    gate = Gate(approval, toolbox, context)
    # The model wrote all calls of a message before it read any of their results.
    gate.record_reads(calls)
    batch = _Batch(gate, journal)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(batch.run(call), name=f"tool {call['function']['name']}")
                for call in calls
            ]
    except BaseExceptionGroup as failures:
        # The caller distinguishes errors by class.
        raise failures.exceptions[0] from failures
    entries = [entry for task in tasks if (entry := task.result()) is not None]
    if len(entries) < len(calls):
        raise TurnSuspended(f"{len(calls) - len(entries)} tool calls wait for a person")
    return entries


@dataclass(slots=True)
class _Batch:
    gate: Gate
    journal: TurnJournal
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0

    async def run(self, call: ToolCall) -> Entry | None:
        """Process one call from gate to committed result; return None if it awaits approval."""
        name = call["function"]["name"]
        async with AsyncExitStack() as stack:
            if self.gate.toolbox.exclusive(name):
                # Before taking a slot: a call that waits for others must not block one that can
                # run.
                await stack.enter_async_context(self.alone)
            await stack.enter_async_context(self.slots)
            if self.waiting >= MAX_ASKED and is_asked(self.gate.decision(call)):
                return None
            try:
                outcome = await self._outcome(call)
            except TurnSuspended:
                self.waiting += 1
                self._show(call, "waiting")
                return None
            self._show(call, outcome.status)
            text, status = await self._fit(outcome)
            message = tool_message(call["id"], name, text)
            read = self.gate.context.rights.read
            origins, marks = frozenset(read.origins), read.marks_of(call["id"])
            seq = await self.journal.record_result(message, status, origins, marks)
        return Entry(seq, message)

    async def _outcome(self, call: ToolCall) -> ToolOutcome:
        """Run a call if permitted; journal its outcome either way."""
        name = call["function"]["name"]
        toolbox, given, redactor = self.gate.toolbox, self.gate.context, self.gate.rules.redactor
        files = given.files and CheckedFiles(given.files, redactor)
        rights = replace(given.rights, redirects=self.gate.redirects(call))
        context = replace(given, call_id=call["id"], files=files, rights=rights)
        refused, decision = await self.gate.check(call, context)
        # Committed before the call runs: after a crash it shows what may have happened.
        effect = "none" if refused else toolbox.effect(name)
        await self.journal.start_tool(call, effect, decision)
        if refused is not None:
            return refused
        if context.services.progress is not None:
            context.services.progress.working(call)
        # The model may have invented the name.
        told = {
            "gen_ai.operation.name": TOOL,
            TOOL_NAME: name[:MOST_NAME_CHARS],
            "gen_ai.tool.call.id": call["id"][:MOST_NAME_CHARS],
        }
        with spans.span(TOOL, told) as here:
            outcome = await toolbox.execute(call, context)
            # Before the result is shown or stored.
            outcome = replace(outcome, text=redactor.configured(outcome.text))
            rights.read.trail.recalled |= name in RECALLING
            here.note(**{TOOL_STATUS: outcome.status})
        if context.services.hooks is not None:
            await context.services.hooks.after(name, arguments_of(call), outcome, context)
        return outcome

    def _show(self, call: ToolCall, status: ToolStatus | Literal["waiting"]) -> None:
        if (progress := self.gate.context.services.progress) is not None:
            progress.worked(call, status)

    async def _fit(self, outcome: ToolOutcome) -> tuple[str, ToolStatus]:
        """Return text and status for the view; store the full text if it is long."""
        text = clean_text(outcome.text)
        observation = truncate(text, self.gate.toolbox.output)
        if not observation.truncated:
            return text, outcome.status
        output_id = await self.journal.store_output(text)
        status: ToolStatus = "partial" if outcome.status == "ok" else outcome.status
        return f"{observation.preview}\n{_pointer(observation, output_id)}", status


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """`agent.ports.Files` that refuse a file containing a secret from the settings.

    They check every byte of any file type, but do not look inside archives and compressed formats.
    """

    files: Files
    redactor: Redactor

    async def offer(self, name: str, mime: str, content: bytes) -> str:
        """Store a file; raise a ToolError if it contains a secret or is refused."""
        # Takes five milliseconds per megabyte.
        if self.redactor.holds_configured(name) or await asyncio.to_thread(
            self.redactor.is_in, content
        ):
            raise ToolError(
                "the file holds a secret of Parley's settings (a key, a token or a password), so it"
                " is not sent. Take that out first"
            )
        return await self.files.offer(name, mime, content)


def _pointer(cut: Observation, output_id: str) -> str:
    where = {"head": "the first", "tail": "the last", "head_tail": "the first and last"}
    kept, total, unit = cut.kept_lines, cut.original_lines, "lines"
    if kept == total:
        kept, total, unit = cut.kept_bytes, cut.original_bytes, "bytes"
    return (
        f"[output truncated: showing {where[cut.direction]} {kept:,} of {total:,} {unit}; "
        f'full output id {output_id}, read it with read_conversation(output_id="{output_id}")]'
    )
