"""The tool `terminal`: real commands, behind the real keeper."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
import structlog

from agent.processes import confinement, helpers
from agent.processes.keeper import Report
from agent.processes.walls import Sandbox
from agent.settings import SandboxSettings, TerminalSettings, ToolSettings
from agent.tools import policy
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.sandbox import terminal
from agent.tools.sandbox.terminal import Terminal, TerminalArguments, make_terminal
from tests.agent.tools.doubles import NOW, MemoryReader
from tests.agent.tools.sandbox.calling import use_with
from tests.support.bombs import FORKS, SESSIONS, THREADS
from tests.support.confined import TAKES_LANDLOCK


async def shell(
    folder: Path,
    command: str,
    *,
    limits: Mapping[str, int] = MappingProxyType({}),
    backend: Any = "auto",
    **options: Any,
) -> ToolOutcome:
    """Run a command with these settings and constants."""
    if confinement.why_not():
        options.setdefault("confine", False)
    settings = ToolSettings(
        enabled=("terminal",),
        sandbox=SandboxSettings(backend=backend),
        terminal=TerminalSettings(allow_root=True, **options),
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(terminal, name, value)
        return await use_with(settings, folder, command=command)


async def test_a_command_runs_in_its_directory_with_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of Parley's environment; nobody types; both outputs come in order."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    command = "pwd; env | cut -d= -f1 | sort | tr '\\n' ' '; cat; echo no >&2; umask; exit 3"
    outcome = await shell(tmp_path / "ws", command)
    folder, names, *rest = outcome.text.split("\n")
    assert folder == str(tmp_path / "ws")
    assert set(names.split(" ")[:-1]) >= {"HOME", "LANG", "PATH", "PWD", "TERM", "TMPDIR"}
    assert "secret" not in outcome.text
    assert names.endswith("no")
    assert rest == ["0077", "[exit code 3]"]


async def test_much_output_is_kept_at_both_ends(tmp_path: Path) -> None:
    """20 MB take no memory of ours; the model sees how much is left out."""
    command = "echo begin; head -c 20000000 /dev/zero; echo; echo end"
    outcome = await shell(tmp_path, command, limits={"OUTPUT_BYTES": 1_000})
    assert len(outcome.text) < 1_100
    assert outcome.text.startswith("begin\n")
    assert "[... 19,999,011 bytes left out ...]" in outcome.text
    assert outcome.text.endswith("\nend\n[exit code 0]")


@pytest.mark.thorough
async def test_a_command_ends_at_its_time_limit(tmp_path: Path) -> None:
    """What it wrote by then is kept."""
    outcome = await shell(tmp_path, "echo a; exec sleep 100", timeout_s=1)
    assert outcome.text == "a\n[ended after 1 s, the time limit]"


async def test_what_it_leaves_running_ends_with_it(tmp_path: Path) -> None:
    """Grandchildren too, and those that meant to leave for a session of their own."""
    command = "sleep 100 & (setsid sleep 100 & echo $!) & wait $!; echo $$"
    outcome = await shell(tmp_path, command, backend="landlock")
    *pids, code = outcome.text.split("\n")
    assert code == "[exit code 0]"
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


async def test_a_stop_ends_the_command_with_all_of_it(tmp_path: Path) -> None:
    """The call is cancelled: nothing is left when that is done."""
    os.mkfifo(tmp_path / "pipe")
    running = asyncio.ensure_future(
        shell(tmp_path, "(setsid sleep 100 & echo $! > pipe; wait) & wait", backend="landlock")
    )
    pid = int(await asyncio.to_thread((tmp_path / "pipe").read_text))
    assert psutil.pid_exists(pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not psutil.pid_exists(pid)


BOMBS = {"shell": FORKS, "sessions": SESSIONS, "threads": THREADS}


@TAKES_LANDLOCK
@pytest.mark.parametrize(
    ("bomb", "confine"),
    [("shell", True), ("sessions", True), ("threads", True), ("sessions", False)],
)
async def test_a_fork_bomb_ends(tmp_path: Path, bomb: str, *, confine: bool) -> None:
    """Soon, with all that it has become; for root too, whom the kernel does not limit."""
    outcome = await shell(tmp_path, BOMBS[bomb], limits={"MAX_PROCESSES": 30}, confine=confine)
    assert "more than 30 processes and threads" in outcome.text
    assert not [each for each in psutil.process_iter() if _works_in(each, tmp_path)]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder)
    except psutil.Error:
        return False


async def test_memory_is_limited_for_each_and_for_all(tmp_path: Path) -> None:
    """One process gets no more; many together are ended."""
    big = "python3 -IS -c 'import sys, time; a = b\"x\" * {}; print(len(a)); time.sleep(9)'"
    alone = await shell(tmp_path, big.format(10**9), limits={"MEMORY_BYTES": 60_000_000})
    assert "MemoryError" in alone.text
    together = " & ".join([big.format(35_000_000)] * 2) + " & wait"
    outcome = await shell(tmp_path, together, limits={"MEMORY_BYTES": 60_000_000})
    assert "used more than 60,000,000 bytes of memory" in outcome.text


@pytest.mark.thorough
async def test_files_are_limited_for_each_and_for_all(tmp_path: Path) -> None:
    """A full workspace runs commands that write nothing, so that it can be emptied."""
    outcome = await shell(
        tmp_path, "head -c 300000 /dev/zero > a", limits={"WORKSPACE_BYTES": 200_000}
    )
    assert "File too large" in outcome.text or "ended by signal" in outcome.text
    many = "for i in 1 2 3; do head -c 100000 /dev/zero > f$i; done; exec sleep 20"
    (tmp_path / "a").unlink()
    outcome = await shell(tmp_path, many, limits={"WORKSPACE_BYTES": 200_000})
    assert "the workspace grew beyond 200,000 bytes" in outcome.text
    full = "[the workspace has more than 200,000 bytes: nothing can be written; delete files]"
    command = "echo x; (echo more >> f1; : > new; mkdir d) 2>/dev/null; rm f*; ls -s"
    outcome = await shell(tmp_path, command, limits={"WORKSPACE_BYTES": 200_000})
    assert outcome.text.startswith("x\ntotal 0\n[exit")
    assert outcome.text.endswith(f"[exit code 0]\n{full}")
    assert (
        await shell(tmp_path, "echo y > new; cat new", limits={"WORKSPACE_BYTES": 200_000})
    ).text.startswith("y\n")


async def test_what_cannot_be_measured_can_be_deleted(tmp_path: Path) -> None:
    """Too many levels, and something else in the place of the temporary directory."""
    deep = "d/" * 70
    outcome = await shell(tmp_path, f"mkdir -p {deep}; rmdir .tmp; touch .tmp")
    assert outcome.text == "[exit code 0]"
    outcome = await shell(tmp_path, "rm -r d .tmp")
    assert "levels deep: nothing can be written; delete files]" in outcome.text
    assert (await shell(tmp_path, "ls -A")).text == ".tmp\n[exit code 0]"


@TAKES_LANDLOCK
async def test_a_confined_command_reaches_nothing_outside(tmp_path: Path) -> None:
    """Not Parley's home, other workspaces, its socket, its process or its environment."""
    (tmp_path / "parley.db").write_text("secret")
    (tmp_path / "2").mkdir()
    us = os.getpid()
    renice = f"from os import *; setpriority(0, {us}, 19); 1 / (getpriority(0, {us}) == 19)"
    attempts = [
        f"cat {tmp_path}/parley.db",
        f"ls {tmp_path}",
        f"touch {tmp_path}/2/x",
        f"ln {tmp_path}/parley.db stolen",
        f"ln -s {tmp_path}/parley.db link && cat link",
        f": > {tmp_path}/parley.db",
        f"mv {tmp_path}/parley.db .",
        f"rm {tmp_path}/parley.db",
        f"cat /proc/{us}/environ",
        f"cat /proc/{us}/cmdline",
        f"ps -p {us}",
        f"ls /proc/{us}/cwd/",
        f"kill -0 {us}",
        "cat /etc/shadow",
        "python3 -IS -c 'import socket; socket.socket(socket.AF_UNIX)'",
        "python3 -IS -c 'import socket; socket.socket(socket.AF_INET)'",
        "unshare --user true",
        "touch /dev/shm/x",
        f"touch /tmp/parley-{us}",
        f"prlimit --pid {us} --core=0",
        f"taskset -p 1 {us}",
        f"python3 -IS -c '{renice}'",
        "ipcmk -Q",
        "fallocate -l 1000 f",
        "python3 -IS -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).inotify_init1(0) < 0)'",
        'python3 -IS -c \'import os; os.setxattr(".", "user.x", b"1")\'',
    ]
    tried = [f"({attempt}) >/dev/null 2>&1 && echo {n}" for n, attempt in enumerate(attempts)]
    outcome = await shell(tmp_path / "1", "\n".join([*tried, "true"]))
    assert outcome.text == "[exit code 0]"
    assert (tmp_path / "parley.db").read_text() == "secret"


