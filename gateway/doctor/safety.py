"""Whether tools do only what they may, and what in the settings weakens that."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adapters.web.platform import is_private_way
from agent.plugins.finding import available
from agent.processes import sandbox
from gateway.doctor.checks import Examined, Sight, check
from gateway.storage.people import mcp
from gateway.wiring import unconfined_in

BUILT_IN_ENGINES = ("compressor", "rounds", "lcm")


@check(
    "tools-asked",
    "A person is asked before a tool has side effects",
    why="Text from a file or a web page can talk the model into a call.",
    remedy="Set `tools.approval: side_effects`.",
)
def _asked(examined: Examined) -> Iterator[Sight]:
    if examined.settings.tools.approval == "never":
        yield Sight("wrong", "tools.approval is never")


@check(
    "tools-tainted",
    "Turns that have read untrusted text are held back",
    why="These rows keep the words of a page from turning into actions.",
    remedy="Remove the rows from `tools.policy.without`.",
)
def _tainted(examined: Examined) -> Iterator[Sight]:
    if without := examined.settings.tools.policy.without:
        yield Sight("wrong", f"tools.policy.without leaves out {', '.join(without)}")


@check(
    "tools-rules-open",
    "No rule allows everything",
    why="A rule `then: allow` for all tools and roles lets guests do what owners may.",
    remedy="Name the tool, the role, or `tainted: false`.",
)
def _rules(examined: Examined) -> Iterator[Sight]:
    for number, rule in enumerate(examined.settings.tools.policy.rules):
        if (rule.then, rule.tool, rule.role, rule.tainted) == ("allow", "*", "*", None):
            yield Sight("wrong", f"tools.policy.rules.{number} allows every tool to everybody")


@check(
    "terminal-confined",
    "Commands are confined to their directory",
    why="An unconfined command reads keys and other people's files.",
    remedy="Set `tools.terminal.confine: true`.",
)
def _confined(examined: Examined) -> Iterator[Sight]:
    tools = examined.settings.tools
    if _has(examined, "terminal") and not tools.terminal.confine:
        yield Sight("wrong", "tools.terminal.confine is false")
    if _has(examined, "terminal") and tools.sandbox.backend == "none":
        yield Sight("wrong", "tools.sandbox.backend is none")


@check(
    "terminal-root",
    "Commands do not run as root",
    why="Anything that escapes the sandbox would own the machine.",
    remedy="Run Parley as its own user, and set `tools.terminal.allow_root: false`.",
)
def _root(examined: Examined) -> Iterator[Sight]:
    if _has(examined, "terminal") and examined.settings.tools.terminal.allow_root:
        yield Sight("warning", "tools.terminal.allow_root is true")


@check(
    "terminal-network",
    "Commands have no network",
    why="They can send what they read anywhere, and reach every service on this machine.",
    remedy="Set `tools.terminal.network: false`.",
)
def _network(examined: Examined) -> Iterator[Sight]:
    if _has(examined, "terminal") and examined.settings.tools.terminal.network:
        yield Sight("warning", "tools.terminal.network is true")


@check(
    "sandbox-holds",
    "A sandbox works on this machine",
    why="Without one, `terminal`, the file tools and confined MCP programs are off.",
    remedy="Install bubblewrap, or set `tools.sandbox.backend`.",
)
def _holds(examined: Examined) -> Iterator[Sight]:
    tools = examined.settings.tools
    programs = [each for each in tools.mcp.values() if each.enabled and each.command]
    if off := sandbox.why_off(tools):
        yield Sight("wrong", off)
    if any(each.is_confined_by_word for each in programs) and isinstance(
        reason := sandbox.choose(tools.sandbox), str
    ):
        yield Sight("wrong", f"MCP programs are not started: no wall works here ({reason})")


@check(
    "mcp-programs",
    "The programs of MCP servers are installed",
    why="Otherwise their tools are missing in every turn.",
    remedy="Install the program, or correct `tools.mcp.NAME.command`.",
)
def _programs(examined: Examined) -> Iterator[Sight]:
    for name, server in examined.settings.tools.mcp.items():
        if server.enabled and server.command and shutil.which(server.command) is None:
            yield Sight("wrong", f"{name}: there is no program {server.command}")


@check(
    "mcp-connected",
    "MCP servers are connected",
    why="Otherwise calls of their tools fail.",
    remedy="Follow the line's advice.",
)
def _connected(examined: Examined) -> Iterator[Sight]:
    told = examined.running.get("servers") if examined.running else examined.servers
    if told is None and any(each.enabled for each in examined.settings.tools.mcp.values()):
        yield Sight("unknown", "skipped: no server was asked")
    for name, problem in told.items() if isinstance(told, Mapping) else ():
        if problem:
            yield Sight("wrong", f"{name}: {problem}")


@check(
    "mcp-confined",
    "MCP programs are confined to their directories",
    why="An unconfined one may do whatever Parley may, as in other clients.",
    remedy="Nothing, if you trust these programs. Otherwise set `confined: true`, and name what"
    " they need in `readable`, `writable` and `network`.",
    needs="database",
)
def _mcp_confined(examined: Examined) -> Iterator[Sight]:
    if names := unconfined_in(examined.settings, mcp.confined(examined.database)):
        yield Sight("note", f"unconfined: {', '.join(names)}")


@check(
    "mcp-held",
    "No tool of an MCP server waits for an owner",
    why="Its description may give the model orders: it is not offered until an owner agrees.",
    remedy="Read it with `/mcp` or in the console, and approve or deny it there.",
    needs="database",
)
def _held(examined: Examined) -> Iterator[Sight]:
    servers = examined.settings.tools.mcp
    for each in mcp.texts(examined.database):
        server = servers.get(each.held.server)
        if each.state == "asked" and server is not None and server.enabled:
            yield Sight("warning", f"{each.held.server}: {each.held.tool}: {each.held.why}")


@check(
    "mcp-encrypted",
    "Connections to remote MCP servers are encrypted",
    why="Anyone in between can read arguments, results and keys.",
    remedy="Use https:// in `tools.mcp.NAME.url`.",
)
def _mcp_encrypted(examined: Examined) -> Iterator[Sight]:
    for name, server in examined.settings.tools.mcp.items():
        if server.enabled and server.url and not is_private_way(server.url):
            yield Sight("warning", f"{name} is reached by plain http")


@check(
    "fetch-private",
    "`fetch_url` reaches no private address that nobody needs",
    why="Anyone who talks the model into it can read pages of your own network.",
    remedy="Remove from `tools.fetch.allow_hosts` what is not needed.",
)
def _fetch(examined: Examined) -> Iterator[Sight]:
    hosts = examined.settings.tools.fetch.allow_hosts
    if _has(examined, "fetch_url") and hosts:
        yield Sight("note", f"private hosts that may be fetched: {', '.join(hosts)}")


@check(
    "workspace-apart",
    "Workspaces have a folder of their own, which this user can write",
    why="A tool that works there must not find anything else, and fails where it cannot write.",
    remedy="Set `tools.workspace.root` to an empty folder of this user, or to null.",
)
def _workspace(examined: Examined) -> Iterator[Sight]:
    root = examined.settings.tools.workspace.root
    if root is None:
        return
    if root.exists() and not root.is_dir():
        yield Sight("wrong", f"{root} is no folder")
    elif root.resolve() in {Path.home().resolve(), Path("/")}:
        yield Sight("wrong", f"{root} is the folder of a user, or of the machine")
    elif not os.access(_there(root), os.W_OK | os.X_OK):
        yield Sight(
            "wrong", f"{root} cannot be {'written' if root.exists() else 'made'} by this user"
        )


def _there(path: Path) -> Path:
    """Return what is there of a path: it, or the folder above that is."""
    return next(each for each in (path, *path.parents) if each.exists())


@check(
    "plugins-there",
    "Each plugin that is switched on can be loaded",
    why="Otherwise what it adds, or forbids, is missing.",
    remedy="The console says what is wrong with it (*Plugins*).",
)
def _plugins(examined: Examined) -> Iterator[Sight]:
    enabled = examined.settings.plugins.enabled
    if not enabled:
        return
    found = {each.name: each.problem for each in available(examined.home)}
    found |= {each["plugin"]: each["reason"] for each in _tried(examined, "plugin_unavailable")}
    for name in enabled:
        if name not in found:
            yield Sight("wrong", f"there is no plugin {name}")
        elif found[name]:
            yield Sight("wrong", f"{name}: {found[name]}")


@check(
    "engine-there",
    "The context engine is available",
    why="Otherwise another one takes over, with a warning in the log.",
    remedy="`parley engines list` shows the available ones.",
)
def _engine(examined: Examined) -> Iterator[Sight]:
    name = examined.settings.context.engine
    for each in _tried(examined, "engine_unavailable"):
        yield Sight("wrong", f"{name}: {each['reason']}")
        return
    folder = examined.home / "plugins" / "context_engine" / name
    if name not in BUILT_IN_ENGINES and not folder.is_dir():
        yield Sight("note", f"{name} is no engine of Parley's own, and no folder of plugins")


def _tried(examined: Examined, event: str) -> list[Mapping[str, Any]]:
    return [each for each in examined.tried if each["event"] == event]


def _has(examined: Examined, tool: str) -> bool:
    return tool in examined.settings.tools.enabled
