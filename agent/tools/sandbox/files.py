"""The tools for workspace files: read, write, list and search.

The search runs in a separate process (`searcher.py`): a pattern can take years, and Python's `re`
holds the interpreter lock, so a thread would block all others.
"""

import asyncio
import codecs
import mimetypes
import os
import stat
from collections.abc import Iterable
from io import BytesIO
from itertools import islice
from pathlib import Path

from pydantic import Field

from agent.processes.helpers import ask_json
from agent.processes.workspace import Workspace, clear, components
from agent.tools.context import ToolContext, require
from agent.tools.registry import Arguments, tool

WORKSPACE_BYTES = 200_000_000
"""Limit of one workspace, so that no conversation fills the disk."""
TIME_LIMIT_S = 10.0
"""Timeout of a search, in seconds."""
MAX_ANSWER_BYTES = 1_000_000
"""Most output of the search process."""
MAX_READ_BYTES = 200_000
"""Most text of one answer; more than `tools.output` shows, so that the rest stays readable."""
MAX_LINE_BYTES = 20_000
"""A longer line is cut."""
MAX_FILE_BYTES = 20_000_000
"""The rest of a larger file is not read."""
MAX_LISTED = 500
"""Most directory entries shown."""
MAX_SCANNED = 20_000
"""Most directory entries sorted; a directory may have millions."""
_LOOKED_AT_BYTES = 8_192
"""Bytes at the start of a file that decide whether it is text."""
_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link, not followed",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class ReadArguments(Arguments):
    """Arguments of `read_file`."""

    path: str = Field(description="Such as notes/todo.md")
    first_line: int = Field(1, ge=1)
    lines: int = Field(1_000, ge=1, le=10_000)


class WriteArguments(Arguments):
    """Arguments of `write_file`."""

    path: str = Field(description="Missing directories are made")
    content: str
    append: bool = Field(default=False, description="Add to the end instead of replacing the file")


class ListArguments(Arguments):
    """Arguments of `list_files`."""

    path: str = Field("", description="Left out: the workspace itself")


@tool("Reads a text file of the workspace.", "read", restricted=True)
async def read_file(context: ToolContext, arguments: ReadArguments) -> str:
    """Return lines of a text file, or the type of a binary one."""
    await context.rights.read.note_earlier()
    return await asyncio.to_thread(_read, workspace_of(context), arguments)


@tool("Writes a text file of the workspace.", "side_effect", exclusive=True, restricted=True)
async def write_file(context: ToolContext, arguments: WriteArguments) -> str:
    """Write a file, or append to it."""
    # JSON may contain a lone surrogate, which UTF-8 cannot encode.
    path, content = arguments.path, arguments.content.encode(errors="replace")
    most, append = WORKSPACE_BYTES, arguments.append
    write = workspace_of(context).write
    size = await asyncio.to_thread(write, path, content, max_bytes=most, append=append)
    return f"{path} is written: {size:,} bytes."


@tool("Lists a directory of the workspace: names, kinds, sizes in bytes.", "read", restricted=True)
async def list_files(context: ToolContext, arguments: ListArguments) -> str:
    """Return the entries of a directory, sorted by name."""
    await context.rights.read.note_earlier()
    return await asyncio.to_thread(_list, workspace_of(context), arguments.path)


def workspace_of(context: ToolContext) -> Workspace:
    """Return the turn's workspace; raise a ToolError if it has none."""
    return Workspace(Path(require(context.workspace, "there is no workspace here")))


def _read(workspace: Workspace, arguments: ReadArguments) -> str:
    with workspace.file(arguments.path) as handle, clear(arguments.path):
        size = os.fstat(handle).st_size
        # A duplicate: both the file object and the workspace close their descriptors.
        with os.fdopen(os.dup(handle), "rb") as file:
            start = file.read(_LOOKED_AT_BYTES)
            if is_binary(start):
                kind = mimetypes.guess_type(arguments.path)[0] or "of unknown type"
                shown = f"{kind}, {size:,} bytes, beginning with {start[:32].hex(' ')}"
                return f"{arguments.path} is not text: {shown}."
            content = start + file.read(MAX_FILE_BYTES - len(start))
    lines = BytesIO(content)
    skipped = sum(1 for _ in islice(lines, arguments.first_line - 1))
    found, more = _page(lines, arguments.lines)
    rest = f"; only the first {len(content):,} can be read" if size > len(content) else ""
    if not found:
        return f"{arguments.path} has {skipped:,} lines, {size:,} bytes{rest}: nothing is left."
    last = arguments.first_line + len(found) - 1
    go_on = f"; go on with first_line={last + 1}" if more else rest
    shown = f"lines {arguments.first_line} to {last}, {size:,} bytes in all"
    return "\n".join([f"[{arguments.path}: {shown}{go_on}]", *found])