@TAKES_LANDLOCK
async def test_a_confined_command_can_work(tmp_path: Path) -> None:
    """Programs, temporary files, time limits of its own, and more directories that are named."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "more" / "tool").chmod(0o755)
    command = (
        "ulimit -n 64; nice -n 5 mktemp >/dev/null && timeout 0.1 sleep 9; echo $?; "
        "echo x | grep -c x; "
        f"{tmp_path}/more/tool; cat <(echo sub); head -c 3 /proc/meminfo; "
        "python3 -IS -c 'print(1 + 1)'; head -c 1 /dev/urandom | wc -c; "
        "mkdir -p a/b && mv a/b c && chmod +x c && echo y > c/f && ls c"
    )
    outcome = await shell(tmp_path / "ws", command, readable=(tmp_path / "more",))
    assert outcome.text.split("\n") == [
        "124",
        "1",
        "tool",
        "sub",
        "Mem2",
        "1",
        "f",
        "[exit code 0]",
    ]


@TAKES_LANDLOCK
async def test_the_network_is_there_where_the_operator_says_so(tmp_path: Path) -> None:
    """All of it; sockets of this machine's services not even then."""
    command = (
        "python3 -IS -c 'import socket\n"
        "for kind in (socket.AF_INET, 1), (socket.AF_INET, 2), (socket.AF_UNIX, 1):\n"
        "  try: print(socket.socket(*kind).type)\n"
        "  except OSError: print(0)'"
    )
    outcome = await shell(tmp_path, command, network=True)
    assert outcome.text == "1\n2\n0\n[exit code 0]"
    outcome = await shell(tmp_path, command, network=False)
    assert outcome.text == "0\n0\n0\n[exit code 0]"


