"""The reason why a program did not start: the file or host, and the setting that fixes it."""

from pathlib import Path
from typing import Any

import pytest

from agent.settings import McpServerSettings
from agent.tools.mcp.failures import remedy_of

THERE = Path(__file__)
FOLDER = THERE.parent
READ = f"{THERE} could not be read: `tools.mcp.s.readable: [{FOLDER}]`"
NETWORK = "it has no network, `tools.mcp.s.network: true` gives it one"
CONFINED = [
    (f"Error: EACCES: permission denied, open '{THERE}'", READ),
    (f"node: internal: Error: EACCES: permission denied, lstat '{THERE}'\n    at ...", READ),
    (f"[Errno 13] Permission denied: '{THERE}'", READ),
    (f"python3: can't open file '{THERE}': [Errno 13] Permission denied", READ),
    (f"Error: Cannot find module '{THERE}'", READ),
    (f"error: failed to open file `{THERE}`: Permission denied (os error 13)", READ),
    (f"sh: 1: {THERE}: Permission denied", READ),
    (f"ENOENT: no such file or directory, open '{THERE}'", READ),
    (
        f"Error: EROFS: read-only file system, open '{THERE}'",
        f"{THERE} could not be written: `tools.mcp.s.writable: [{FOLDER}]`",
    ),
    (
        "EACCES: permission denied, mkdir '/srv/notes/new'",
        "/srv/notes/new could not be written: `tools.mcp.s.writable: [/srv/notes]`",
    ),
    (
        (
            "npm error request to https://registry.example.org/x failed, reason: getaddrinfo"
            " EAI_AGAIN registry.example.org"
        ),
        f"the host registry.example.org was not reached: {NETWORK}",
    ),
    (
        (
            "error: Failed to fetch: `https://pypi.example.org/simple/x/`\n  Caused by: dns error\n"
            "  Caused by: failed to lookup address information: Name or service not known"
        ),
        f"the host pypi.example.org was not reached: {NETWORK}",
    ),
    (
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        f"the network was not reached: {NETWORK}",
    ),
    (
        "curl: (6) Could not resolve host: example.org",
        f"the host example.org was not reached: {NETWORK}",
    ),
    ("Error: connect EACCES 192.0.2.7:443", f"the network was not reached: {NETWORK}"),
    (
        "/usr/bin/env: 'node': No such file or directory",
        (
            "the program node was not found: add it to the PATH in `tools.mcp.s.env` and"
            " its folder to `tools.mcp.s.readable`"
        ),
    ),
]
EITHER = [
    ("KeyError: 'API_TOKEN'", ""),
    ("something else", ""),
]
UNCONFINED = [
    ("getaddrinfo ENOTFOUND example.org", "the host example.org was not reached from this machine"),
    (
        f"[Errno 13] Permission denied: '{THERE}'",
        f"{THERE} may not be read by this user",
    ),
    ("Error: Cannot find module '/srv/gone.js'", "/srv/gone.js does not exist"),
]


def remedy(said: str, reason: str = "MCPError: Connection closed", **options: Any) -> str:
    """Return the explanation for a program with this stderr."""
    server = McpServerSettings.model_validate({"command": "program", "confined": True, **options})
    return remedy_of("s", server, reason, said)


@pytest.mark.parametrize(("said", "told"), CONFINED + EITHER)
def test_behind_walls_the_key_is_named(said: str, told: str) -> None:
    """In the words of Node, Python, uv, curl and a shell."""
    assert remedy(said) == told


@pytest.mark.parametrize(("said", "told"), UNCONFINED + EITHER)
def test_without_walls_no_key_of_walls_is_named(said: str, told: str) -> None:
    """Other settings would change nothing."""
    assert remedy(said, confined=False) == told


def test_what_the_start_itself_tells_counts_as_well() -> None:
    """A program that is not there, or may not be run."""
    gone = "[Errno 2] No such file or directory: 'npx'"
    assert "there is no program npx" in remedy("", gone, command="npx")
    denied = f"[Errno 13] Permission denied: '{THERE}'"
    assert remedy("", denied) == READ


def test_a_start_that_takes_too_long_names_its_key() -> None:
    """Programs that download write nothing; output that explains the delay is shown."""
    late = "it has not listed its tools within 30 s: if it downloads, it"
    assert remedy("", "no answer in time") == f"{late} needs `tools.mcp.s.network: true`"
    for options in ({"network": True}, {"confined": False}):
        told = remedy("", "no answer in time", **options)
        assert told == f"{late} may need more, `tools.mcp.s.start_timeout_s`"
    assert remedy("no answer in time: of its own") == ""
    assert NETWORK in remedy("getaddrinfo EAI_AGAIN example.org", "no answer in time")


def test_a_network_that_is_open_is_not_to_blame() -> None:
    """Behind walls with a network."""
    told = remedy("getaddrinfo ENOTFOUND example.org", network=True)
    assert told == "the host example.org was not reached from this machine"


def test_an_address_has_no_program() -> None:
    """No explanation is possible."""
    server = McpServerSettings(url="https://example.org/mcp")
    assert remedy_of("s", server, "getaddrinfo ENOTFOUND example.org", "") == ""
