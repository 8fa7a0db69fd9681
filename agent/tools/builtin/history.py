"""The tools for past conversations: `read_conversation` and `session_search`.

`read_conversation` reads earlier messages and stored outputs of this conversation.
`session_search` finds messages by words, including those in the same person's other chats.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agent.errors import ToolError
from agent.ports import Findings, Hit, PastMessage, SearchQuery
from agent.tools.context import ToolContext, require
from agent.tools.registry import Arguments, tool
from agent.tools.truncate import excerpt

READ_CHARS = 8000
"""Characters of one answer, shared by its rows; at 4 bytes each within tools.output.max_bytes."""
MARK_CHARS = 15
"""Characters reserved for the mark of a cut message: 60 bytes, at 4 bytes per character."""
ROW_CHARS = 1000
"""A longer line of a stored output continues in the next row."""


class HistoryArguments(Arguments):
    """Arguments of `read_conversation`."""

    from_seq: int | None = Field(
        None, ge=0, description="First message, or row of the output; left out: the newest messages"
    )
    limit: int = Field(20, ge=1, le=200)
    from_char: int = Field(0, ge=0, description="Where in one long message to begin, with limit 1")
    contains: str | None = Field(None, description="Case ignored")
    output_id: str | None = Field(None, description="Read this output instead")


@tool(
    "Reads earlier messages of this conversation, also those no longer in view, or the full"
    " text of a truncated tool output.",
    "read",
)
async def read_conversation(context: ToolContext, arguments: HistoryArguments) -> str:
    """Return messages, or rows of a stored output, one block each."""
    if arguments.output_id:
        return await _read_output(context, arguments, arguments.output_id)
    # The reader is bound to this conversation: no argument can select another one.
    messages = await context.reader.read(
        from_seq=arguments.from_seq, limit=arguments.limit, contains=arguments.contains
    )
    if not messages:
        return "No message of this conversation matches."
    await context.rights.read.note_all(messages)
    return "\n".join(_shown_messages(messages, arguments.from_char))


def _shown_messages(messages: Sequence[PastMessage], from_char: int) -> Iterator[str]:
    """Yield "#seq role time: text"; cut texts that exceed their share of the total."""
    share = READ_CHARS // len(messages) - MARK_CHARS
    for message in messages:
        text = message.text[from_char : from_char + share]
        end = from_char + len(text)
        if end < len(message.text):
            left = len(message.text) - end
            text += f" [+{left:,} characters; go on with from_seq={message.seq}, from_char={end}]"
        yield f"#{message.seq} {message.role} {message.at}: {text}"


async def _read_output(context: ToolContext, arguments: HistoryArguments, output_id: str) -> str:
    await context.rights.read.note_earlier()
    output = await context.reader.read_output(output_id)
    if output is None:
        raise ToolError(f"this conversation has no stored output {output_id!r}")
    # A long line is split into several rows, identically on every call.
    rows = [
        line[start : start + ROW_CHARS]
        for line in output.removesuffix("\n").split("\n")
        for start in range(0, max(1, len(line)), ROW_CHARS)
    ]
    first, wanted = arguments.from_seq or 1, (arguments.contains or "").casefold()
    found = [(n, row) for n, row in enumerate(rows, 1) if n >= first and wanted in row.casefold()]
    page = list(_fitting(found[: arguments.limit]))
    lines = [f"#{number}: {row}" for number, row in page]
    if len(page) < len(found):
        lines.append(f"[{len(rows):,} rows in all; go on with from_seq={found[len(page)][0]}]")
    return "\n".join(lines) or "No row of the output matches."


def _fitting(rows: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    room = READ_CHARS
    for number, row in rows:
        room -= len(row)
        if room < 0:
            return
        yield number, row


FOUND_CHARS = 10_000
"""Characters of one answer; at 4 bytes each, marks included, they fit tools.output.max_bytes."""
FOUND_SHARES = 4
"""A found message may be this many times as long as a neighbour."""
LEAST_CHARS = 60
MARKS = "> contains the words, ~ was found by its neighbours or by its meaning. "
"""Explained in answers rather than in every request."""

_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]


class HistorySearchArguments(Arguments):
    """Arguments of `session_search`."""

    query: _Words = Field(description="Words, or a plain question; no operators")
    limit: int = Field(10, ge=1, le=30)
    role: Literal["user", "assistant", "tool"] | None = None
    since: str | None = Field(None, description="ISO 8601, UTC")
    until: str | None = None
    neighbours: int = Field(3, ge=0, le=3, description="Shown around each")
    order: Literal["best", "time"] = "best"


@tool(
    "Finds messages by their words: in this conversation, also those no longer in view, and"
    " from a direct chat in the same sender's others; never other people's. read_conversation"
    " reads on from a number (#12) of this conversation.",
    "read",
)
async def session_search(context: ToolContext, arguments: HistorySearchArguments) -> str:
    """Return found messages with their neighbours, best first, and the searched scope."""
    searcher = require(context.services.searcher, "there is nothing to search here")
    findings = await searcher.search(SearchQuery(**arguments.model_dump(exclude={"order"})))
    if arguments.order == "time":
        findings = replace(findings, hits=tuple(sorted(findings.hits, key=_said_at)))
    found = (message for hit in findings.hits for message in hit.messages)
    await context.rights.read.note_all(found)
    return answer_of(findings, arguments.query)


def _said_at(hit: Hit) -> tuple[str, int, int]:
    at = next((each.at for each in hit.messages if each.seq == hit.seq), "")
    return at, hit.conversation, hit.seq


def answer_of(findings: Findings, query: str) -> str:
    """Format the answer for the model, with at most `FOUND_CHARS` of texts and marks."""
    return "\n".join(_shown(findings, query))


def _shown(findings: Findings, query: str) -> Iterator[str]:
    if not findings.hits:
        yield "Nothing was found. Other words may help: only words are compared, not meanings."
    passages = _passages(findings.hits)
    share = _share(passages)
    for hit, seqs, messages in passages:
        title = " ".join(hit.title.split()) or "no title"
        elsewhere = f"another direct chat of the same sender: {title}"
        yield f"--- {'this conversation' if hit.here else elsewhere}"
        for message in messages:
            room = share * (FOUND_SHARES if message.seq in seqs else 1)
            mark = seqs.get(message.seq, " ")
            text = excerpt(message.text, room, query if message.seq in seqs else "")
            yield f"{mark} #{message.seq} {message.role} {message.at}: {text}"
    yield f"[{MARKS if findings.hits else ''}{findings.scope}]"


Passage = tuple[Hit, dict[int, str], list[PastMessage]]
"""The best hit of a passage, the marks of its found messages by seq, and its messages in order."""


def _passages(hits: Sequence[Hit]) -> list[Passage]:
    """Group hits into passages, best first; hits with common messages share one."""
    passages: list[Passage] = []
    for hit in hits:
        same = (each for each in passages if each[0].conversation == hit.conversation)
        seqs = {each.seq for each in hit.messages}
        meeting = (it for it in same if not seqs.isdisjoint(each.seq for each in it[2]))
        known, mark = next(meeting, None), ">" if hit.holds else "~"
        if known is None:
            passages.append((hit, {hit.seq: mark}, list(hit.messages)))
            continue
        merged = {message.seq: message for message in (*known[2], *hit.messages)}
        known[1][hit.seq] = mark
        known[2][:] = [merged[seq] for seq in sorted(merged)]
    return passages


def _share(passages: Sequence[Passage]) -> int:
    """Return the characters allotted to a neighbour; short texts leave room for the others."""
    sizes = [
        (len(message.text), FOUND_SHARES if message.seq in seqs else 1)
        for _, seqs, messages in passages
        for message in messages
    ]
    room, shares = FOUND_CHARS, sum(weight for _, weight in sizes)
    # In ascending order of length: a short text leaves its unused share to the others.
    for size, weight in sorted(sizes, key=lambda each: each[0] / each[1]):
        if size * shares > room * weight:
            break
        room -= size
        shares -= weight
    return max(LEAST_CHARS, room // max(1, shares))
