"""The tool `delegate_task`: another agent does a piece of work and hands over the result."""

from dataclasses import asdict

import orjson
from pydantic import Field

from agent.errors import ToolError
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool

MAX_CHARS = 70_000
LONGEST_S = 86_400.0
"""A child ends by its own limits (`tools.delegation`), of which this tool knows nothing."""


class DelegateArguments(Arguments):
    """What is to be done."""

    task: str = Field(
        min_length=1,
        max_length=MAX_CHARS,
        description="What to do, all that it has to know, and what to report: it sees nothing else"
        " of this conversation",
    )


async def delegate_task(context: ToolContext, arguments: DelegateArguments) -> str:
    """Return how the task ended, as JSON."""
    if context.services.delegates is None:
        raise ToolError("nothing can be delegated here")
    done = asdict(await context.services.delegates.run(context.call_id, arguments.task))
    done["answer"] = done.pop("text")
    return orjson.dumps(done).decode()


TOOL = Tool(
    name="delegate_task",
    description=(
        "Has another agent, with the same tools and directory, do a self-contained piece of work,"
        " and returns its report. For work whose details you need not see: research, reading much,"
        " trying things out. It cannot ask back. Up to three calls run side by side."
    ),
    effect="idempotent",
    arguments=DelegateArguments,
    run=delegate_task,
    timeout_s=LONGEST_S,
)
