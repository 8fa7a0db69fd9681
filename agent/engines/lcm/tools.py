"""The tools of the engine `lcm`: `lcm_grep`, `lcm_describe` and `lcm_expand`.

They read only the records of one conversation (`agent.context_engine.Archive`). The records are
untrusted data and go to the model unchanged.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import regex  # type: ignore[import-untyped]
from pydantic import BaseModel, Field, model_validator

from agent.context.extract import INTRODUCTION
from agent.context_engine import Archive, Node
from agent.errors import ToolError
from agent.messages import ToolSchema, decode, full_text
from agent.tokens import estimate_tokens
from agent.tools.registry import Arguments, fitting, parameter_schema
from agent.tools.truncate import excerpt

MOST_PATTERN_CHARS = 200
PATTERN_TIMEOUT_S = 1.0
"""Time limit in seconds for a pattern's search in all texts of one call."""
MOST_REPEATED = 10_000
"""Largest product of a pattern's repetition counts: they are unrolled and take memory."""
MATCHED_CHARS = 200_000
"""Characters of one message that a pattern is matched against."""
MOST_FOUND = 200
"""Most messages that one `lcm_grep` query finds, over all its pages."""
SCANNED_ROWS = 2_000
SCANNED_CHARS = 4_000_000
"""Most messages and characters that one pattern searches; the answer says where to continue."""
EXCERPT_CHARS = 300
PAGE_TOKENS = 8_000
CHARS_PER_TOKEN = 4
"""A page has at most 8,000 tokens of 4 characters: the loop does not cut results below 32,000."""
LAST_SEQ = 2**31 - 1
"""Greater than any message's seq."""
ROWS_AT_ONCE = 100
"""Messages read from the archive at once."""
TITLE_CHARS = 120
"""Characters of a node's text shown in its line."""


class GrepArguments(Arguments):
    """Arguments of `lcm_grep`."""

    query: str | None = Field(None, max_length=1000, description="Words; most of them first")
    pattern: str | None = Field(
        None, max_length=MOST_PATTERN_CHARS, description="Or a regular expression, case ignored"
    )
    from_seq: int = Field(default=1, ge=1)
    to_seq: int | None = Field(default=None, ge=1)
    neighbours: int = Field(default=0, ge=0, le=5, description="Messages to show around each")
    limit: int = Field(default=10, ge=1, le=50)
    page: int = Field(default=1, ge=1, le=20)

    @model_validator(mode="after")
    def _one_way(self) -> "GrepArguments":
        # A schema cannot express "one of two" in a form that all providers accept.
        if (self.query is None) == (self.pattern is None):
            raise ValueError("give either query or pattern")
        return self


class DescribeArguments(Arguments):
    """Arguments of `lcm_describe`."""

    node: int | None = Field(default=None, ge=1, description="Left out: all, without their texts")


class ExpandArguments(Arguments):
    """Arguments of `lcm_expand`."""

    node: int | None = Field(default=None, ge=1)
    from_seq: int | None = Field(default=None, ge=1)
    to_seq: int | None = Field(default=None, ge=1, description="Left out: from_seq alone")
    from_char: int = Field(default=0, ge=0, description="Where in the first one to begin")
    max_tokens: int = Field(default=4_000, ge=100, le=PAGE_TOKENS)

    @model_validator(mode="after")
    def _one_thing(self) -> "ExpandArguments":
        if self.node is None and self.from_seq is None:
            raise ValueError("give a node or from_seq")
        return self


def answer(name: str, arguments: Mapping[str, Any], archive: Archive) -> str:
    """Run one of the tools; raises `ToolError` with a text for the model."""
    if name not in _TOOLS:
        raise ToolError(f"the engine lcm offers no tool {name!r}")
    model, run = _TOOLS[name]
    return run(fitting(name, model, arguments), archive)


