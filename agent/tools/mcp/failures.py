"""Explains why a server's program did not start, and names the setting that fixes it.

Derived from the program's stderr and from the error of its start. Programs use the error messages
of the C library, Node, Python, uv, curl and shells. Walls appear as an existing file that cannot be
read, as a host name that is not found, or as a refused connection.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from agent.network import NO_ANSWER
from agent.settings import McpServerSettings

_PATH = r"""['"`]?(?P<path>/[^'"`:,;\n]{1,300})"""
_WRITES = re.compile(r"read-only file system|EROFS|\bmkdir\b|\bunlink\b|\bsymlink\b", re.IGNORECASE)
_FILES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:EACCES|EPERM|EROFS|ENOENT)[^\n/]{{0,80}}{_PATH}",
        rf"(?:permission denied|no such file or directory)[^\n/]{{0,20}}{_PATH}",
        rf"read-only file system[^\n/]{{0,20}}{_PATH}",
        rf"cannot find (?:module|package)[^\n/]{{0,10}}{_PATH}",
        rf"can't open file[^\n/]{{0,10}}{_PATH}",
        rf"failed to (?:open|create|read|query)[^\n/]{{0,60}}{_PATH}",
        rf"{_PATH}['\"`]?: (?:permission denied|no such file|read-only file system|not found)",
    )
)
_HOST = r"(?P<host>[a-z0-9](?:[a-z0-9-]{0,62}\.)+[a-z]{2,24})"
_HOSTS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:ENOTFOUND|EAI_AGAIN|could not resolve host:?|lookup)\s{{1,3}}{_HOST}",
        rf"(?:https?|wss?)://{_HOST}",
        rf"host=['\"]{_HOST}",
    )
)
_NO_NETWORK = re.compile(
    r"\b(?:ENOTFOUND|EAI_AGAIN|ENETUNREACH|ECONNREFUSED|ETIMEDOUT)\b|connect E(?:ACCES|PERM)"
    r"|could not resolve|(?:name|nodename) [^\n]{0,40}not known|name resolution|dns error"
    r"|failed to lookup address|network is unreachable|getaddrinfo|client error \(connect\)"
    r"|tcp connect error|failed to fetch|error sending request|Max retries exceeded",
    re.IGNORECASE,
)
_NO_PROGRAM = re.compile(
    r"(?:env|sh|exec|sh: \d+): ['\"]?(?P<program>[\w.+-]{1,60})['\"]?:"
    r" (?:No such file|not found|Permission)"
)


def remedy_of(name: str, server: McpServerSettings, reason: str, said: str) -> str:
    """Return why a program did not start and which setting fixes it; empty if unknown.

    Args:
        name: The server's, as in `tools.mcp`.
        server: `confined` is decided (`McpServerSettings.with_walls`).
        reason: The error of the start.
        said: The end of the program's stderr.
    """
    if server.command is None:
        return ""
    told = _remedies(f"tools.mcp.{name}", server, server.command, f"{reason}\n{said}")
    return next(told, "")


def _remedies(key: str, server: McpServerSettings, command: str, text: str) -> Iterator[str]:
    """Yield the possible causes, the likeliest first."""
    if not command.startswith("/") and f"directory: '{command}'" in text:
        yield f"there is no program {command} on the PATH: install it, or name its full path"
    if _NO_NETWORK.search(text):
        yield _no_network(key, server, text)
    yield from _files(key, server, text)
    if found := _NO_PROGRAM.search(text):
        yield _no_program(key, server, found["program"])
    if text.startswith(f"{NO_ANSWER}\n"):
        yield _late(key, server)


def _no_network(key: str, server: McpServerSettings, text: str) -> str:
    found = next((match for each in _HOSTS if (match := each.search(text))), None)
    what = f"the host {found['host']}" if found else "the network"
    if _has_walls(server) and not server.network:
        return f"{what} was not reached: it has no network, `{key}.network: true` gives it one"
    return f"{what} was not reached from this machine"


def _files(key: str, server: McpServerSettings, text: str) -> Iterator[str]:
    for pattern in _FILES:
        for match in pattern.finditer(text):
            path = Path(match["path"].rstrip(" .)]"))
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.end()]
            is_write = _WRITES.search(line) is not None
            place = path if path.is_dir() else path.parent
            if not _has_walls(server):
                is_there = os.access(path, os.F_OK)
                yield f"{path} {'may not be read by this user' if is_there else 'does not exist'}"
            elif is_write:
                yield f"{path} could not be written: `{key}.writable: [{place}]`"
            elif os.access(path, os.F_OK):
                yield f"{path} could not be read: `{key}.readable: [{place}]`"


def _no_program(key: str, server: McpServerSettings, program: str) -> str:
    place = f" and its folder to `{key}.readable`" if _has_walls(server) else ""
    return f"the program {program} was not found: add it to the PATH in `{key}.env`{place}"


def _late(key: str, server: McpServerSettings) -> str:
    # npm is silent for a minute while it asks its registry again and again.
    what = f"it has not listed its tools within {server.start_timeout_s:g} s"
    if _has_walls(server) and not server.network:
        return f"{what}: if it downloads, it needs `{key}.network: true`"
    return f"{what}: if it downloads, it may need more, `{key}.start_timeout_s`"


def _has_walls(server: McpServerSettings) -> bool:
    return server.confined is not False
