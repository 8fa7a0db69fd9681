"""The directory that cannot be left."""

import os
import resource
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.errors import ToolError
from agent.processes import workspace as module
from agent.processes.workspace import MAX_DEPTH, Workspace, components, erase

SECRET = "not yours"
NAMES = st.sampled_from(["a", "b", "out", "up", "file", "..", ".", "", "etc", "/", "~", "\0"])


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """A workspace with links that lead out, and a secret beside it."""
    (tmp_path / "secret").write_text(SECRET)
    space = Workspace(tmp_path / "ws")
    space.write("a/b/file", b"inside", max_bytes=10**6)
    (space.root / "out").symlink_to(tmp_path)
    (space.root / "a" / "up").symlink_to("../..")
    (space.root / "a" / "secret").symlink_to(tmp_path / "secret")
    return space


def content_of(space: Workspace, path: str) -> bytes:
    """Read a file through the workspace."""
    with space.file(path) as handle:
        return os.read(handle, 100)


@given(st.text(max_size=40) | st.lists(NAMES, max_size=6).map("/".join))
def test_a_path_has_only_names_or_is_refused(path: str) -> None:
    """Whatever the model writes: no step leads upwards or to the root."""
    with suppress(ToolError):
        for name in components(path):
            assert name not in {"", ".", ".."}
            assert "/" not in name
            assert "\0" not in name


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "x\0y", "x" * 256, "\ud800", "a/" * 80, "x/" * 3000],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    """With a text for the model."""
    with pytest.raises(ToolError):
        components(path)


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.sampled_from(["a", "b", "file", "out", "up", "ws", "secret", "."]), max_size=5
    )
)
@example(steps=["a", "b", "file"])
def test_no_path_reads_what_lies_outside(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Links to directories and files outside stand at every level."""
    top = tmp_path_factory.mktemp("t")
    (top / "secret").write_text(SECRET)
    space = Workspace(top / "ws")
    space.write("a/b/file", b"inside", max_bytes=10**6)
    for folder in (space.root, space.root / "a", space.root / "a" / "b"):
        (folder / "out").symlink_to(top)
        (folder / "up").symlink_to("..")
        (folder / "secret").symlink_to(top / "secret")
    with suppress(ToolError):
        assert content_of(space, "/".join(steps)) == b"inside"
    with suppress(ToolError):
        space.write("/".join(steps), b"overwritten", max_bytes=10**6)
    assert (top / "secret").read_text() == SECRET


@contextmanager
def swapping(space: Workspace, outside: Path) -> Iterator[None]:
    """Swap the directory `x` for a link to the outside and back, as fast as a command can."""
    real, link, shown = space.root / "real", space.root / "link", space.root / "x"
    link.symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for source in (real, link):
                with suppress(OSError):
                    erase(shown)  # a writer may have made it meanwhile
                    source.rename(shown)
                    shown.rename(source)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_race_of_links_never_leads_out(space: Workspace, tmp_path: Path) -> None:
    """A command swaps a directory for a link while a file tool is on its way through it."""
    (tmp_path / "file").write_text(SECRET)
    space.write("real/file", b"inside", max_bytes=10**6)
    with swapping(space, tmp_path):
        for _ in range(300):
            with suppress(ToolError):
                assert content_of(space, "x/file") == b"inside"
            with suppress(ToolError):
                space.write("x/made", b"", max_bytes=10**6)
    assert not (tmp_path / "made").exists()


def test_a_link_in_the_place_of_a_file_is_not_written_through(space: Workspace) -> None:
    """It is refused, and what it leads to stays."""
    with pytest.raises(ToolError, match="not a regular file"):
        space.write("a/secret", b"gone", max_bytes=10**6)
    with pytest.raises(ToolError, match="links are not followed"):
        content_of(space, "a/secret")


def test_a_pipe_is_refused_at_once(space: Workspace) -> None:
    """Nobody writes into it; opening it would wait for good."""
    os.mkfifo(space.root / "pipe")
    with pytest.raises(ToolError, match="not a regular file"):
        content_of(space, "pipe")


def test_the_directory_is_for_its_owner_alone(space: Workspace) -> None:
    """And so is what is in it."""
    assert space.root.stat().st_mode & 0o777 == 0o700
    assert (space.root / "a").stat().st_mode & 0o777 == 0o700
    assert (space.root / "a/b/file").stat().st_mode & 0o777 == 0o600


def test_a_file_keeps_its_mode(space: Workspace) -> None:
    """A script stays one."""
    (space.root / "a/b/file").chmod(0o700)
    space.write("a/b/file", b"new", max_bytes=10**6)
    assert (space.root / "a/b/file").stat().st_mode & 0o777 == 0o700


def test_appending_keeps_what_is_there(space: Workspace) -> None:
    """A file that is not there begins with what is added."""
    for _ in range(2):
        space.write("log", b"x", max_bytes=10**6, append=True)
    assert content_of(space, "log") == b"xx"
    with pytest.raises(ToolError, match="larger than 1 bytes"):
        space.write("log", b"x", max_bytes=1, append=True)


def test_appending_takes_no_memory_for_what_is_there(space: Workspace) -> None:
    """A workspace may hold more than the machine has."""
    (space.root / "log").write_bytes(bytes(30_000_000))
    tracemalloc.start()
    try:
        assert space.write("log", b"x", max_bytes=10**9, append=True) == 30_000_001
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_the_quota_is_for_all_files(space: Workspace) -> None:
    """A write that would pass it is refused; the old file stays."""
    with pytest.raises(ToolError, match="workspace would be larger"):
        space.write("a/b/file", b"x" * 10_000, max_bytes=10_000)
    assert content_of(space, "a/b/file") == b"inside"


def test_a_failed_write_leaves_nothing(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: the model is told, no half file stays."""

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolError, match="No space left"):
        space.write("new", b"x", max_bytes=10**6)
    assert sorted(each.name for each in space.root.iterdir()) == ["a", "out"]


