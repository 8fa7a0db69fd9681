"""Lists what a home would run, read and contact, before any of it runs.

The settings come from a backup or from a file that is not in use: their references are not resolved
(`gateway.settings.loading.read_foreign`), and files are only counted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from adapters.registry import account_types
from agent.plugins.loading import find_folders
from agent.plugins.registry import BUILT_IN
from agent.prompt.skills import SkillShelf
from agent.safety.redaction import Redactor
from agent.settings import McpServerSettings
from gateway.errors import SettingsError
from gateway.settings.loading import CONFIG_NAME, read_foreign
from gateway.settings.references import is_reference, unresolved
from gateway.settings.tree import Settings, dotted, flatten

MOST_NAMED = 20
"""Names in one line; further ones are only counted."""
_ADDRESS_KEYS = ("url", "endpoint", "issuer", "webhook")
"""Endings of the names of settings that contain an address."""
_OWN_ADDRESSES = frozenset({"public_url", "webhook_url"})
"""Where others find Parley."""


def would_run(files: Path, home: Path) -> Iterator[str]:
    """Yield a line for each thing that a gateway with these files would run, read or contact.

    Args:
        files: A copy of PARLEY_HOME.
        home: Where it will be: settings with relative paths mean that place.
    """
    file = files / CONFIG_NAME
    if file.is_symlink() or not file.exists():
        yield f"settings: no {CONFIG_NAME} is in it; those in use there decide the rest"
    else:
        try:
            yield from of_settings(read_foreign(file, home))
        except SettingsError as exc:
            yield from (f"settings: {line}" for line in str(exc).splitlines())
    yield from _of_files(files)


def of_settings(settings: Settings) -> Iterator[str]:
    """Yield the lines that follow from the settings alone."""
    for path, text in unresolved(settings):
        kind, _, rest = text.partition(":")
        what = "runs for a secret" if kind == "command" else f"reads a secret ({kind})"
        yield f"{what}: {_masked(rest)} ({dotted(path)})"
    for name, server in settings.tools.mcp.items():
        if server.enabled:
            yield _of_server(name, server)
    if settings.plugins.enabled:
        yield f"runs plugins in its own process: {_named(settings.plugins.enabled)}"
    if settings.context.engine not in BUILT_IN:
        yield f"runs a context engine in its own process: {settings.context.engine}"
    if "terminal" in settings.tools.enabled:
        wall = "confined" if settings.tools.terminal.confine else "NOT confined"
        yield f"runs commands of the model (terminal), {wall}"
    for path, value in flatten(settings):
        key = str(path[-1])
        is_address = key.endswith(_ADDRESS_KEYS) and key not in _OWN_ADDRESSES
        if is_address and (address := _address(value)):
            yield f"contacts {address} ({dotted(path)})"
    yield from _people(settings)


def _of_server(name: str, server: McpServerSettings) -> str:
    if server.command is None:
        return f"contacts an MCP server: {_masked(str(server.url))} (tools.mcp.{name})"
    line = " ".join((server.command, *server.args))
    return f"runs an MCP server: {_masked(line)} (tools.mcp.{name})"


def _people(settings: Settings) -> Iterator[str]:
    access = settings.access
    if access.owners:
        yield f"obeys as owners: {_named(access.owners)}"
    for platform in account_types():
        if people := access.listed(platform):
            yield f"lets in on {platform}: {_named(people)}"
    if access.mode == "open":
        yield "lets anybody in (access.mode: open)"


def _of_files(files: Path) -> Iterator[str]:
    for what, found in (
        ("a plugin", find_folders(files, "plugin")),
        ("an engine", find_folders(files, "engine")),
    ):
        if found:
            yield f"holds {what} for each of: {_named([each.name for each in found])}"
    skills = SkillShelf(files / "skills")
    for name in skills.names():
        if programs := skills.files(name):
            yield f"holds a skill with files of its own, {name}: {_named(programs)}"


def _address(value: Any) -> str:
    """Return the host of an address, or "": the rest of it may be secret."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str) or is_reference(text):
        return ""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _masked(text: str) -> str:
    return Redactor().text(text)
