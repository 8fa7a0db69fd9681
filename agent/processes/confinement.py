"""Confine a command to its directory: Landlock for files, seccomp for the rest (Linux).

It needs neither root nor other programs. Files: a command can read only the system's programs and
libraries, and write only the workspace. System calls: it cannot use local sockets, which Landlock
does not guard, nor the network unless allowed; it cannot watch other users' files or change other
processes. docs/tools.md lists the remaining gaps. Every command also stays in its process group, so
that killing the group ends all of it at once.

Runs in the process that will become the program; uses only the standard library.
"""

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/opt/homebrew", "/nix/store", "/gnu/store"),
    *("/etc/alternatives", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/fonts"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/group"),
    *("/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/gai.conf"),
    *("/etc/protocols", "/etc/services", "/etc/mime.types", "/etc/pki/tls", "/etc/pki/ca-trust"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/terminfo", "/etc/timezone"),
    *("/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat"),
    *("/proc/sys", "/proc/uptime", "/proc/version"),
)
"""Paths that every command may read and execute: no home, /var, /run or other part of /etc, and no
process information, since command lines contain words of other conversations."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

MIN_ABI = 3
"""Before this version (Linux 6.2) a command could truncate outside files. Source:
Documentation/userspace-api/landlock.rst, "Truncating files"."""
SIGNALS_ABI = 6
"""Since this version (Linux 6.12) Landlock blocks signals to processes outside the command."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_MAKE = 0x3FC0
"""Rights to create files, directories and the like, and to move them elsewhere."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_FS_RIGHTS = {3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_SCOPES = (1 << 0) | (1 << 1)
"""Scopes for abstract Unix sockets and signals."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 38, 22, 24
_PR_SET_DUMPABLE = 4
_SECCOMP_MODE_FILTER = 2
_LAST_CAPABILITY = 63
_CAPABILITY_VERSION_3 = 0x20080522

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_EPERM, _ENOSYS, _EOPNOTSUPP, _EAFNOSUPPORT = 1, 38, 95, 97
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000
_INTERNET = (2, 10)
"""AF_INET and AF_INET6."""

