"""The helper process of `search_files`: one JSON request on stdin, one JSON answer on stdout.

It may be killed at any moment, and exits after its time limit. It imports only the standard library
and `agent/processes/`.
"""

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from agent.errors import ToolError
from agent.processes.descent import serve
from agent.processes.workspace import Workspace, components, walk

MAX_FILE_BYTES = 20_000_000
"""Larger files are skipped."""
MAX_LINE_CHARS = 300
MAX_MEMORY_BYTES = 1_000_000_000
MAX_FILES = 50_000
_LOOKED_AT_BYTES = 8_192

Matches = Callable[[str], bool]


def main() -> None:
    """Serve one request."""
    serve(search, MAX_MEMORY_BYTES)


def search(request: dict[str, Any]) -> str:
    """Return the matching lines; raise a ToolError for an invalid pattern or path."""
    matches = matcher(request["text"], regex=request["regex"], ignore_case=request["ignore_case"])
    limit = request["limit"]
    looked: list[str] = []
    found = list(islice(_found(request, matches, looked), limit + 1))
    if not found:
        return f"No line matches in {len(looked):,} text files."
    lines = found[:limit]
    if len(found) > limit:
        lines.append(f"[there are more; these are the first {limit}]")
    return "\n".join(lines)


def matcher(text: str, *, regex: bool, ignore_case: bool) -> Matches:
    """Return a predicate for lines; raise a ToolError for an invalid expression."""
    if not regex:
        if not ignore_case:
            return lambda line: text in line
        wanted = text.casefold()
        return lambda line: wanted in line.casefold()
    try:
        pattern = re.compile(text, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as exc:
        raise ToolError(f"this is not a regular expression: {exc}") from exc
    return lambda line: pattern.search(line) is not None


def _found(request: dict[str, Any], matches: Matches, looked: list[str]) -> Iterator[str]:
    for path, lines in _files(request["root"], components(request["path"]), request["files"]):
        looked.append(path)
        for number, line in enumerate(lines, 1):
            if matches(line):
                shown = line.strip()
                end = "…" if len(shown) > MAX_LINE_CHARS else ""
                yield f"{path}:{number}: {shown[:MAX_LINE_CHARS]}{end}"


def _files(root: str, names: tuple[str, ...], wanted: str) -> Iterator[tuple[str, list[str]]]:
    """Yield path and lines of each text file, sorted by name; does not follow links."""
    with Workspace(Path(root)).directory(names) as top:
        named = (
            ("/".join([*names, *way, name]), folder, name)
            for way, folder, files in walk(top)
            for name in fnmatch.filter(files, wanted)
        )
        for path, folder, name in islice(named, MAX_FILES):
            if (text := _text(folder, name)) is not None:
                yield path, text.splitlines()


def _text(folder: int, name: str) -> str | None:
    """Return a file's text; None for links, pipes, large and binary files."""
    # Non-blocking: a pipe in place of the file would block the search forever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if not 0 < os.stat(name, dir_fd=folder, follow_symlinks=False).st_size <= MAX_FILE_BYTES:
            return None
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError:
        return None
    is_binary = b"\0" in content[:_LOOKED_AT_BYTES]
    return None if is_binary else content.decode(errors="replace")
