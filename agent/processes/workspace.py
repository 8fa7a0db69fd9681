"""A directory that a model writes to; files in it are opened one path component at a time.

Every component is opened relative to its parent and never through a link, so no path leads out,
even while a command of the same conversation replaces directories by links. It imports only the
standard library and `agent.errors`, since a helper process uses it, too.
"""

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from secrets import token_hex

from agent.errors import ToolError

MAX_PATH_BYTES = 4_000
MAX_NAME_BYTES = 255
MAX_DEPTH = 64
MAX_ENTRIES = 100_000
"""Most files and directories counted to measure a directory."""

_PIECE_BYTES = 1_000_000
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | _FLAGS
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""Errors of opening a directory that has disappeared or become something else."""


def components(path: str) -> tuple[str, ...]:
    """Split a relative path into names; raise a ToolError if it is absolute or leads upwards."""
    if path.startswith("/"):
        raise ToolError("paths are relative to the workspace: omit the leading /")
    names = tuple(name for name in path.split("/") if name not in {"", "."})
    if ".." in names:
        raise ToolError("a path must not leave the workspace (..)")
    if "\0" in path or _size(path) > MAX_PATH_BYTES or len(names) > MAX_DEPTH:
        raise ToolError("this path cannot be used: it is too long, too deep, or has a NUL")
    if any(_size(name) > MAX_NAME_BYTES for name in names):
        raise ToolError(f"a name in the path is longer than {MAX_NAME_BYTES} bytes")
    return names


def _size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as exc:
        raise ToolError("this path cannot be used: it is not valid Unicode") from exc


class Workspace:
    """The directory of one conversation, or of the skills. Blocking: call it in a thread.

    Attributes:
        root: Accessible to its owner only. Created on first use or, without `makes`, on the first
            `write`.
    """

    def __init__(self, root: Path, *, makes: bool = True) -> None:
        self.root, self._makes = root, makes

    def prepare(self) -> None:
        """Create the directory if it is missing; raise a ToolError on failure."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise ToolError(f"the workspace cannot be created: {exc.strerror}") from exc

    @contextmanager
    def directory(self, names: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """Open a directory and yield its descriptor; `create` makes missing directories.

        Raises a ToolError if it is missing, not a directory, or behind a link.
        """
        if self._makes or create:
            self.prepare()
        with clear(self.root.name):
            handle = _opened(self.root)
        try:
            for position, name in enumerate(names):
                below = _step(handle, name, names[: position + 1], create=create)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def file(self, path: str) -> Iterator[int]:
        """Open a regular file for reading and yield its descriptor, or raise a ToolError."""
        names = _of_file(path)
        with self.directory(names[:-1]) as folder, clear(path):
            # Non-blocking: a pipe without a writer would block the thread forever.
            handle = os.open(names[-1], os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise ToolError(f"{path!r} is not a regular file")
                yield handle
            finally:
                os.close(handle)

    def write(
        self, path: str, content: bytes, *, max_bytes: int | None = None, append: bool = False
    ) -> int:
        """Write a file atomically: readers see the old or the new one. Return its size.

        Args:
            path: Missing directories are created.
            content: The whole content, or the text to append.
            max_bytes: Limit of the whole workspace; None for no limit.

        Raises:
            ToolError: The workspace would exceed its limit, or the path cannot be written.
        """
        names = _of_file(path)
        with ExitStack() as opened:
            size = len(content)
            old: Iterable[bytes] = ()
            if append:
                with suppress(FileMissing):
                    handle = opened.enter_context(self.file(path))
                    old_bytes = os.fstat(handle).st_size
                    old, size = _pieces(handle, old_bytes), old_bytes + size
            if max_bytes is not None and self.used_bytes() + size > max_bytes:
                raise ToolError(f"the workspace would be larger than {max_bytes:,} bytes")
            with self.directory(names[:-1], create=True) as folder, clear(path):
                mode = _replaceable(folder, names[-1], path)
                _replace(folder, names[-1], chain(old, [content]), mode)
        return size

    def used_bytes(self) -> int:
        """Return the files' disk usage; raise a ToolError if they are too many or too deep."""
        total = seen = 0
        with self.directory(()) as root:
            for _, folder, files in walk(root):
                seen += 1 + len(files)
                if seen > MAX_ENTRIES:
                    raise ToolError(f"the workspace has more than {MAX_ENTRIES:,} files")
                total += sum(_disk_bytes(folder, name) for name in files)
        return total


def walk(
    folder: int, way: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], int, list[str]]]:
    """Yield for each directory the names that lead to it, its descriptor, and its files.

    Everything but directories counts as a file. One descriptor per level is open. Raises a
    ToolError if directories are nested deeper than `MAX_DEPTH`.
    """
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_ENTRIES + 1):
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    yield way, folder, sorted(files)
    if folders and len(way) == MAX_DEPTH:
        raise ToolError(f"the workspace has directories that are more than {MAX_DEPTH} levels deep")
    for name in sorted(folders):
        try:
            handle = _opened(name, folder)
        except OSError as exc:
            if exc.errno in _GONE:
                continue
            # A closed directory must not hide its size.
            raise ToolError(f"{'/'.join((*way, name))!r} cannot be opened: {exc.strerror}") from exc
        try:
            yield from walk(handle, (*way, name))
        finally:
            os.close(handle)