def _page(lines: Iterable[bytes], count: int) -> tuple[list[str], bool]:
    """Return lines without their ends, long ones cut, and whether more lines follow."""
    found: list[str] = []
    size = 0
    for line in lines:
        plain = line.removesuffix(b"\n").removesuffix(b"\r")
        shown = plain[:MAX_LINE_BYTES]
        if len(found) == count or size + len(shown) > MAX_READ_BYTES:
            return found, True
        left = len(plain) - len(shown)
        mark = f" [+{left:,} bytes of this line left out]" if left else ""
        found.append(shown.decode(errors="replace") + mark)
        size += len(shown)
    return found, False


def is_binary(start: bytes) -> bool:
    """Return whether a file's beginning is binary: it contains NULs or is mostly not UTF-8."""
    if b"\0" in start:
        return True
    # Incremental: a truncated last character does not make the data binary.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(start)
    return text.count("\N{REPLACEMENT CHARACTER}") * 10 > len(text)


def _list(workspace: Workspace, path: str) -> str:
    names = components(path)
    shown = "/".join(names) or "the workspace"
    with workspace.directory(names) as folder, os.scandir(folder) as entries:
        # One more than is sorted, to detect that more follow.
        scanned = [entry.name for entry in islice(entries, MAX_SCANNED + 1)]
        listed = sorted(scanned)[:MAX_LISTED]
        lines = [line for name in listed if (line := _entry(folder, name))]
    if not lines:
        return f"{shown} is empty."
    if len(scanned) > len(listed):
        total = f"{len(scanned):,}" if len(scanned) <= MAX_SCANNED else f"over {MAX_SCANNED:,}"
        lines.append(f"[the first {len(listed)} of {total} entries; list a directory below it]")
    return "\n".join([f"[{shown}]", *lines])


def _entry(folder: int, name: str) -> str:
    """Return the line of an entry, or "" if it no longer exists."""
    try:
        # Through the open directory: a path may meanwhile lead elsewhere.
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return ""
    plain = name.encode(errors="replace").decode()
    # Line breaks in a name would look like more entries.
    shown = "".join(each if each.isprintable() else "?" for each in plain)
    if stat.S_ISREG(found.st_mode):
        return f"{shown}  {found.st_size:,}"
    return f"{shown}  ({_KINDS.get(stat.S_IFMT(found.st_mode), 'unknown')})"


class FileSearchArguments(Arguments):
    """Arguments of `search_files`."""

    text: str = Field(min_length=1, max_length=1_000, description="What the line contains")
    regex: bool = Field(default=False, description="text is a regular expression (Python)")
    ignore_case: bool = True
    path: str = Field("", description="Directory; left out: all")
    files: str = Field("*", max_length=200, description="Names, such as *.py")
    limit: int = Field(50, ge=1, le=500)


@tool(
    "Finds lines in text files of the workspace.",
    "read",
    restricted=True,
    timeout_s=TIME_LIMIT_S + 20,
)
async def search_files(context: ToolContext, arguments: FileSearchArguments) -> str:
    """Search in a helper process, and kill it after its time limit."""
    workspace = workspace_of(context)
    await context.rights.read.note_earlier()
    return await ask_json(
        "agent.tools.sandbox.searcher",
        {"root": str(workspace.root), **arguments.model_dump()},
        timeout_s=TIME_LIMIT_S,
        max_bytes=MAX_ANSWER_BYTES,
        slow=f"the search took longer than {TIME_LIMIT_S:g} s and was ended; use a simpler pattern,"
        " or fewer files",
        failed="the search failed",
    )
