"""What a command tries to get out of its sandbox, on each backend that this machine has.

The commands are those of an ordinary user, `nobody`, to whom everything here belongs: what they are
kept from is the sandbox's work, not that of file modes.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.processes.walls import Backend
from tests.support.confined import (
    BECOME_NOBODY,
    NOBODY,
    TAKES_ROOT,
    folder_of_nobody,
    on_each_backend,
    run_as_nobody,
)

pytestmark = [TAKES_ROOT, on_each_backend()]

GATEWAY = f"""
import socket, sys
{BECOME_NOBODY}
listening = socket.create_server(("127.0.0.1", 0))
private = socket.socket(socket.AF_UNIX)
private.bind(sys.argv[1])
private.listen()
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""
"""A process of the same user, with a web chat on loopback and a control socket in its home."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the command would like to reach.

    Attributes:
        home: Of the gateway; its database, its socket and a pipe lie there.
        workspace: Of the command.
        pid, port: Of the gateway.
    """

    home: Path
    workspace: Path
    pid: int
    port: int


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A gateway's home and process, all of them of `nobody`."""
    with folder_of_nobody() as home:
        workspace = home / "workspaces" / "1"
        workspace.mkdir(parents=True)
        (home / "parley.db").write_text("secret")
        os.mkfifo(home / "pipe")
        for path in home.rglob("*"):
            os.chown(path, NOBODY, NOBODY)
        started = [sys.executable, "-c", GATEWAY, str(home / "parley.sock")]
        with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as gateway:
            assert gateway.stdin is not None
            assert gateway.stdout is not None
            port = int(gateway.stdout.readline())
            yield Machine(home, workspace, gateway.pid, port)
            gateway.stdin.close()


def attempts(machine: Machine) -> dict[str, str]:
    """Return what is tried: shell, or Python where a line begins with `py`."""
    home, pid, port = machine.home, machine.pid, machine.port
    return {
        "read the database": f"cat {home}/parley.db",
        "list the home": f"ls {home} | grep parley",
        "write outside": f"touch {home}/new",
        "change the database": f": > {home}/parley.db",
        "remove the database": f"rm {home}/parley.db",
        "a link to it": f"ln {home}/parley.db stolen",
        "through a symbolic link": f"ln -sf {home}/parley.db link && cat link",
        "a symbolic link as directory": f"ln -sfn {home} up && cat up/parley.db",
        "open it to others": f"chmod 644 {home}/parley.db",
        "a set-id bit": "cp /bin/true own && chmod 4755 own",
        "a set-id bit for the group": "cp /bin/true own2 && chmod 2755 own2",
        "made with a set-id bit": "py os.open('made', os.O_CREAT | os.O_WRONLY, 0o4755)",
        "a node with a set-id bit": "py os.mknod('node', 0o104755)",
        "a pipe outside": f"py os.open('{home}/pipe', os.O_RDONLY | os.O_NONBLOCK)",
        "a device": "py os.mknod('disk', 0o60600, os.makedev(8, 0))",
        "shared memory": "touch /dev/shm/x",
        "the passwords": "cat /etc/shadow",
        "the gateway's environment": f"cat /proc/{pid}/environ",
        "the gateway's command line": f"grep -q GATEWAY /proc/{pid}/cmdline; "
        f"tr '\\0' '\\n' < /proc/{pid}/cmdline | grep -q parley.sock",
        "the gateway's directory": f"ls /proc/{pid}/cwd/.",
        "the gateway's files": f"ls /proc/{pid}/fd/.",
        "the gateway's root": f"cat /proc/{pid}/root{home}/parley.db",
        "a signal": f"kill -0 {pid}",
        "ptrace": f"py check(libc.ptrace(16, {pid}, 0, 0))",
        "its memory": f"py check(libc.process_vm_readv({pid}, place, 1, place, 1, 0))",
        "pidfd": f"py signal.pidfd_send_signal(os.pidfd_open({pid}), 0)",
        "a file of its by pidfd": f"py check(libc.syscall(438, os.pidfd_open({pid}), 0, 0))",
        "io_uring": "py check(libc.syscall(425, 4, ctypes.create_string_buffer(120)))",
        "a unix socket": f"py socket.socket(socket.AF_UNIX).connect('{home}/parley.sock')",
        "an abstract socket": "py socket.socket(socket.AF_UNIX).connect('\\0parley')",
        "the web chat": f"py socket.create_connection(('127.0.0.1', {port}), 2)",
        "the web chat by curl": f"curl -s -m 2 http://127.0.0.1:{port}/",
        "a private range": "py socket.create_connection(('10.0.0.1', 80), 2)",
        "the metadata service": "py socket.create_connection(('169.254.169.254', 80), 2)",
        "netlink": "py socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "vsock": "py socket.socket(40, socket.SOCK_STREAM)",
        "packets": "py socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "namespaces": "unshare --user true",
        "a mount": "py check(libc.mount(b'/', b'.', 0, 4096, 0))",
        "another root": "py os.chroot('.')",
        "keys": "py check(libc.syscall(250, 0, -3, 1))",
        "a helper that is set-user-id": "py assert libc.prctl(39, 0, 0, 0, 0) == 0",
        "watching files": "py check(libc.inotify_init1(0))",
        "a queue for others": "ipcmk -Q",
        "limits of another": f"prlimit --pid {pid} --core=0",
    }