def _disk_bytes(folder: int, name: str) -> int:
    with suppress(OSError):
        # In units of 512 bytes (stat(2)); a sparse file takes less than its size.
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512
    return 0


class FileMissing(ToolError):
    """The file does not exist."""


@contextmanager
def clear(path: str) -> Iterator[None]:
    """Convert an OSError about a path to a ToolError for the model, FileMissing if missing."""
    try:
        yield
    except FileNotFoundError as exc:
        raise FileMissing(f"there is no {path!r}") from exc
    except OSError as exc:
        # ELOOP: a link, opened without following it.
        is_link = exc.errno == errno.ELOOP
        reason = "it is a link, and links are not followed" if is_link else exc.strerror
        raise ToolError(f"{path!r} cannot be used: {reason}") from exc


def _step(folder: int, name: str, way: tuple[str, ...], *, create: bool) -> int:
    shown = "/".join(way)
    with clear(shown):
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
        try:
            return _opened(name, folder)
        except NotADirectoryError as exc:
            # With O_DIRECTORY, links cause this error as well.
            raise ToolError(f"{shown!r} is not a directory, or is a link (not followed)") from exc


def _opened(name: str | Path, folder: int | None = None) -> int:
    """Open a directory, even if a command removed its permissions, so that its files count."""
    try:
        handle = os.open(name, _DIRECTORY, dir_fd=folder)
    except PermissionError:
        if sys.platform != "linux":
            raise
        _mend(name, folder)
        return os.open(name, _DIRECTORY, dir_fd=folder)
    if not os.fstat(handle).st_mode & stat.S_IXUSR:
        os.fchmod(handle, 0o700)
    return handle


def _mend(name: str | Path, folder: int | None) -> None:
    # O_PATH requires no read permission. fchmod refuses such a descriptor, but not its path in
    # /proc.
    handle = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{handle}").chmod(0o700)
    finally:
        os.close(handle)


def _of_file(path: str) -> tuple[str, ...]:
    if not (names := components(path)):
        raise ToolError("a file needs a name")
    return names


def _pieces(handle: int, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, which may not fit into memory."""
    done = 0
    while part := os.pread(handle, min(_PIECE_BYTES, size - done), done):
        yield part
        done += len(part)


def _replaceable(folder: int, name: str, path: str) -> int:
    """Return the mode of a file to be replaced, or that of a new one."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return 0o600
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{path!r} exists and is not a regular file")
    return stat.S_IMODE(found.st_mode) & 0o777


def _replace(folder: int, name: str, parts: Iterable[bytes], mode: int) -> None:
    """Write a temporary file and rename it; a rename replaces a link and never follows it."""
    partial = f".parley-{token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
    handle = os.open(partial, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fchmod(file.fileno(), mode)
            # Before the rename: after a power failure the name must not refer to an empty file.
            os.fsync(file.fileno())
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise


def erase(root: Path) -> None:
    """Delete a directory of any depth, if it exists; links are deleted, never followed.

    Deeply nested directories are first moved up, so neither descriptors nor the stack run out.
    """
    with suppress(FileNotFoundError):
        top = _opened(root)
        try:
            _empty(top)
        finally:
            os.close(top)
        root.rmdir()


def _empty(top: int) -> None:
    waiting = _clear_files(top)
    while waiting:
        name = waiting.pop()
        folder = _opened(name, top)
        try:
            for below in _clear_files(folder):
                moved = token_hex(16)
                os.rename(below, moved, src_dir_fd=folder, dst_dir_fd=top)
                waiting.append(moved)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)


def _clear_files(folder: int) -> list[str]:
    """Delete everything but directories; return the directories' names."""
    os.fchmod(folder, 0o700)
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders
