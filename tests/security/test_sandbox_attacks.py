"""Attacks from a command, or from a program of the gateway's user, each as it once worked."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.confined import (
    BECOME_NOBODY,
    BY_NOBODY,
    NOBODY,
    folder_of_nobody,
    run_as_nobody,
)

pytestmark = BY_NOBODY


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of `nobody`."""
    with folder_of_nobody() as found:
        yield found


def own(path: Path, mode: int) -> Path:
    """Make a file or directory belong to `nobody`."""
    os.chown(path, NOBODY, NOBODY)
    path.chmod(mode)
    return path


CHANGES = """
import os
for mode in (0o644, 0o640, 0o4700, 0o2700):
    for change in (os.chmod, lambda p, m: os.chmod(p, m, follow_symlinks=True)):
        try:
            change({path!r}, mode)
        except PermissionError:
            print("refused")
os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o700))
try:
    os.open("set-id", os.O_CREAT | os.O_WRONLY, 0o4755)
except PermissionError:
    print("refused")
os.chmod("made", 0o500)
"""


def test_attack_4_a_command_opens_no_file_of_parleys_user_to_others(home: Path) -> None:
    """Neither `chmod 644` on what lies outside of its workspace, nor a set-id bit anywhere."""
    workspace = home / "ws"
    workspace.mkdir()
    own(workspace, 0o700)
    secret = home / "secret"
    secret.write_text("x")
    own(secret, 0o600)
    script = workspace / "try.py"
    script.write_text(CHANGES.format(path=str(secret)))
    own(script, 0o600)
    report, output = run_as_nobody(workspace, "python3 -IS try.py; chmod u+x made && echo may")
    assert (report.ended, report.code) == ("exit", 0), output
    assert output.split() == ["refused"] * 9 + ["may"]
    assert secret.stat().st_mode & 0o7777 == 0o600
    assert (workspace / "made").stat().st_mode & 0o7777 == 0o500


OF_OTHERS = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
path, group = {path!r}, {group}
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
def chown():
    os.chown(path, -1, group)
    os.lchown(path, -1, group)
    os.chown(os.path.basename(path), -1, group, dir_fd=os.open("..", os.O_PATH))
def xattr():
    os.setxattr(path, "user.x", b"y")
def setxattrat():
    call(libc.syscall(463, -100, path.encode(), 0, b"user.x", struct.pack("QII", 0, 0, 0), 16))
def attributes():
    call(libc.syscall(469, -100, path.encode(), struct.pack("QIIII", 0x80, 0, 0, 0, 0), 24, 0))
def rename():
    os.rename(path, "taken")
def rename_over():
    open("mine", "w").close()
    os.rename("mine", path)
def link():
    os.link(path, "linked")
def unlink():
    os.unlink(path)
def truncate():
    os.truncate(path, 0)
def make():
    os.mkdir(path + ".d")
for each in (xattr, setxattrat, attributes, rename, rename_over, link, unlink, truncate, make):
    try:
        each()
        print("done", each.__name__)
    except OSError:
        print("refused")
chown()
# What remains: docs/tools.md, "What is not confined".
os.utime(path, (1, 1))
os.chmod(path, 0o400)
"""


def test_what_a_command_changes_of_files_of_others(home: Path) -> None:
    """By their paths: their times, and it takes rights from them; nothing else, nor their group."""
    workspace, other_group = home / "ws", 12_345
    workspace.mkdir()
    own(workspace, 0o700)
    secret = home / "secret"
    secret.write_text("x")
    os.chown(secret, NOBODY, other_group)
    secret.chmod(0o640)
    script = workspace / "try.py"
    script.write_text(OF_OTHERS.format(path=str(secret), group=NOBODY))
    own(script, 0o600)
    report, output = run_as_nobody(workspace, "python3 -IS try.py")
    assert (report.ended, report.code) == ("exit", 0), output
    assert output.split() == ["refused"] * 9
    found = secret.stat()
    assert (found.st_uid, found.st_gid) == (NOBODY, other_group)
    assert (found.st_mode & 0o7777, found.st_mtime, found.st_size) == (0o400, 1, 1)
    assert os.listxattr(secret) == []
    assert sorted(path.name for path in home.iterdir()) == ["secret", "ws"]


SECRETIVE = f"""
import ctypes, sys
from agent.processes import confinement
{BECOME_NOBODY}
# As after the start of a program: changing the user has closed it already.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
if sys.argv[1] == "closed":
    confinement.close_memory()
print("ready", flush=True)
sys.stdin.read()
"""
READS = """
import os, sys
pid = sys.argv[1]
for name in ("environ", "mem", "maps", "auxv"):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            print(name if name == "mem" or file.read(1) else "empty")
    except OSError:
        print("refused")
"""


@pytest.mark.parametrize(("state", "seen"), [("open", "environ"), ("closed", "refused")])
def test_attack_11_no_program_of_the_same_user_reads_the_gateways_environment(
    state: str, seen: str
) -> None:
    """Nor its memory: without the cure each program of the same user can."""
    started = [sys.executable, "-c", SECRETIVE, state]
    with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        gateway.stdout.readline()
        read = [sys.executable, "-c", BECOME_NOBODY + READS, str(gateway.pid)]
        found = subprocess.run(read, capture_output=True, text=True, check=True).stdout.split()
        assert gateway.stdin is not None
        gateway.stdin.close()
    assert found[0] == seen
    assert state == "open" or set(found) == {"refused"}
