"""The tool `search_files`: text or a pattern in the files of the workspace.

The search runs in a process of its own (`searcher.py`): a pattern can take years, and Python's `re`
holds the interpreter's lock meanwhile, so that a thread would stop everybody.
"""

import json

from pydantic import Field

from agent.errors import ToolError
from agent.processes.helpers import HelperFailed, ask
from agent.settings import ToolSettings
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from agent.tools.sandbox.files import of

TIME_LIMIT_S = 10.0
MAX_ANSWER_BYTES = 1_000_000


class SearchArguments(Arguments):
    """What to look for, and where."""

    text: str = Field(min_length=1, max_length=1_000, description="What the line holds")
    regex: bool = Field(default=False, description="text is a regular expression (Python)")
    ignore_case: bool = True
    path: str = Field("", description="Directory; left out: all")
    files: str = Field("*", max_length=200, description="Names, such as *.py")
    limit: int = Field(50, ge=1, le=500)


def make_search_files(_settings: ToolSettings) -> Tool:
    """Return the tool."""
    return Tool(
        name="search_files",
        description="Finds lines in text files of the workspace.",
        effect="read",
        arguments=SearchArguments,
        run=search_files,
        timeout_s=TIME_LIMIT_S + 20,
        restricted=True,
    )


async def search_files(context: ToolContext, arguments: SearchArguments) -> str:
    """Have a helper process search, and end it where it takes too long."""
    workspace = of(context)
    request = {"root": str(workspace.root), "time_limit_s": TIME_LIMIT_S, **arguments.model_dump()}
    try:
        answer = await ask(
            "agent.tools.sandbox.searcher",
            json.dumps(request).encode(),
            timeout_s=TIME_LIMIT_S,
            max_bytes=MAX_ANSWER_BYTES,
        )
    except TimeoutError as exc:
        raise ToolError(
            f"the search took longer than {TIME_LIMIT_S:g} s and was ended; use a simpler pattern,"
            " or fewer files"
        ) from exc
    except HelperFailed as exc:
        raise ToolError(f"the search failed: {exc}") from exc
    found = json.loads(answer)
    if "error" in found:
        raise ToolError(found["error"])
    return str(found["text"])