def test_a_workspace_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A file is in its place."""
    (tmp_path / "ws").write_text("")
    with pytest.raises(ToolError, match="cannot be created"):
        Workspace(tmp_path / "ws").write("x", b"", max_bytes=10)


@pytest.mark.parametrize("path", ["", ".", "a/missing", "a/b/file/x"])
def test_what_is_no_file_is_told(space: Workspace, path: str) -> None:
    """The directory itself, nothing, or a way through a file."""
    with pytest.raises(ToolError):
        content_of(space, path)


def deep(root: Path, levels: int) -> None:
    """Make directories deeper than any path may be long."""
    handle = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 50, dir_fd=handle)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only so many files more, whatever other tests have left open."""
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    limit = [number for number in range(len(used) + count + 1) if number not in used][count]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_opened_for_want_of_descriptors_does_not_hide(space: Workspace) -> None:
    """A directory that was left out would not count."""
    deep(space.root, 60)
    with descriptors_left(20), pytest.raises((ToolError, OSError), match="Too many open"):
        space.used_bytes()


def test_very_deep_directories_are_refused_and_erased(space: Workspace, tmp_path: Path) -> None:
    """Neither stack nor descriptors run out; what links lead to stays."""
    deep(space.root, 300)
    with descriptors_left(100):
        with pytest.raises(ToolError, match=f"more than {MAX_DEPTH} levels"):
            space.used_bytes()
        erase(space.root)
    assert not space.root.exists()
    assert (tmp_path / "secret").read_text() == SECRET
    erase(space.root)


def test_too_many_files_are_not_counted(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is told to make order."""
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    with pytest.raises(ToolError, match="more than 2 files"):
        space.used_bytes()


def closed(name: str | Path, times: int) -> Any:
    """Return an `os.open` that may not open a directory the first times."""
    real, left = os.open, [times]

    def opening(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if path == name and left[0] and not flags & os.O_PATH:
            left[0] -= 1
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *args, **options)

    return opening


def test_nothing_hides_from_the_quota(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be opened for good is told, not passed over."""
    monkeypatch.setattr(os, "open", closed("b", 2))
    with pytest.raises(ToolError, match="'a/b' cannot be opened"):
        space.used_bytes()


@pytest.mark.parametrize("name", ["a", "root"])
def test_a_closed_directory_is_opened_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A command has taken its owner's rights away: it is counted, used and erased all the same."""
    for use in (space.used_bytes, lambda: content_of(space, "a/b/file"), lambda: erase(space.root)):
        folder = space.root / "a" if name == "a" else space.root
        folder.chmod(0o000)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", closed("a" if name == "a" else space.root, 1))
            assert use() != 0
        assert not folder.exists() or folder.stat().st_mode & 0o777 == 0o700
    assert not space.root.exists()


def test_a_directory_that_can_be_listed_and_no_more_is_opened_too(space: Workspace) -> None:
    """The sizes of its files would not be seen."""
    (space.root / "a").chmod(0o400)
    assert space.used_bytes() > 0
    assert (space.root / "a").stat().st_mode & 0o777 == 0o700


def test_other_systems_mend_nothing(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they would need for it is Linux's own."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "open", closed("a", 1))
    with pytest.raises(ToolError, match="'a' cannot be opened"):
        space.used_bytes()


def test_what_goes_while_it_is_counted_is_passed_over(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command deletes files all the time."""

    def gone(*_args: Any, **_options: Any) -> int:
        raise FileNotFoundError(2, "No such file")

    with space.directory(()) as root:
        walking = module.walk(root)
        next(walking)
        monkeypatch.setattr(os, "open", gone)
        assert list(walking) == []
        assert module._disk_bytes(root, "gone") == 0
