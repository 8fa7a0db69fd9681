"""What is asked of the kernel; test_terminal.py shows that the kernel does it."""

import os
import platform
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.processes import confinement
from agent.processes.confinement import ConfinementError, confine, hold_in_group, why_not

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, NO_EFFECT = 0x7FFF0000, 0x80000000, 0x50000
NUMBERS = {
    "x86_64": {
        "allowed": {"read": 0, "connect": 42, "getpriority": 140, "ftruncate": 77},
        "confining": {"unshare": 272, "memfd_create": 319, "ptrace": 101},
        "others": {"sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142}
        | {"sched_setattr": 314, "ioprio_set": 251},
        "watching": {"inotify_init": 253, "inotify_init1": 294, "inotify_add_watch": 254}
        | {"fanotify_init": 300},
        "lasting": {"msgget": 68, "msgrcv": 70, "msgctl": 71, "semget": 64, "semop": 65}
        | {"semctl": 66, "shmget": 29, "shmat": 30, "shmctl": 31, "mq_open": 240, "mq_unlink": 241},
        "unsupported": {"fallocate": 285, "setxattr": 188, "fsetxattr": 190, "removexattr": 197},
        "prlimit64": {"prlimit64": 302},
        "ignored": {"setpriority": 141, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260},
    },
    "aarch64": {
        "allowed": {
            "read": 63,
            "connect": 203,
            "getpriority": 141,
            "ftruncate": 46,
        },
        "confining": {"unshare": 97, "memfd_create": 279, "ptrace": 117},
        "others": {"sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118}
        | {"sched_setattr": 274, "ioprio_set": 30},
        "watching": {"inotify_init1": 26, "inotify_add_watch": 27, "fanotify_init": 262},
        "lasting": {"msgget": 186, "msgrcv": 188, "msgctl": 187, "semget": 190, "semop": 193}
        | {"semctl": 191, "shmget": 194, "shmat": 196, "shmctl": 195}
        | {"mq_open": 180, "mq_unlink": 181},
        "unsupported": {"fallocate": 47, "setxattr": 5, "fsetxattr": 7, "removexattr": 14},
        "prlimit64": {"prlimit64": 261},
        "ignored": {"setpriority": 140, "fchown": 55, "fchownat": 54},
    },
}


def run(program: Iterator[bytes], number: int, argument: int = 0, machine: int = 0) -> int:
    """Return what a filter says about a call, by its first argument."""
    return run_with(program, number, (argument,), machine)


def run_with(program: Iterator[bytes], number: int, given: Sequence[int], machine: int) -> int:
    """Return what a filter says about a call with these arguments, as the kernel reads it."""
    steps = [struct.unpack("=HBBI", step) for step in program]
    data = struct.pack("=IIQ6Q", number, machine, 0, *[*given, *[0] * 6][:6])
    value = at = 0
    while True:
        code, when_true, when_false, operand = steps[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
            continue
        holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}
        at += when_true if holds[code] else when_false


@pytest.mark.parametrize("machine", MACHINES)
def test_a_command_is_held_in_its_group(machine: str) -> None:
    """Leaving has no effect, and a signal to the group or to everybody is refused."""
    numbers = confinement._ARCHITECTURES[machine][1]

    def says(name: str, argument: int = 0) -> int:
        program = confinement._holding(machine)
        return run(program, numbers[name], argument, MACHINES[machine])

    assert says("setsid") == says("setpgid") == NO_EFFECT
    assert says("kill", 0) == says("kill", 2**32 - 1) == NO_EFFECT | 1
    assert says("kill", 17) == says("socket") == says("clone") == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_confined_command_reaches_no_socket_of_others(machine: str) -> None:
    """No family of sockets without the network, with it those of the internet; no namespaces."""
    numbers = confinement._ARCHITECTURES[machine][1]

    def says(name: str, *arguments: int, network: bool = False) -> int:
        program = confinement._confining(machine, network=network)
        return run_with(program, numbers[name], arguments, MACHINES[machine])

    assert says("socket", 1) == says("socket", 2) == says("socket", 16) == NO_EFFECT | 97
    assert says("socket", 1, 1, network=True) == says("socket", 40, 1, network=True)
    assert says("socket", 40, 1, network=True) == NO_EFFECT | 97
    for family in (2, 10):
        assert says("socket", family, 0o2004001, network=True) == ALLOW
        assert says("socket", family, 2, 17, network=True) == ALLOW
    assert says("clone", 0x10000000) == NO_EFFECT | 1
    assert says("clone", 17) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_forbidden_and_what_is_not(machine: str) -> None:
    """Namespaces, io_uring, watching files, what outlives a command; not reading and connecting."""

    def says(*groups: str) -> set[int]:
        return {
            run(confinement._confining(machine), number, 0, MACHINES[machine])
            for group in groups
            for number in NUMBERS[machine][group].values()
        }

    assert says("confining", "others", "watching", "lasting") == {NO_EFFECT | 1}
    assert says("allowed") == {ALLOW}
    assert says("unsupported") == {NO_EFFECT | 95}
    assert says("ignored") == {NO_EFFECT}
    everywhere = [
        run(confinement._confining(machine), number, 0, MACHINES[machine])
        for number in (425, 463, 469, 435)
    ]
    # The last is clone3: the C library falls back to clone.
    assert everywhere == [NO_EFFECT | 1, NO_EFFECT | 95, NO_EFFECT | 95, NO_EFFECT | 38]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_command_changes_its_own_limits_only(machine: str) -> None:
    """Those of Parley, or of another conversation's command, would end it."""

    def says(name: str, argument: int) -> int:
        number = NUMBERS[machine][name][name]
        return run(confinement._confining(machine), number, argument, MACHINES[machine])

    assert says("prlimit64", 0) == ALLOW
    assert says("prlimit64", 1) == says("prlimit64", 4711) == NO_EFFECT | 1


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
"""Of the kernel, from Debian's linux-libc-dev. ARM64 has the generic numbers."""
SINCE = {"fchmodat2", "setxattrat", "removexattrat", "file_setattr"}
"""Calls that came after Linux 6.1, whose headers Debian 12 has."""


def known_calls(machine: str) -> dict[str, int]:
    """Return all calls that a filter of this processor knows by name."""
    at = [*MACHINES].index(machine)
    found = dict(confinement._ARCHITECTURES[machine][1])
    for calls in (confinement._FORBIDDEN, confinement._UNSUPPORTED, confinement._WITHOUT_EFFECT):
        found |= {name: number for name, each in calls.items() if (number := each[at]) is not None}
    everywhere = {"clone3": confinement._CLONE3, "openat2": confinement._OPENAT2}
    landlock = {
        "landlock_create_ruleset": confinement._CREATE_RULESET,
        "landlock_add_rule": confinement._ADD_RULE,
        "landlock_restrict_self": confinement._RESTRICT_SELF,
    }
    return found | everywhere | landlock | {"fchmodat2": confinement._FCHMODAT2}


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(name, marks=pytest.mark.skipif(not path.is_file(), reason=f"no {path}"))
        for name, path in HEADERS.items()
    ],
)
def test_the_numbers_are_the_kernels(machine: str) -> None:
    """Each is compared with the kernel's own table: another number would be another call."""
    text = HEADERS[machine].read_text()
    defined = re.finditer(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", text, re.MULTILINE)
    numbers = {found[1]: int(found[2]) for found in defined}
    ours = known_calls(machine)
    assert len(ours) > 60
    assert {name for name in ours if name not in numbers} <= SINCE
    assert {name: numbers.get(name, ours[name]) for name in ours} == ours


MODES = {
    "x86_64": {"chmod": (90, 1), "fchmod": (91, 1), "fchmodat": (268, 2), "fchmodat2": (452, 2)},
    "aarch64": {"fchmod": (52, 1), "fchmodat": (53, 2), "fchmodat2": (452, 2)},
}
MAKING = {
    "x86_64": {"creat": (85, 1), "mknod": (133, 1), "mknodat": (259, 2)},
    "aarch64": {"mknodat": (33, 2)},
}
OPENING = {"x86_64": {"open": (2, 1), "openat": (257, 2)}, "aarch64": {"openat": (56, 2)}}


@given(st.sampled_from([*MACHINES]), st.integers(0, 0o177777), st.integers(0, 2**32 - 1))
@example("x86_64", 0o4700, 0)
@example("aarch64", 0o2700, 0)
@example("x86_64", 0o0604, 0)
def test_no_mode_gives_rights_to_others(machine: str, mode: int, other: int) -> None:
    """Set-id bits never; bits of group and others only on a file that is made in the workspace."""

    def says(number: int, at: int, *values: int) -> int:
        arguments = [other] * 6
        arguments[at : at + len(values)] = values
        return run_with(confinement._confining(machine), number, arguments, MACHINES[machine])

    for number, at in MODES[machine].values():
        assert says(number, at, mode) == (NO_EFFECT | 1 if mode & 0o6077 else ALLOW)
    for number, at in MAKING[machine].values():
        assert says(number, at, mode) == (NO_EFFECT | 1 if mode & 0o6000 else ALLOW)
    for number, at in OPENING[machine].values():
        for creating in (0o100, 0o20000000, 0o1101):
            refused = NO_EFFECT | 1 if mode & 0o6000 else ALLOW
            assert says(number, at, creating, mode) == refused
        assert says(number, at, 0o2001, mode) == ALLOW
    # openat2 has its mode in memory: the C library falls back to openat.
    assert says(437, 0) == NO_EFFECT | 38


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_calls_of_another_architecture_end_the_command(number: int, other: int) -> None:
    """Their numbers mean something else; those of x32 do not exist."""
    for machine, own in MACHINES.items():
        for program in (
            confinement._holding,
            lambda name: confinement._confining(name, network=True),
        ):
            if other != own:
                assert run(program(machine), number, 0, other) == KILL
            assert run(program(machine), 0x40000000 | number, 0, own) == NO_EFFECT | 38


@pytest.mark.parametrize(
    ("system", "machine", "abi", "reason"),
    [
        ("Darwin", "arm64", 0, "it needs Linux, this is Darwin"),
        ("Linux", "riscv64", 7, "not made for processors of type riscv64"),
        ("Linux", "x86_64", 0, "the kernel has no Landlock, or it is off"),
        ("Linux", "x86_64", 2, "the kernel has version 2 of Landlock; version 3"),
    ],
)
def test_why_a_machine_cannot_confine(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, abi: int, reason: str
) -> None:
    """The operator reads it, and nothing is run."""
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(confinement, "landlock_abi", lambda: abi)
    assert reason in str(why_not())
    with pytest.raises(ConfinementError, match=reason):
        confine(["/nowhere"], [])


def test_a_kernel_without_the_call_has_no_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with an error."""

    def unknown(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(confinement, "_syscall", unknown)
    assert confinement.landlock_abi() == 0


class Kernel:
    """Takes note of what is asked."""

    def __init__(self, abi: int) -> None:
        self.abi = abi
        self.options: list[int] = []
        self.rules: list[int] = []
        self.attributes = b""
        self.bounding = 40

    def syscall(self, number: int, *arguments: Any) -> int:
        if number == 444 and arguments[0] is None:
            return self.abi
        if number == 444:
            self.attributes = arguments[0][: arguments[1]]
            return os.open("/dev/null", os.O_RDONLY)
        if number == 445:
            self.rules.append(struct.unpack("=Qi", arguments[2])[0])
        return 0

    def prctl(self, option: int, *arguments: Any) -> None:
        if option == 24 and arguments[0] > self.bounding:
            raise OSError(22, "Invalid argument")
        self.options.append(option)


class Library:
    """A C library whose only function succeeds, or not."""

    def __init__(self, result: int = 0) -> None:
        self.capset: Callable[..., int] = lambda *_: result


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linux on x86-64."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("abi", "size", "handled"), [(3, 8, 2**15 - 1), (5, 8, 2**16 - 1), (9, 24, 2**16 - 1)]
)
def test_files_are_restricted_as_far_as_the_kernel_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, abi: int, size: int, handled: int
) -> None:
    """Only the workspace can be written; signals are held from version 6 on."""
    kernel = Kernel(abi)
    monkeypatch.setattr(confinement, "_syscall", kernel.syscall)
    monkeypatch.setattr(confinement, "_prctl", kernel.prctl)
    monkeypatch.setattr(confinement, "_libc", Library)
    confine([str(tmp_path)], ["/not/there"])
    assert len(kernel.attributes) == size
    assert struct.unpack_from("=Q", kernel.attributes) == (handled,)
    assert kernel.rules[0] == handled
    writing = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
    assert [rule & writing for rule in kernel.rules].count(writing) == 1
    assert kernel.options[-2:] == [38, 22]


@pytest.mark.usefixtures("machine")
def test_a_kernel_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run then."""
    kernel = Kernel(7)
    monkeypatch.setattr(confinement, "_syscall", kernel.syscall)
    monkeypatch.setattr(confinement, "_prctl", kernel.prctl)
    monkeypatch.setattr(confinement, "_libc", lambda: Library(-1))
    with pytest.raises(ConfinementError, match="the kernel refused it"):
        confine(["/tmp"], [])  # noqa: S108 - nothing is done there
    kernel.bounding = -1

    def refuse(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(confinement, "_prctl", refuse)
    with pytest.raises(ConfinementError, match="the kernel refused a filter"):
        hold_in_group()


def test_other_systems_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the group alone is killed."""
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    asked: list[object] = []
    monkeypatch.setattr(confinement, "_prctl", lambda *call: asked.append(call))
    hold_in_group()
    assert asked == []


@pytest.mark.usefixtures("machine")
def test_holding_asks_for_two_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """No new privileges, then the filter."""
    kernel = Kernel(7)
    monkeypatch.setattr(confinement, "_prctl", kernel.prctl)
    hold_in_group()
    assert kernel.options == [38, 22]


def test_errors_of_the_kernel_are_raised() -> None:
    """A call that does not exist, an option that does not exist."""
    with pytest.raises(OSError, match="Function not implemented"):
        confinement._syscall(100_000)
    with pytest.raises(OSError, match="Invalid argument"):
        confinement._prctl(100_000)