@TAKES_LANDLOCK
@pytest.mark.parametrize(
    ("options", "taints"),
    [({}, False), ({"network": True}, True), ({"confine": False}, True)],
    ids=["confined", "with a network", "without walls"],
)
async def test_what_reaches_the_network_reads_what_strangers_wrote(
    tmp_path: Path, options: dict[str, Any], *, taints: bool
) -> None:
    """A command without walls does, though `network` is not set."""
    settings = TerminalSettings.model_validate({"allow_root": True} | options)
    turn = ToolContext("c1", MemoryReader(), lambda: NOW, workspace=tmp_path)
    tool = make_terminal(ToolSettings(terminal=settings))
    assert "[exit code 0]" in await tool.run(turn, TerminalArguments(command=":", timeout_s=None))
    assert policy.any_taints(turn.rights.read.origins) is taints


def made(backend: Any = "landlock", **options: Any) -> str:
    """Return what the model is told about the tool."""
    settings = TerminalSettings.model_validate({"allow_root": True} | options)
    sandbox = SandboxSettings(backend=backend)
    return make_terminal(ToolSettings(terminal=settings, sandbox=sandbox)).description


def test_without_confinement_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the operator says that there may be one; both are logged."""
    monkeypatch.setattr(confinement, "why_not", lambda: "the kernel has no Landlock")
    with pytest.raises(ValueError, match=r"the kernel has no Landlock.*tools.terminal.confine"):
        made()
    with structlog.testing.capture_logs() as logs:
        assert "network" not in made(confine=False)
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("terminal_not_confined", "warning")
    ]


def test_root_has_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands would own what root owns; the operator can say that this is meant."""
    monkeypatch.setattr(confinement, "why_not", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ValueError, match=r"Parley runs as root.*tools.terminal.allow_root"):
        terminal.refuse_root(TerminalSettings())
    with pytest.raises(ValueError, match="Parley runs as root"):
        made(allow_root=False)
    assert "It has no network." in made(allow_root=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "It has no network." in made(allow_root=False)


def test_the_confinement_in_force_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older kernel leaves a gap."""
    monkeypatch.setattr(confinement, "why_not", lambda: None)
    monkeypatch.setattr(confinement, "landlock_abi", lambda: 4)
    with structlog.testing.capture_logs() as logs:
        assert "It has no network." in made()
        assert "It has a network." in made(network=True)
    assert {key: logs[0][key] for key in ("event", "landlock", "network", "signals")} == {
        "event": "terminal_confined",
        "landlock": 4,
        "network": False,
        "signals": False,
    }


async def test_a_command_that_cannot_be_confined_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper says why; here it confines to a directory that is not there."""
    real = Terminal._order

    def elsewhere(self: Terminal, *args: Any, **options: Any) -> Any:
        order, limits = real(self, *args, **options)
        return replace(order, walls=replace(order.walls, directory=str(tmp_path / "gone"))), limits

    monkeypatch.setattr(Terminal, "_order", elsewhere)
    outcome = await shell(tmp_path, "echo")
    assert outcome.text.startswith("Error: the command was not run: [Errno 2]")


async def test_a_keeper_that_dies_before_it_answers_may_have_run_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model must not take it for a command that was never run."""

    async def ended(*_: object) -> None:
        raise ConnectionError("it ended without a report")

    monkeypatch.setattr(helpers.KeptProgram, "start", ended)
    outcome = await shell(tmp_path, "true", backend="landlock")
    assert outcome.text == "Error: the command's keeper failed: it ended without a report"


@pytest.mark.parametrize("command", ["echo \0", f"echo {'我' * 60_000}"], ids=["NUL", "too long"])
async def test_a_command_that_the_system_refuses_is_told(tmp_path: Path, command: str) -> None:
    """Whichever wall is there: it stands by then, or the process is not there yet."""
    outcome = await shell(tmp_path, command)
    assert outcome.text.startswith("Error: the command was not run: ")


async def test_a_keeper_that_dies_leaves_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed from outside: Parley kills the group itself."""
    has_started, start = asyncio.Event(), helpers.KeptProgram.start

    async def started(*args: Any) -> None:
        await start(*args)
        has_started.set()

    monkeypatch.setattr(helpers.KeptProgram, "start", started)
    os.mkfifo(tmp_path / "pipe")
    command = "exec 7> pipe; sleep 100 & echo $! >&7; wait"
    running = asyncio.ensure_future(shell(tmp_path, command, backend="landlock"))
    with await asyncio.to_thread((tmp_path / "pipe").open) as pipe:
        pid = int(await asyncio.to_thread(pipe.readline))
        keeper = psutil.Process(os.getpgid(pid)).parent()
        assert keeper is not None
        await has_started.wait()
        keeper.kill()
        assert (await running).text.endswith("it ended without a report")
        # The pipe ends with the last process that could write into it.
        assert await asyncio.to_thread(pipe.read) == ""


async def test_no_keeper_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is out of processes."""

    async def refuse(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    outcome = await shell(tmp_path, "echo")
    assert outcome.text.endswith("no process can be started: Resource temporarily unavailable")


async def test_a_keeper_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets some time."""
    monkeypatch.setattr(helpers, "KEEPER_GONE_WITHIN_S", 0.01)
    monkeypatch.setattr(helpers, "BOOT", "import time; time.sleep(60)")
    program = await helpers.KeptProgram.behind_keeper(100)
    await program.end()
    assert await program._keeper.wait() == -signal.SIGKILL


def test_signals_are_named() -> None:
    """As far as they have names."""
    _, limits = Terminal(TerminalSettings(), Sandbox("none", "", {}), 1)._order(
        "x", terminal.Workspace(Path("/x")), 1, is_full=False
    )
    told = terminal.format_report(Report(ended="signal", code=9), b"", limits)
    assert told == "[ended by signal 9 (SIGKILL)]"
    assert "(unknown)" in terminal.format_report(Report(ended="signal", code=99), b"", limits)
