"""What people see of the tools while a turn runs (step 7b): one line for each call; pure.

Names and arguments are the model's words: they are shown as text without any formatting, short,
and without what is secret.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Literal

from agent.messages import ToolCall
from agent.models.arguments import read_arguments
from agent.ports import ToolStatus
from agent.redaction import masked_assignments

MAX_LINES = 5
HINT_CHARS = 60
_NAME_CHARS = 64
_MAX_ARGUMENTS_CHARS = 100_000
_READ_CHARS = 2_000
# The first of these that is there tells best what a call is about.
_TELLING = ("command", "path", "url", "query", "pattern", "task", "question", "expression", "name")
_MARKS = {"running": "🔧", "ok": "✓", "partial": "✓", "waiting": "⏸"}
_FAILED = "⚠️"
_LINE_BREAK = "  \n"
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]+")

CallState = ToolStatus | Literal["running", "waiting"]


class ToolLines:
    """The calls of a turn, as they are shown.

    Args:
        redact: Takes what is secret out of a text.
    """

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        # Some servers use the id of a call again in a later step, for another call.
        self._states: dict[tuple[str, str], CallState] = {}

    def set(self, call: ToolCall, state: CallState) -> None:
        """Take note of a call, or of what became of it."""
        self._states[call["id"], label(call, self._redact)] = state

    @property
    def text(self) -> str:
        """The newest lines, in the order in which the calls began; as markdown, "" for none."""
        newest = [*self._states.items()][-MAX_LINES:]
        lines = [_line(text, state) for (_, text), state in newest]
        if (earlier := len(self._states) - len(lines)) > 0:
            lines.insert(0, f"+{earlier} earlier")
        return _LINE_BREAK.join(lines)


def _line(text: str, state: CallState) -> str:
    mark = _MARKS.get(state, _FAILED)
    if state != "waiting":
        return f"{mark} {text}"
    awaited = "an answer" if text.startswith("clarify") else "approval"
    return f"{mark} {text} (waiting for {awaited})"


def label(call: ToolCall, redact: Callable[[str], str]) -> str:
    """Return what a call is and, shortly, what it is about; as markdown."""
    function = call["function"]
    name = _NOT_NAME.sub("", function["name"])[:_NAME_CHARS].replace("_", r"\_") or "?"
    hint = _hint(function["arguments"], redact)
    return f"{name}: `{hint}`" if hint else name


def _hint(raw: str, redact: Callable[[str], str]) -> str:
    values = read_arguments(raw) if len(raw) <= _MAX_ARGUMENTS_CHARS else None
    found: Any = next((values[key] for key in _TELLING if values and values.get(key)), "")
    if not isinstance(found, str):
        return ""
    text = _one_line(masked_assignments(redact(found[:_READ_CHARS])))
    return text if len(text) <= HINT_CHARS else text[: HINT_CHARS - 1].rstrip() + "…"


def _one_line(text: str) -> str:
    """Return a text on one line, without what is invisible and without the end of a code span."""
    seen = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in text)
    return " ".join(seen.replace("`", "'").split())
