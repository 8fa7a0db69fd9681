"""The tool `terminal`: runs a shell command in the workspace, supervised by a keeper process.

The command does not inherit Parley's environment. `confinement.py` confines it to the workspace,
and `keeper.py` ends it.
"""

import asyncio
import os
import shutil
import signal
from contextlib import suppress

import structlog
from pydantic import Field

from agent.errors import ToolError
from agent.processes import confinement
from agent.processes.helpers import LANGUAGE, PATH, KeptProgram, read_all
from agent.processes.installations import of_this_python
from agent.processes.keeper import CommandLimits, ProgramOrder, Report
from agent.processes.sandbox import choose
from agent.processes.walls import Sandbox, Walls
from agent.processes.workspace import Workspace
from agent.settings import TerminalSettings, ToolSettings
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from agent.tools.sandbox.files import WORKSPACE_BYTES, workspace_of

log = structlog.get_logger()

TEMPORARY = ".tmp"
"""Name of the command's TMPDIR in its workspace."""
OUTPUT_BYTES = 1_000_000
"""Most output kept of one command, half of it from the end."""
MAX_PROCESSES = 256
"""Most processes and threads of one command: enough for a build, too few for a fork bomb."""
MEMORY_BYTES = 2_000_000_000
"""Limit of each process of a command, and of all together."""
_REPORTS_WITHIN_S = 15.0
"""Seconds to wait for the keeper's report after the command's time limit."""


class TerminalArguments(Arguments):
    """Arguments of `terminal`."""

    command: str = Field(min_length=1, max_length=100_000)
    timeout_s: float | None = Field(None, gt=0, description="Left out: the longest time allowed")


def make_terminal(settings: ToolSettings) -> Tool:
    """Return the tool; raise a ValueError if commands cannot be confined or would run as root."""
    options = settings.terminal
    refuse_root(options)
    sandbox = sandbox_of(settings)
    report_confinement(sandbox, options)
    terminal = Terminal(options, sandbox, WORKSPACE_BYTES)
    walls = " It has a network." if options.network else " It has no network."
    if sandbox.backend == "landlock":
        walls += " chmod gives no rights to group and others."
    elif sandbox.backend == "none":
        walls = ""
    return Tool(
        name="terminal",
        description=(
            f"Runs a shell command in the workspace and returns what it writes.{walls} Nobody"
            " can type into it, and what it leaves running is ended with it."
        ),
        effect="side_effect",
        arguments=TerminalArguments,
        run=terminal.run,
        exclusive=True,
        timeout_s=options.timeout_s + _REPORTS_WITHIN_S,
        restricted=True,
    )


MAKERS = {"terminal": make_terminal}


def refuse_root(options: TerminalSettings) -> None:
    """Raise a ValueError if commands would run as root without the operator's consent."""
    if os.geteuid() == 0 and not options.allow_root:
        raise ValueError(
            "terminal is refused while Parley runs as root: its commands would own what root owns."
            " Run Parley as a user of its own, take terminal out of tools.enabled, or set"
            " tools.terminal.allow_root to true if you accept that"
        )


def sandbox_of(settings: ToolSettings) -> Sandbox:
    """Return the commands' sandbox; raise a ValueError if required confinement is unavailable."""
    if not settings.terminal.confine:
        return Sandbox("none", "", {})
    chosen = choose(settings.sandbox)
    if not isinstance(chosen, str):
        return chosen
    raise ValueError(
        f"terminal cannot be confined on this machine: {chosen}; take it out of tools.enabled,"
        " or set tools.terminal.confine to false if its commands may do whatever Parley may"
    )


def report_confinement(sandbox: Sandbox, options: TerminalSettings) -> None:
    """Log how commands are confined."""
    if sandbox.backend == "none":
        log.warning("terminal_not_confined")
        return
    abi = confinement.landlock_abi()
    log.info(
        "terminal_confined",
        backend=sandbox.backend,
        others=dict(sandbox.others),
        landlock=abi,
        network=options.network,
        signals=sandbox.backend == "bwrap" or abi >= confinement.SIGNALS_ABI,
    )