# Audit architecture, then the numbers of calls with special treatment.
# Source: linux/audit.h, arch/x86/entry/syscalls/syscall_64.tbl, asm-generic/unistd.h.
_ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        {"setpgid": 109, "setsid": 112, "kill": 62, "socket": 41, "clone": 56}
        | {"prlimit64": 302, "open": 2, "openat": 257, "creat": 85}
        | {"chmod": 90, "fchmod": 91, "fchmodat": 268, "mknod": 133, "mknodat": 259},
    ),
    "aarch64": (
        0xC00000B7,
        {"setpgid": 154, "setsid": 157, "kill": 129, "socket": 198, "clone": 220}
        | {"prlimit64": 261, "openat": 56}
        | {"fchmod": 52, "fchmodat": 53, "mknodat": 33},
    ),
}
_CLONE3, _OPENAT2, _FCHMODAT2 = 435, 437, 452
_SET_ID = 0o6000
_OF_OTHERS = 0o077
# Position of the mode argument: in calls that change a mode, and in calls that create a file.
_CHANGING = {"chmod": 1, "fchmod": 1, "fchmodat": 2}
_MAKING = {"creat": 1, "mknod": 1, "mknodat": 2}
_OPENING = {"open": 1, "openat": 2}
"""Position of the flags argument; the mode comes next and is read only with these flags:"""
_CREATES = 0o100 | 0o20000000
"""O_CREAT and O_TMPFILE."""
# Each call with its numbers on x86-64 and ARM64; None if that processor lacks it.
# Sources as above; tests/agent/processes/test_confinement.py compares them.
_Calls = Mapping[str, tuple[int | None, int | None]]
_FORBIDDEN: _Calls = (
    {"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39)}
    | {"pivot_root": (155, 41), "chroot": (161, 51), "ptrace": (101, 117)}
    | {"process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "bpf": (321, 280)}
    | {"perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219)}
    | {"add_key": (248, 217), "request_key": (249, 218), "open_by_handle_at": (304, 265)}
    | {"memfd_create": (319, 279), "pidfd_send_signal": (424, 424)}
    # io_uring requests bypass the filter.
    | {"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)}
    # Calls that change other processes.
    | {"sched_setparam": (142, 118), "sched_setscheduler": (144, 119)}
    | {"sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30)}
    # Calls that watch files.
    | {"inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27)}
    | {"fanotify_init": (300, 262)}
    # Calls that create objects which outlive a command and are shared by all processes.
    | {"shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190)}
    | {"semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186)}
    | {"msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187)}
    | {"mq_open": (240, 180), "mq_unlink": (241, 181)}
)
# The first uses disk space faster than it can be measured; the others reach files that Landlock
# blocks. Programs can handle file systems without them.
_UNSUPPORTED: _Calls = (
    {"fallocate": (285, 47), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7)}
    | {"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16)}
    | {"setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469)}
)
# These succeed without effect, since many scripts and archives use them: `nice`, and changing a
# file's group, whose members its mode may allow to read it.
_WITHOUT_EFFECT: _Calls = {
    "setpriority": (141, 140),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
}


class ConfinementError(Exception):
    """This machine cannot confine a command; the text is the reason."""


def landlock_abi() -> int:
    """Return the kernel's Landlock version, or 0."""
    with suppress(OSError, AttributeError):
        return max(0, _syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION))
    return 0


def why_not() -> str | None:
    """Return the reason why commands cannot be confined here, or None."""
    if reason := _why_not_filter():
        return reason
    if (abi := landlock_abi()) < MIN_ABI:
        found = f"has version {abi} of Landlock" if abi else "has no Landlock, or it is off"
        return f"the kernel {found}; version {MIN_ABI} (Linux 6.2) is needed"
    return None


def _why_not_filter() -> str | None:
    if platform.system() != "Linux":
        return f"it needs Linux, this is {platform.system()}"
    if platform.machine() not in _ARCHITECTURES:
        return f"it is not made for processors of type {platform.machine()}"
    return None


def close_memory() -> None:
    """Hide this process's memory, environment and open files from the user's other processes.

    The kernel assigns these /proc files to root and writes no core dump. Programs do not inherit
    this.
    """
    if platform.system() == "Linux":
        _prctl(_PR_SET_DUMPABLE, 0)


def hold_in_group() -> None:
    """Keep this process and its descendants in its process group forever, if possible.

    Attempts to leave the group succeed without effect, for programs that try (timeout, daemons). A
    signal to the own group or to all processes is refused: it would reach the shell. Raises a
    ConfinementError if the kernel refuses the filter.
    """
    if platform.system() != "Linux" or platform.machine() not in _ARCHITECTURES:
        return
    try:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _filter_calls(_holding(platform.machine()))
    except OSError as exc:
        raise ConfinementError(f"the kernel refused a filter: {exc}") from exc


def confine(
    writable: Sequence[str],
    readable: Sequence[str],
    *,
    network: bool = False,
    growing: bool = True,
    apart: bool = False,
) -> None:
    """Confine this process and its descendants forever.

    Args:
        readable: Paths that can only be read and executed.
        growing: Whether it may create files, or only delete.
        apart: Whether namespaces already hide the rest of the machine: then Landlock, if available,
            is a second barrier, and file modes cannot expose other users' files.

    Raises:
        ConfinementError: Confinement failed; nothing must be run.
    """
    reason = _why_not_filter() if apart else why_not()
    if reason:
        raise ConfinementError(reason)
    try:
        _drop_capabilities()
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if landlock_abi() >= MIN_ABI:
            _restrict_files(writable, [*readable, *(["/proc"] if apart else [])], growing=growing)
        _filter_calls(_confining(platform.machine(), network=network, apart=apart))
    except OSError as exc:
        raise ConfinementError(f"the kernel refused it: {exc}") from exc


def _drop_capabilities() -> None:
    # Fails if the kernel knows no further capability, or the process has none to drop.
    with suppress(OSError):
        for capability in range(_LAST_CAPABILITY + 1):
            _prctl(_PR_CAPBSET_DROP, capability)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    if _libc().capset(header, bytes(24)):
        raise _last_error()


def _restrict_files(writable: Iterable[str], readable: Iterable[str], *, growing: bool) -> None:
    abi = landlock_abi()
    handled = _FS_RIGHTS[min(abi, 5)]
    attributes = struct.pack("=QQQ", handled, 0, _SCOPES)
    # A kernel refuses unknown attributes.
    size = 24 if abi >= SIGNALS_ABI else 8
    ruleset = _syscall(_CREATE_RULESET, attributes, size, 0)
    try:
        own = handled if growing else handled & ~_MAKE
        for path, rights in _rules(writable, readable, own):
            _allow(ruleset, path, rights & handled)
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _rules(writable: Iterable[str], readable: Iterable[str], own: int) -> Iterator[tuple[str, int]]:
    for path in writable:
        yield path, own
    for path in (*SYSTEM, *readable):
        yield path, _READ
    for path in DEVICES:
        yield path, _READ_FILE | _WRITE_FILE


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow access to everything below a path, if it exists."""
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= _OF_FILES
        _syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, target), 0)
    finally:
        os.close(target)


def _filter_calls(steps: Iterable[bytes]) -> None:
    program = b"".join(steps)
    buffer = ctypes.create_string_buffer(program, len(program))
    # The kernel reads the filter during the call: keep `buffer` alive until then.
    filter_ = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_)


def _holding(machine: str) -> Iterator[bytes]:
    """Yield the filter that keeps a command in its process group."""
    numbers = _ARCHITECTURES[machine][1]
    yield from _beginning(machine)
    for name in ("setpgid", "setsid"):
        yield from _when(_JUMP_EQUAL, numbers[name], _ERRNO)
    for target in (0, 2**32 - 1):
        refused = _when(_JUMP_EQUAL, target, _ERRNO | _EPERM)
        yield from _for_call(numbers["kill"], refused, None)
    yield _step(_RETURN, _ALLOW)


def _confining(machine: str, *, network: bool = False, apart: bool = False) -> Iterator[bytes]:
    """Yield the filter that blocks calls forbidden to a confined command."""
    numbers = _ARCHITECTURES[machine][1]
    yield from _beginning(machine)
    # Their flags are in memory, which filters cannot read; libraries fall back to older calls.
    for number in (_CLONE3, _OPENAT2):
        yield from _when(_JUMP_EQUAL, number, _ERRNO | _ENOSYS)
    for calls, result in ((_FORBIDDEN, _EPERM), (_UNSUPPORTED, _EOPNOTSUPP), (_WITHOUT_EFFECT, 0)):
        for number in _numbers(calls, machine):
            yield from _when(_JUMP_EQUAL, number, _ERRNO | result)
    yield from _modes(numbers, _SET_ID if apart else _SET_ID | _OF_OTHERS)
    own = _when(_JUMP_EQUAL, 0, _ALLOW)
    yield from _for_call(numbers["prlimit64"], own, _ERRNO | _EPERM)
    namespaces = _when(_JUMP_SET, _NEW_NAMESPACES, _ERRNO | _EPERM)
    yield from _for_call(numbers["clone"], namespaces, _ALLOW)
    allowed = [step for each in _INTERNET for step in _when(_JUMP_EQUAL, each, _ALLOW)]
    yield from _for_call(numbers["socket"], allowed if network else [], _ERRNO | _EAFNOSUPPORT)
    yield _step(_RETURN, _ALLOW)


def _numbers(calls: _Calls, machine: str) -> list[int]:
    at = [*_ARCHITECTURES].index(machine)
    return [number for each in calls.values() if (number := each[at]) is not None]


def _modes(numbers: Mapping[str, int], refused: int) -> Iterator[bytes]:
    """Yield the refusals of set-id bits and of modes that open a file to others.

    A filter cannot see the owner of a file, and Landlock does not control modes. New files are in
    the workspace, which others cannot enter: for them only set-id bits are refused.
    """
    changed = _when(_JUMP_SET, refused, _ERRNO | _EPERM)
    made = _when(_JUMP_SET, _SET_ID, _ERRNO | _EPERM)
    for name, argument in _CHANGING.items():
        if name in numbers:
            yield from _for_call(numbers[name], changed, None, argument)
    yield from _for_call(_FCHMODAT2, changed, None, 2)
    for name, argument in _MAKING.items():
        if name in numbers:
            yield from _for_call(numbers[name], made, None, argument)
    for name, argument in _OPENING.items():
        if name in numbers:
            # Without these flags the mode is an arbitrary register value.
            creating = [_step(_JUMP_SET, _CREATES, 0, 3), _argument(argument + 1), *made]
            yield from _for_call(numbers[name], creating, None, argument)


def _beginning(machine: str) -> Iterator[bytes]:
    """Yield the instructions that refuse foreign architectures and load the call's number."""
    yield _step(_LOAD, _ARCH_AT)
    yield _step(_JUMP_EQUAL, _ARCHITECTURES[machine][0], 1, 0)
    # The same number is another call on another architecture.
    yield _step(_RETURN, _KILL)
    yield _step(_LOAD, _NUMBER_AT)
    # The x32 calls of x86-64 use separate numbers, which the checks below do not cover.
    yield from _when(_JUMP_GREATER_EQUAL, _X32, _ERRNO | _ENOSYS)


def _when(jump: int, value: int, result: int) -> list[bytes]:
    return [_step(jump, value, 0, 1), _step(_RETURN, result)]


def _for_call(
    number: int, checks: Sequence[bytes], otherwise: int | None, argument: int = 0
) -> Iterator[bytes]:
    """Yield the checks of a call's argument; if `otherwise` is None, the filter continues."""
    last = _step(_LOAD, _NUMBER_AT) if otherwise is None else _step(_RETURN, otherwise)
    yield _step(_JUMP_EQUAL, number, 0, len(checks) + 2)
    yield _argument(argument)
    yield from checks
    yield last


def _argument(position: int) -> bytes:
    """Load the lower half of an argument; both processors are little-endian."""
    return _step(_LOAD, _ARGUMENTS_AT + 8 * position)


def _step(code: int, operand: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, operand)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, *arguments: int | bytes) -> None:
    if _libc().prctl(option, *_wide([*arguments, 0, 0, 0][:4])):
        raise _last_error()


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    result: int = _libc().syscall(ctypes.c_long(number), *_wide(arguments))
    if result < 0:
        raise _last_error()
    return result


def _wide(arguments: Sequence[int | bytes | None]) -> list[object]:
    """Convert arguments for the C library: integers fill a register."""
    return [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
