"""The tool `read_conversation`: earlier messages and stored outputs of this conversation."""

from collections.abc import Iterator, Sequence

from pydantic import Field

from agent.errors import ToolError
from agent.ports import PastMessage
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool

TOTAL_CHARS = 8000
"""Text of one answer, shared evenly by its rows; 4 bytes each stay under tools.output.max_bytes."""
MARK_CHARS = 15
"""Room for the mark of a cut message: 60 bytes, counted as characters of 4."""
ROW_CHARS = 1000
"""Where a long line of a stored output goes on in the next row."""


class ReadArguments(Arguments):
    """What to read."""

    from_seq: int | None = Field(
        None, ge=0, description="First message, or row of the output; left out: the newest messages"
    )
    limit: int = Field(20, ge=1, le=200)
    from_char: int = Field(0, ge=0, description="Where in one long message to begin, with limit 1")
    contains: str | None = Field(None, description="Case ignored")
    output_id: str | None = Field(None, description="Read this output instead")


async def read_conversation(context: ToolContext, arguments: ReadArguments) -> str:
    """Return messages, or rows of a stored output, one block each."""
    if arguments.output_id:
        return await _read_output(context, arguments, arguments.output_id)
    messages = await context.reader.read(
        from_seq=arguments.from_seq, limit=arguments.limit, contains=arguments.contains
    )
    if not messages:
        return "No message of this conversation matches."
    return "\n".join(_shown_messages(messages, arguments.from_char))


def _shown_messages(messages: Sequence[PastMessage], from_char: int) -> Iterator[str]:
    """Yield "#seq role time: text"; texts beyond their share of the total are cut."""
    share = TOTAL_CHARS // len(messages) - MARK_CHARS
    for message in messages:
        text = message.text[from_char : from_char + share]
        end = from_char + len(text)
        if end < len(message.text):
            left = len(message.text) - end
            text += f" [+{left:,} characters; go on with from_seq={message.seq}, from_char={end}]"
        yield f"#{message.seq} {message.role} {message.at}: {text}"


async def _read_output(context: ToolContext, arguments: ReadArguments, output_id: str) -> str:
    output = await context.reader.read_output(output_id)
    if output is None:
        raise ToolError(f"this conversation has no stored output {output_id!r}")
    rows = _rows(output)
    first, wanted = arguments.from_seq or 1, (arguments.contains or "").casefold()
    found = [(n, row) for n, row in enumerate(rows, 1) if n >= first and wanted in row.casefold()]
    page = list(_fitting(found[: arguments.limit]))
    lines = [f"#{number}: {row}" for number, row in page]
    if len(page) < len(found):
        lines.append(f"[{len(rows):,} rows in all; go on with from_seq={found[len(page)][0]}]")
    return "\n".join(lines) or "No row of the output matches."


def _rows(output: str) -> list[str]:
    """Return the lines of an output, long ones in several rows; the same on every call."""
    return [
        line[start : start + ROW_CHARS]
        for line in output.removesuffix("\n").split("\n")
        for start in range(0, max(1, len(line)), ROW_CHARS)
    ]


def _fitting(rows: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    room = TOTAL_CHARS
    for number, row in rows:
        room -= len(row)
        if room < 0:
            return
        yield number, row


TOOL = Tool(
    name="read_conversation",
    description=(
        "Reads earlier messages of this conversation, also those no longer in view, or the full"
        " text of a truncated tool output."
    ),
    effect="read",
    arguments=ReadArguments,
    run=read_conversation,
)