class Terminal:
    """Runs commands within limits."""

    def __init__(self, options: TerminalSettings, sandbox: Sandbox, disk_bytes: int) -> None:
        self._options = options
        self._sandbox = sandbox
        self._disk_bytes = disk_bytes
        self._shell = shutil.which("bash", path=PATH) or "/bin/sh"
        self._python = of_this_python()

    async def run(self, context: ToolContext, arguments: TerminalArguments) -> str:
        """Run a command; all its processes have ended when this returns or raises."""
        workspace = workspace_of(context)
        await context.rights.read.note_earlier()
        # Unconfined, it reaches the network whatever the setting.
        if self._options.network or self._sandbox.backend == "none":
            context.rights.read.note("tool", "terminal")
        full = await asyncio.to_thread(self._prepare, workspace)
        wanted_s = arguments.timeout_s or self._options.timeout_s
        timeout_s = min(wanted_s, self._options.timeout_s)
        order, limits = self._order(arguments.command, workspace, timeout_s, is_full=bool(full))
        report, output = await self._kept(order, limits)
        answer = format_report(report, output, limits)
        return f"{answer}\n[{full}: nothing can be written; delete files]" if full else answer

    def _prepare(self, workspace: Workspace) -> str:
        """Create the directory for temporary files; return why the workspace is full, or ""."""
        workspace.prepare()
        # A command may have replaced the directory, and then has to work without it.
        with suppress(ToolError), workspace.directory((TEMPORARY,), create=True):
            pass
        try:
            used_bytes = workspace.used_bytes()
        except ToolError as exc:
            return str(exc)
        limit = f"the workspace has more than {self._disk_bytes:,} bytes"
        return limit if used_bytes > self._disk_bytes else ""

    def _order(
        self, command: str, workspace: Workspace, timeout_s: float, *, is_full: bool
    ) -> tuple[ProgramOrder, CommandLimits]:
        options, home = self._options, str(workspace.root)
        limits = CommandLimits(
            timeout_s=timeout_s,
            output_bytes=OUTPUT_BYTES,
            tail_bytes=OUTPUT_BYTES // 2,
            max_processes=MAX_PROCESSES,
            memory_bytes=MEMORY_BYTES,
            disk_bytes=0 if is_full else self._disk_bytes,
        )
        environment = {
            "PATH": PATH,
            "HOME": home,
            "PWD": home,
            "TMPDIR": f"{home}/{TEMPORARY}",
            "LANG": LANGUAGE,
            "TERM": "dumb",
            # git exits if it cannot read its system-wide settings.
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        walls = Walls(
            backend=self._sandbox.backend,
            tool=self._sandbox.tool,
            directory=home,
            readable=[*self._python, *map(str, options.readable)],
            writable=[home],
            growing=not is_full,
            network=options.network,
        )
        order = ProgramOrder([self._shell, "-c", command], walls, environment, limits=limits)
        return order, limits

    async def _kept(self, order: ProgramOrder, limits: CommandLimits) -> tuple[Report, bytes]:
        """Run a command under a keeper, which ends it even if Parley dies."""
        failed = "the command's keeper failed"
        try:
            program = await KeptProgram.behind_keeper(limits.output_bytes)
        except OSError as exc:
            raise ToolError(f"no process can be started: {exc.strerror}") from exc
        try:
            await program.start(order)
            report = await program.report()
            if report is None:
                # Killed by the command itself, or by the system for lack of memory.
                raise ToolError(f"{failed}: it ended without a report")
            if report.ended == "exit" and report.problem:
                raise ToolError(f"the command was not run: {report.problem}")
            return report, await read_all(program.stdout, limits.output_bytes, failed)
        except ConnectionError as exc:
            raise ToolError(f"{failed}: {exc}") from exc
        except OSError as exc:
            raise ToolError(f"the command was not run: {exc}") from exc
        finally:
            await program.end()


def format_report(report: Report, output: bytes, limits: CommandLimits) -> str:
    """Format the report about an ended command for the model."""
    head, tail = output[: report.head_bytes], output[report.head_bytes :]
    left_out = report.output_bytes - len(output)
    mark = f"\n[... {left_out:,} bytes left out ...]\n".encode() if left_out > 0 else b""
    shown = (head + mark + tail).decode(errors="replace").rstrip("\n")
    return f"{shown}\n{_how_it_ended(report, limits)}".lstrip("\n")


def _how_it_ended(report: Report, limits: CommandLimits) -> str:
    match report.ended:
        case "exit":
            return f"[exit code {report.code}]"
        case "signal":
            known = report.code in {*signal.Signals}
            name = signal.Signals(report.code).name if known else "unknown"
            return f"[ended by signal {report.code} ({name})]"
        case "timeout":
            return f"[ended after {limits.timeout_s:g} s, the time limit]"
        case "processes":
            return f"[ended: it had more than {limits.max_processes} processes and threads]"
        case "memory":
            return f"[ended: it used more than {limits.memory_bytes:,} bytes of memory]"
        case _:
            grew = f"the workspace grew beyond {limits.disk_bytes:,} bytes"
            return f"[ended: {report.problem or grew}; delete files]"
