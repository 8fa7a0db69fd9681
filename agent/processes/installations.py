"""What a program needs of its own installation to run, wherever that lies: one rule for all walls.

A program is chosen by the operator. From its file this follows the links, the interpreter of a
script and the file pyvenv.cfg of a virtual environment; of each installation that they lead to it
gives the folders of programs and libraries, never a home folder, and nothing of PARLEY_HOME. It
ends where the program itself could write: what it made a link there would lead to anything.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agent.processes.confinement import SYSTEM

PARTS = ("bin", "lib", "lib32", "lib64", "libexec", "include", "ssl", "pyvenv.cfg")
"""Of an installation's prefix: all that is not data, settings or anything else of a person."""
_LIBRARIES = ("lib", "lib64")
"""Of a prefix that is somebody's home: `~/bin` holds a person's own scripts."""
_MOST_STEPS = 200
"""Names and links of one path that are followed; the kernel follows 40 links."""
_MOST_FOUND = 200
"""Beside what one step finds: scripts may name each other as interpreters."""
_SHEBANG_BYTES = 4_096


def of_this_python() -> list[str]:
    """Return what the Python that runs this process needs, its virtual environment included."""
    prefixes = (sys.prefix, sys.base_prefix, sys.base_exec_prefix)
    parts = [part for each in prefixes for part in _parts(Path(each))]
    # Where a system keeps the standard library elsewhere.
    return _distinct([*parts, Path(os.__file__).parent])


def of_program(
    file: Path, path: str | None, home: Path, writable: Sequence[Path] = ()
) -> list[str]:
    """Return the files and folders that a program needs to be started. Blocking.

    Args:
        file: An absolute path.
        path: Where a script finds its interpreter, as in PATH.
        home: PARLEY_HOME.
        writable: What the program can write.
    """
    closed = [home, *writable]
    found: list[Path] = []
    waiting = [file]
    while waiting and len(found) < _MOST_FOUND:
        step = waiting.pop()
        # With bubblewrap each link must be there as well, not only what it leads to.
        files = [step, *(each for each in _visited(step) if each.is_file())]
        if step in found or not step.is_file() or leads_through(step, closed):
            continue
        found += [step, *files, *(part for each in files for part in _around(each))]
        waiting += _next(files[-1], path)
    return _distinct(
        each for each in found if not leads_through(each, closed) and not _holds(each, home)
    )


def leads_through(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a path leads through one of these folders, by whatever links, or is one of them.

    Who can write there can turn it into a link to anything, and be given that at the next start.
    """
    closed = [Path(os.path.realpath(each)) for each in folders]
    return any(way.is_relative_to(each) for way in _visited(path) for each in closed)


def _visited(path: Path) -> Iterator[Path]:
    """Yield each place that the system comes to on its way to a path, links included."""
    at, left = Path("/"), [*path.parts[1:]]
    for _ in range(_MOST_STEPS):
        if not left:
            return
        name = left.pop(0)
        if name == "..":
            at = at.parent
            continue
        place = at / name
        yield place
        if place.is_symlink():
            target = place.readlink()
            # What a link says is walked like the rest: it may itself lead through links.
            at = Path("/") if target.is_absolute() else at
            left = [*target.parts[target.is_absolute() :], *left]
        else:
            at = place


def _holds(path: Path, home: Path) -> bool:
    return Path(os.path.realpath(home)).is_relative_to(os.path.realpath(path))


def _next(file: Path, path: str | None) -> Iterator[Path]:
    """Yield what runs a script, and the Python that a virtual environment was made with."""
    if (interpreter := _interpreter(file, path)) is not None:
        yield interpreter
    base = _base(file.parent.parent / "pyvenv.cfg")
    if file.parent.name == "bin" and base is not None:
        # The name is the one that each installation has.
        yield base / "python3"


def _around(file: Path) -> Iterator[Path]:
    """Yield what of a file's installation is needed with it."""
    if file.parent.name == "bin":
        yield from _parts(file.parent.parent)
    # Modules of Node look for each other in all folders of this name above them.
    modules = [each for each in file.parents if each.name == "node_modules"]
    yield from modules[-1:]


def _parts(prefix: Path) -> Iterator[Path]:
    home = os.path.realpath(Path("~").expanduser())
    is_home = os.path.realpath(prefix) in {"/", home}
    for name in _LIBRARIES if is_home else PARTS:
        if (prefix / name).exists():
            yield prefix / name


def _interpreter(file: Path, path: str | None) -> Path | None:
    """Return what runs a script; None for what is no script, or has no interpreter here."""
    first = b""
    # A program that may only be run, not read, is no script.
    with suppress(OSError), file.open("rb") as script:
        first = script.readline(_SHEBANG_BYTES)
    words = os.fsdecode(first.removeprefix(b"#!")).split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        words = [found] if named and (found := shutil.which(named[0], path=path)) else []
    return Path(words[0]) if words and Path(words[0]).is_absolute() else None


def _base(config: Path) -> Path | None:
    """Return the folder of the Python that a virtual environment was made with."""
    lines: list[str] = []
    # Most folders have none.
    with suppress(OSError, UnicodeDecodeError):
        lines = config.read_text("utf-8").splitlines()
    values = {name.strip(): value.strip() for name, _, value in (x.partition("=") for x in lines)}
    home = Path(values.get("home", ""))
    return home if home.is_absolute() else None


def _distinct(paths: Iterable[Path]) -> list[str]:
    """Return each path once; not what every program may read anyway."""
    left = [each for each in paths if not any(each.is_relative_to(one) for one in SYSTEM)]
    return [str(each) for each in dict.fromkeys(left)]
