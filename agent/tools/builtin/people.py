"""The tools that reach other parties: `clarify`, `send_file` and `delegate_task`.

`clarify` asks the user a question and waits for the answer. `send_file` sends the user a text as a
file, together with the turn's answer. `delegate_task` assigns a task to another agent.
"""

import mimetypes
from dataclasses import asdict
from typing import Annotated

import orjson
from pydantic import Field, StringConstraints

from agent.errors import ToolError
from agent.ports import Inquiry
from agent.safety.pasted import has_pasted
from agent.tools.context import ToolContext, require
from agent.tools.registry import Arguments, tool

MOST_CHOICES = 5
LABEL_CHARS = 60
"""Longest choice; it becomes the label of a button."""
QUESTION_CHARS = 1_500
NOBODY_ANSWERED = (
    "Nobody answered in time. Go on without an answer: use your best judgement and say what you"
    " assumed, or say what you need to know."
)

Label = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LABEL_CHARS)
]


class ClarifyArguments(Arguments):
    """Arguments of `clarify`."""

    question: str = Field(min_length=1, max_length=QUESTION_CHARS)
    choices: tuple[Label, ...] = Field(
        default=(),
        max_length=MOST_CHOICES,
        description="Shown as buttons; other answers are possible",
    )


@tool(
    "Asks the person one question and waits for the answer. Only for what you cannot find out"
    " and must know before you go on, where a wrong guess would do harm; else choose, and say"
    " what you chose.",
    "read",
)
async def clarify(context: ToolContext, arguments: ClarifyArguments) -> str:
    """Ask the user and return the answer; the turn waits meanwhile."""
    nobody = "nobody can be asked here. Use your best judgement and say what you assumed"
    people = require(context.services.people, nobody)
    inquiry = Inquiry(
        "clarify", context.call_id, clarify.name, arguments.question, arguments.choices
    )
    reply = await people.ask(inquiry)
    if reply.state != "answered":
        return NOBODY_ANSWERED
    # The agent may have requested a text, which users paste.
    if has_pasted(reply.text, alone=False):
        context.rights.read.note("pasted", context.call_id)
    return f"The answer: {reply.text}"


class FileArguments(Arguments):
    """Arguments of `send_file`."""

    name: str = Field(description="With its ending, such as report.md")
    text: str


@tool(
    "Sends the user a text as a file: when they ask for one, or will keep it or open it in"
    " another program.",
    "idempotent",
)
async def send_file(context: ToolContext, arguments: FileArguments) -> str:
    """Store the file; it is sent together with the answer."""
    files = require(context.files, "no files can be sent here")
    if not arguments.name.strip():
        raise ToolError("a file needs a name")
    content = arguments.text.encode(errors="replace")
    mime = mimetypes.guess_type(arguments.name)[0] or "text/plain"
    name = await files.offer(arguments.name, mime, content)
    return f"The file {name!r} ({len(content):,} bytes) will be shown with your answer."


MAX_TASK_CHARS = 70_000
LONGEST_S = 86_400.0
"""Timeout of the call in seconds; the delegated turn has limits of its own."""


class DelegateArguments(Arguments):
    """Arguments of `delegate_task`."""

    task: str = Field(
        min_length=1,
        max_length=MAX_TASK_CHARS,
        description="What to do, all that it has to know, and what to report: it sees nothing else"
        " of this conversation",
    )


@tool(
    "Has another agent, with the same tools and directory, do a self-contained piece of work,"
    " and returns its report. For work whose details you need not see: research, reading much,"
    " trying things out. It cannot ask back. Up to three calls run side by side.",
    "idempotent",
    timeout_s=LONGEST_S,
)
async def delegate_task(context: ToolContext, arguments: DelegateArguments) -> str:
    """Run the task and return its result as JSON."""
    delegates = require(context.services.delegates, "nothing can be delegated here")
    done = asdict(await delegates.run(context.call_id, arguments.task))
    done["answer"] = done.pop("text")
    return orjson.dumps(done).decode()
