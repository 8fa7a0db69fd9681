"""What the crash tests' model answers: a chain of hashes that loss, repeat and reorder break.

A message is "m7 look note": its id, then what the model shall do before it answers. The answer to
a turn is the ids it answers and sha1(previous answer + text of the turn).
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

from agent.messages import ChatMessage, ToolCall, text_of
from agent.ports import Effect
from agent.turn.loop import OUTCOME_UNKNOWN

TOOLS: dict[str, Effect] = {
    "look": "read",
    "ask": "read",
    "long": "read",
    "huge": "read",
    "put": "idempotent",
    "note": "side_effect",
    "boom": "read",
    "hand": "idempotent",
    "plan": "idempotent",
    "keep": "idempotent",
    "shell": "side_effect",
}
"""Verbs that are tools. `ask` asks a person; the outputs of `long` and `huge` are stored apart;
`boom` kills, `hand` has a file shown, `plan` and `keep` write into the notebook, `shell` runs a
command that never ends."""

CHILDREN = {"child": "note", "waits": "gate"}
"""Verbs that are delegated: what the child of such a message shall do."""

FOREIGN = {"far": "mcp_far_wait"}
"""Verbs that are tools of an MCP server; this one never ends."""

Verb = Literal["gate", "die", "exit", "crash", "leave", "trouble", "parts", "stuck"]
"""Verbs of the model: wait at the platform, end the process (SIGKILL, without a trace, SIGSEGV,
SystemExit), be unreachable for three calls, answer in two payloads. A turn with `stuck` cannot
begin."""

SMALL_WINDOW = 9_000
LONG = "x" * 2_600
"""A verb that does nothing but fill the view; four such messages outgrow a small window's half."""
SUMMARY = (
    "## Goal\nGo on with the chain.\n## Progress\n### Done\n1. Answered.\n"
    "## Critical Context\nNothing else."
)

PAYLOADS = "\n---\n"
LAST_PAYLOAD = " part 2"
UNFINISHED = " …"
RESENT = "(re-sent) "


def ids_of(text: str) -> list[str]:
    """Return the ids of the messages in a turn's text."""
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def asks(text: str, verb: Verb) -> bool:
    """Whether a message of the turn has the verb."""
    return any(verb in line.split()[1:] for line in text.splitlines())


def calls_for(text: str) -> list[ToolCall]:
    """Return the tool calls that a turn's text asks for, in order."""
    return [
        _call(words[0], verb)
        for words in (line.split() for line in text.splitlines())
        for verb in words[1:]
        if verb in {*TOOLS, *CHILDREN, *FOREIGN}
    ]


def task_of(message_id: str, verb: str) -> str:
    """Return what a child is asked: its id, and its verb."""
    return f"{message_id}c {CHILDREN[verb]}"


def _call(message_id: str, tool: str) -> ToolCall:
    function = {"name": FOREIGN.get(tool, tool), "arguments": f'{{"line":"{message_id}"}}'}
    if tool in CHILDREN:
        arguments = f'{{"task":"{task_of(message_id, tool)}"}}'
        function = {"name": "delegate_task", "arguments": arguments}
    return {"id": f"{message_id}-{tool}", "type": "function", "function": function}  # type: ignore[typeddict-item]


def answer(previous: str, text: str, results: Sequence[ChatMessage]) -> str:
    """Return the answer to a turn; it names the calls that were reported as unknown."""
    digest = hashlib.sha1((previous + text).encode(), usedforsecurity=False).hexdigest()
    unknown = [call["tool_call_id"] for call in results if text_of(call) == OUTCOME_UNKNOWN]
    first = " ".join([",".join(ids_of(text)), digest, *(f"unknown:{call}" for call in unknown)])
    return f"{first}{PAYLOADS}{first}{LAST_PAYLOAD}" if asks(text, "parts") else first


def split_view(view: Sequence[ChatMessage]) -> tuple[str, str, list[ChatMessage]]:
    """Return the previous answer, the newest turn's text, and what it has recorded so far."""
    start = max(n for n, message in enumerate(view) if message["role"] == "user")
    return previous_answer(view[:start]), text_of(view[start]), list(view[start + 1 :])


def previous_answer(messages: Sequence[ChatMessage]) -> str:
    """Return the newest text that the assistant said; empty before the first."""
    said = [text_of(message) for message in messages if message["role"] == "assistant"]
    return next((text for text in reversed(said) if text), "")
