"""Find the files of a program's installation that it needs to run, for every confinement backend.

The operator chooses a program. From its file, the search follows links, a script's interpreter and
a virtual environment's pyvenv.cfg. From each installation found it returns the folders of programs
and libraries, never a home folder or anything in PARLEY_HOME. It stops at places that the program
itself can write, where it could link to anything.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agent.processes.confinement import SYSTEM

PARTS = ("bin", "lib", "lib32", "lib64", "libexec", "include", "ssl", "pyvenv.cfg")
"""Readable parts of an installation's prefix, without data, settings and personal files."""
_OF_SHIMS = (*PARTS, "shims", "version", "versions", "plugins")
"""Readable parts of pyenv's root and similar: their shims choose a program in `versions`."""
_LIBRARIES = ("lib", "lib64")
"""Readable parts of a prefix that is a home folder: `~/bin` contains personal scripts."""
_MOST_STEPS = 200
"""Most names and links to follow in one path; the kernel follows 40 links."""
_MOST_FOUND = 200
"""Number of files after which the search stops: scripts may name each other as interpreters."""
_SHEBANG_BYTES = 4_096


def of_this_python() -> list[str]:
    """Return the files that this process's Python needs, including its virtual environment."""
    prefixes = (sys.prefix, sys.base_prefix, sys.base_exec_prefix)
    parts = [part for each in prefixes for part in _parts(Path(each))]
    # Some systems store the standard library elsewhere.
    return _distinct([*parts, Path(os.__file__).parent])


def of_program(
    file: Path, path: str | None, home: Path, writable: Sequence[Path] = ()
) -> list[str]:
    """Return the files and folders that a program needs to start. Blocking.

    Args:
        file: An absolute path.
        path: Folders in which a script finds its interpreter, as in PATH.
        home: PARLEY_HOME.
    """
    closed = [home, *writable]
    found: list[Path] = []
    waiting = [file]
    while waiting and len(found) < _MOST_FOUND:
        step = waiting.pop()
        # Bubblewrap needs each link as well as its target.
        files = [step, *(each for each in _visited(step) if each.is_file())]
        if step in found or not step.is_file() or leads_through(step, closed):
            continue
        found += [step, *files, *(part for each in files for part in _around(each))]
        waiting += _next(files[-1], path)
    kept = [each for each in found if not leads_through(each, closed)]
    real_home = Path(os.path.realpath(home))
    return _distinct(each for each in kept if not real_home.is_relative_to(os.path.realpath(each)))


def leads_through(path: Path, folders: Sequence[Path]) -> bool:
    """Return whether a path is one of these folders or leads through one, also by links.

    A program that can write there could replace the path by a link to anything, which would be
    readable at the next start.
    """
    closed = [Path(os.path.realpath(each)) for each in folders]
    return any(way.is_relative_to(each) for way in _visited(path) for each in closed)


def _visited(path: Path) -> Iterator[Path]:
    """Yield each place on the way to a path, including links."""
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
            # The target of a link may itself contain links.
            at = Path("/") if target.is_absolute() else at
            left = [*target.parts[target.is_absolute() :], *left]
        else:
            at = place


def _next(file: Path, path: str | None) -> Iterator[Path]:
    """Yield a script's interpreter, and the Python of a virtual environment."""
    if (interpreter := _interpreter(file, path)) is not None:
        yield interpreter
    base = _base(file.parent.parent / "pyvenv.cfg")
    if file.parent.name == "bin" and base is not None:
        # Every installation has a file of this name.
        yield base / "python3"


def _around(file: Path) -> Iterator[Path]:
    """Yield the required parts of the installation that contains a file."""
    if file.parent.name == "bin":
        yield from _parts(file.parent.parent)
    if file.parent.name == "shims":
        yield from _parts(file.parent.parent, _OF_SHIMS)
    # Node's modules search every folder of this name above them.
    modules = [each for each in file.parents if each.name == "node_modules"]
    yield from modules[-1:]


def _parts(prefix: Path, parts: Sequence[str] = PARTS) -> Iterator[Path]:
    home = os.path.realpath(Path("~").expanduser())
    is_home = os.path.realpath(prefix) in {"/", home}
    for name in _LIBRARIES if is_home else parts:
        if (prefix / name).exists():
            yield prefix / name


def _interpreter(file: Path, path: str | None) -> Path | None:
    """Return a script's interpreter; None if the file is not a script or it is not installed."""
    first = b""
    # An unreadable file cannot be a script.
    with suppress(OSError), file.open("rb") as script:
        first = script.readline(_SHEBANG_BYTES)
    words = os.fsdecode(first.removeprefix(b"#!")).split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        words = [found] if named and (found := shutil.which(named[0], path=path)) else []
    return Path(words[0]) if words and Path(words[0]).is_absolute() else None


def _base(config: Path) -> Path | None:
    """Return the folder of the Python that a virtual environment is based on."""
    lines: list[str] = []
    # Most folders lack such a file.
    with suppress(OSError, UnicodeDecodeError):
        lines = config.read_text("utf-8").splitlines()
    values = {name.strip(): value.strip() for name, _, value in (x.partition("=") for x in lines)}
    home = Path(values.get("home", ""))
    return home if home.is_absolute() else None


def _distinct(paths: Iterable[Path]) -> list[str]:
    """Return each path once, without those readable by every program."""
    left = [each for each in paths if not any(each.is_relative_to(one) for one in SYSTEM)]
    return [str(each) for each in dict.fromkeys(left)]
