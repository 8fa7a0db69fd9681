"""The tool `send_file`: the user gets a text as a file, with the answer of the turn."""

import mimetypes

from pydantic import Field

from agent.errors import ToolError
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool


class FileArguments(Arguments):
    """The file."""

    name: str = Field(description="With its ending, such as report.md")
    text: str


async def send_file(context: ToolContext, arguments: FileArguments) -> str:
    """Store the file; it is shown together with the answer."""
    if context.files is None:
        raise ToolError("no files can be sent here")
    if not arguments.name.strip():
        raise ToolError("a file needs a name")
    content = arguments.text.encode(errors="replace")
    mime = mimetypes.guess_type(arguments.name)[0] or "text/plain"
    name = await context.files.offer(arguments.name, mime, content)
    return f"The file {name!r} ({len(content):,} bytes) will be shown with your answer."


TOOL = Tool(
    name="send_file",
    description=(
        "Sends the user a text as a file: when they ask for one, or will keep it or open it in"
        " another program."
    ),
    effect="idempotent",
    arguments=FileArguments,
    run=send_file,
)