def grep(arguments: GrepArguments, archive: Archive) -> str:
    """Return the found messages, grouped by the nodes that cover them."""
    first = (arguments.page - 1) * arguments.limit
    most = min(MOST_FOUND, first + arguments.limit + 1)
    # A long turn is compacted while it runs, so a node may cover its messages.
    end = max((archive.turn_begins_at - 1, *(node.last_seq for node in archive.nodes())))
    last = min(arguments.to_seq or LAST_SEQ, end)
    note = ""
    if arguments.query is not None:
        within = range(arguments.from_seq, last + 1)
        # The whole ranking: limiting the range could drop the best matches.
        found = archive.find(arguments.query, MOST_FOUND, end + 1)
        found = [seq for seq in found if seq in within][:most]
    else:
        found, note = _matching(arguments, archive, last, most)
    page = found[first : first + arguments.limit]
    if not page:
        return f"No message of this conversation matches. {note}".strip()
    lines = [note] if note else []
    if len(found) > first + arguments.limit:
        lines.append(f"[there are more: page={arguments.page + 1}]")
    return "\n".join([*_found_lines(page, arguments, archive, end), *lines])


def _matching(
    arguments: GrepArguments, archive: Archive, last: int, most: int
) -> tuple[list[int], str]:
    """Return the seqs of matching messages, and a note on where to continue."""
    pattern = _compiled(arguments.pattern or "")
    deadline = time.monotonic() + PATTERN_TIMEOUT_S
    found: list[int] = []
    seq, left_chars = arguments.from_seq, SCANNED_CHARS
    for _ in range(SCANNED_ROWS // ROWS_AT_ONCE):
        rows = archive.bodies(seq, last, ROWS_AT_ONCE)
        for place, body in rows:
            text = full_text(decode(body))[:MATCHED_CHARS]
            # Counted even if nothing more is matched: reading and decoding take the time.
            left_chars -= len(text)
            if len(found) < most and left_chars >= 0 and _matches(pattern, text, deadline):
                found.append(place)
            seq = place + 1
        if len(rows) < ROWS_AT_ONCE:
            return found, ""
        if left_chars < 0 or len(found) >= most:
            break
    return found, f"[looked at no message behind {seq - 1}; go on with from_seq={seq}]"


def _compiled(text: str) -> Any:
    # Compiling nested counts takes memory and time, which no search timeout limits.
    counts = [int(number) for number in re.findall(r"[{,]\s*(\d{1,9})", text)]
    if math.prod(max(1, count) for count in counts) > MOST_REPEATED:
        raise ToolError("the pattern repeats too often; use * or + in place of large counts")
    try:
        return regex.compile(text, regex.IGNORECASE)
    except (regex.error, RecursionError, OverflowError) as exc:
        raise ToolError(f"the pattern is not a regular expression: {exc}") from exc


def _matches(pattern: Any, text: str, deadline: float) -> bool:
    left_s = deadline - time.monotonic()
    try:
        if left_s > 0:
            # `concurrent` releases the interpreter lock while the pattern runs.
            return pattern.search(text, timeout=left_s, concurrent=True) is not None
    except TimeoutError:
        pass
    raise ToolError("the pattern takes too long; use a simpler one, or a smaller range of messages")


def _by_node(found: Sequence[int], nodes: Sequence[Node]) -> dict[Node | None, list[int]]:
    """Group found messages by the lowest node that covers them, ordered by best match."""
    groups: dict[Node | None, list[int]] = {}
    for seq in found:
        covering = (node for node in nodes if node.first_seq <= seq <= node.last_seq)
        lowest = min(covering, key=lambda node: (node.level, node.number), default=None)
        groups.setdefault(lowest, []).append(seq)
    return groups


def _found_lines(
    page: Sequence[int], arguments: GrepArguments, archive: Archive, end: int
) -> Iterator[str]:
    look_for = arguments.query or arguments.pattern or ""
    for node, seqs in _by_node(page, archive.nodes()).items():
        yield "in no node yet:" if node is None else f"in node {node.number} ({_span(node)}):"
        for seq in seqs:
            low, high = max(1, seq - arguments.neighbours), seq + arguments.neighbours
            for place, body in archive.bodies(low, min(high, end), high - low + 1):
                mark = "*" if place == seq else " "
                message = decode(body)
                flat = " ".join(full_text(message).split())
                text = excerpt(flat, EXCERPT_CHARS, look_for if place == seq else "")
                yield f"{mark} #{place} {message['role']}: {text}"


def describe(arguments: DescribeArguments, archive: Archive) -> str:
    """Return one node with its text, or one line for each node."""
    nodes = archive.nodes()
    if arguments.node is None:
        return "\n".join(map(_line, nodes)) or "There are no nodes yet: everything is in view."
    node = _node(arguments.node, nodes)
    below = [_line(each) for each in nodes if each.number in node.children]
    return "\n".join([_line(node), *below, "", node.text])


def _node(number: int, nodes: Sequence[Node]) -> Node:
    found = next((node for node in nodes if node.number == number), None)
    if found is None:
        raise ToolError(f"this conversation has no node {number}; lcm_describe() lists them")
    return found


def _line(node: Node) -> str:
    below = f", of nodes {', '.join(map(str, node.children))}" if node.children else ""
    said = (line for line in node.text.splitlines() if line != INTRODUCTION)
    title = " ".join(" ".join(said).split())[:TITLE_CHARS]
    return (
        f"node {node.number}: level {node.level}, {_span(node)}{below}, {node.tokens:,} tokens for"
        f" {node.source_tokens:,}, by {node.source}: {title}"
    )


def _span(node: Node) -> str:
    return f"messages {node.first_seq} to {node.last_seq}"


def expand(arguments: ExpandArguments, archive: Archive) -> str:
    """Return a page of originals, byte for byte, after a line that says where to continue."""
    first = arguments.from_seq or 1
    if arguments.node is None:
        last = max(first, arguments.to_seq or first)
    else:
        node = _node(arguments.node, archive.nodes())
        first, last = max(node.first_seq, first), node.last_seq
    found = page_of(archive, first, last, arguments.from_char, arguments.max_tokens)
    if found is None:
        return f"There are no messages from {first} to {last}."
    page, behind = found
    more = "that is all of it"
    if behind is not None:
        seq, char = behind
        more = f"go on with from_seq={seq}, from_char={char}, to_seq={last}"
    return f"[messages {first} to {last} as they are stored; {more}]\n{page}"


def page_of(
    archive: Archive, first: int, last: int, from_char: int, max_tokens: int
) -> tuple[str, tuple[int, int] | None] | None:
    """Return one page of a range as stored, and the (seq, character) of the next page or None.

    It begins at `from_char` of the first message; a message's line break is its last character.
    """
    parts: list[str] = []
    room = max_tokens
    for seq, line in _stored_lines(archive, first, last):
        start = from_char if seq == first else 0
        rest = line[start:]
        part = _fitting(rest, room)
        parts.append(part)
        if len(part) < len(rest):
            return "".join(parts), (seq, start + len(part))
        room -= estimate_tokens(part)
    return ("".join(parts), None) if parts else None


def _stored_lines(archive: Archive, first: int, last: int) -> Iterator[tuple[int, str]]:
    while rows := archive.bodies(first, last, ROWS_AT_ONCE):
        for seq, body in rows:
            # With its line break, so that all pages joined are the originals, byte for byte.
            yield seq, f"{body}\n"
        first = rows[-1][0] + 1


def _fitting(text: str, room_tokens: int) -> str:
    """Return about the longest beginning of a text that fits; at least one character."""
    part = text[: max(1, room_tokens) * CHARS_PER_TOKEN]
    while len(part) > 1 and (taken := estimate_tokens(part)) > room_tokens:
        part = part[: max(1, min(len(part) - 1, len(part) * max(0, room_tokens) // taken))]
    return part


_TOOLS: dict[str, tuple[type[BaseModel], Callable[[Any, Archive], str]]] = {
    "lcm_grep": (GrepArguments, grep),
    "lcm_describe": (DescribeArguments, describe),
    "lcm_expand": (ExpandArguments, expand),
}
_DESCRIPTIONS = {
    "lcm_grep": (
        "Searches every message of this conversation, also those no longer in view, by words or by"
        " a pattern. Results stand under the node that covers them."
    ),
    "lcm_describe": (
        "Describes the nodes that stand for what is no longer in view: their ranges, levels, sizes,"
        " and the text of one."
    ),
    "lcm_expand": "Returns the messages behind a node or of a range, word for word, in pages.",
}
SCHEMAS = tuple(
    ToolSchema(name, _DESCRIPTIONS[name], parameter_schema(model))
    for name, (model, _) in _TOOLS.items()
)
