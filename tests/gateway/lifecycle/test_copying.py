"""Copying files that others write, and ending it."""

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.lifecycle import copying
from gateway.lifecycle.copying import BackupStopped, Copying, Guard, digest_of, flush


def copying_to(folder: Path) -> Copying:
    """Return what copies all there is."""
    guard = Guard(folder, lambda: False)
    return Copying(frozenset(), frozenset(), lambda _: False, guard)


def test_a_file_that_grows_is_copied_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a command that writes without end would never let a backup end."""
    source = tmp_path / "home"
    source.mkdir()
    (source / "log").write_bytes(b"1234")
    monkeypatch.setattr(copying, "_CHUNK", 2)
    check = Guard.check

    def growing(guard: Guard) -> None:
        with (source / "log").open("ab") as log:
            log.write(b"56")
        check(guard)

    copies = copying_to(tmp_path)
    copies.take(source, tmp_path / "first", "home")
    monkeypatch.setattr(Guard, "check", growing)
    copies.take(source, tmp_path / "copy", "home")
    # What came before it was begun is in it.
    assert (tmp_path / "copy/log").read_bytes() == b"123456"
    assert copies.files["home/log"] == {
        "bytes": 6,
        "sha256": digest_of(tmp_path / "copy/log"),
    }


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_any_more_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A command that puts a link or a pipe in its place leads nowhere, and holds nobody up."""
    source, opened = tmp_path / "home", os.open
    source.mkdir()
    for name in ("b", "c"):
        (source / name).write_text("here")
    (tmp_path / "secret").write_text("of somebody else")

    def replacing(path: Any, *flags: Any) -> int:
        if path == str(source / "b"):
            Path(path).unlink()
            Path(path).symlink_to(tmp_path / "secret") if kind == "link" else os.mkfifo(path)
        return opened(path, *flags)

    monkeypatch.setattr(os, "open", replacing)
    copies = copying_to(tmp_path)
    copies.take(source, tmp_path / "copy", "home")
    assert list(copies.files) == ["home/c"]
    assert [each.name for each in (tmp_path / "copy").iterdir()] == ["c"]


def test_the_size_is_that_of_what_would_be_copied(tmp_path: Path) -> None:
    """Files below folders; no links, nothing that is apart."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"123")
    (tmp_path / "a/apart").write_bytes(b"12345")
    (tmp_path / "a/link").symlink_to("apart")
    copies = Copying(
        frozenset({tmp_path / "a/apart"}),
        frozenset(),
        lambda _: False,
        Guard(tmp_path, lambda: False),
    )
    assert copies.size_of(tmp_path / "a") == 3


def test_a_stop_ends_each_step(tmp_path: Path) -> None:
    """Reading a file, and having the disk write."""
    (tmp_path / "file").write_text("words")
    with pytest.raises(BackupStopped):
        digest_of(tmp_path / "file", lambda: True)
    with pytest.raises(BackupStopped):
        flush(tmp_path, lambda: True)
    guard = Guard(tmp_path, lambda: True)
    assert guard.ends()
    with pytest.raises(BackupStopped):
        guard.check()