PRELUDE = """
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
held = ctypes.create_string_buffer(8)
place = (ctypes.c_size_t * 2)(ctypes.addressof(held), 8)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""


@pytest.mark.thorough
def test_nothing_that_is_tried_leads_out(machine: Machine, backend: Backend) -> None:
    """Each attempt fails, and the names of those that do not are printed."""
    tried = attempts(machine)
    lines = []
    for number, attempt in enumerate(tried.values()):
        if attempt.startswith("py "):
            script = machine.workspace / f"{number}.py"
            script.write_text(PRELUDE + attempt.removeprefix("py "))
            script.chmod(0o644)
            lines.append(f"python3 -IS {number}.py >/dev/null 2>&1 && echo {number}")
        else:
            lines.append(f"({attempt}) >/dev/null 2>&1 && echo {number}")
    report, output = run_as_nobody(
        machine.workspace, "\n".join([*lines, "echo end"]), backend, timeout_s=60
    )
    assert report.problem == ""
    escaped = {[*tried][int(number)] for number in output.split()[:-1]}
    assert escaped == set()
    assert output.split()[-1] == "end"
    assert (machine.home / "parley.db").read_text() == "secret"
    assert (machine.home / "parley.db").stat().st_mode & 0o7777 in {0o600, 0o644}
    assert not [path for path in machine.workspace.iterdir() if path.lstat().st_mode & 0o6000]


def test_what_is_allowed_works(machine: Machine, backend: Backend) -> None:
    """Programs run, files are made, and the walls are not noticed."""
    command = (
        "id -u; echo x > f; chmod u+x f; mkdir -p a/b && mv a c && ls c; cat <(echo sub);"
        " python3 -IS -c 'print(1 + 1)'; git init -q g 2>/dev/null && ls -d g/.git;"
        " head -c 3 /proc/meminfo"
    )
    report, output = run_as_nobody(machine.workspace, command, backend)
    assert (report.ended, report.code, report.problem) == ("exit", 0, ""), output
    assert output.split() == [str(NOBODY), "b", "sub", "2", "g/.git", "Mem"]


def test_what_it_leaves_running_ends_with_it(machine: Machine, backend: Backend) -> None:
    """A session of its own, a double fork, and whatever ignores signals."""
    # Of this worker's own: another one may run the like at the same time.
    asleep = f"sleep 1000.{os.getpid()}"
    deaf = f"trap '' TERM HUP INT; {asleep}"
    command = f'(setsid bash -c "{deaf}" & ) ; (nohup bash -c "{deaf}" &) ; exec sleep 0'
    report, _ = run_as_nobody(machine.workspace, command, backend)
    assert report.ended == "exit"
    left = subprocess.run(
        ["ps", "-u", str(NOBODY), "-o", "args="], capture_output=True, check=False
    )
    assert asleep.encode() not in left.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("ended", ["timeout", "processes"])
def test_its_limits_hold(machine: Machine, backend: Backend, ended: str) -> None:
    """Time and number; with all that it has become."""
    bomb = "f() { f | f & }; f; sleep 100" if ended == "processes" else "sleep 100 & sleep 100"
    limit_s = 30 if ended == "processes" else 1
    report, _ = run_as_nobody(machine.workspace, bomb, backend, timeout_s=limit_s)
    assert report.ended == ended


def test_a_full_workspace_can_only_be_emptied(machine: Machine, backend: Backend) -> None:
    """Nothing new is made; what is there can be deleted."""
    (machine.workspace / "old").write_text("x")
    command = "echo y > new; mkdir d; rm old; ls"
    report, output = run_as_nobody(machine.workspace, command, backend, growing=False)
    assert report.code == 0
    assert "old" not in output.split()
    assert not [path for path in machine.workspace.iterdir() if path.is_file()]
