"""Copies of files that others write, and of a server's database, as parts of a home's backup."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.backup import copying, restoring
from gateway.backup.backups import DUMP, make
from gateway.backup.copying import BackupStopped, Copying, RoomGuard, digest_of, flush
from gateway.backup.restoring import plan_of, restore
from gateway.errors import GatewayError, StorageUnavailable
from gateway.settings.tree import Settings
from gateway.storage import maintenance
from gateway.storage.database import DatabaseServer
from gateway.supervision.home import RESTORING
from tests.docs.test_operations import filled, rows_of
from tests.support.postgres import PostgresServer, postgres_server

PASSWORD = "hunter-of-the-night"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of the tests' own."""
    with postgres_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _programs(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of the server's version are those that are found."""
    monkeypatch.setattr(shutil, "which", lambda name: str(server._programs / name))


def backed_up(server: PostgresServer, folder: Path) -> tuple[Path, str]:
    """Return a backup of a home on the server, and the URL of its database."""
    url = filled(server)
    home = folder / "home"
    home.mkdir()
    (home / "SOUL.md").write_text("calm")
    settings = Settings.model_validate({"home": home, "storage": {"url": url}})
    made = make(settings, folder / "kept")
    assert made.manifest["database"] == DUMP
    return made.path, url


@pytest.mark.thorough
def test_a_home_on_a_server_is_backed_up_and_restored(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Into an empty database, and into no other."""
    made, url = backed_up(server, tmp_path)
    again = tmp_path / "again"
    with pytest.raises(GatewayError, match="name an empty database"):
        plan_of(made, again)
    with pytest.raises(GatewayError, match="is not empty"):
        plan_of(made, again, DatabaseServer(SecretStr(url)))
    empty = DatabaseServer(SecretStr(server.url(server.create())))
    restore(plan_of(made, again, empty))
    assert rows_of(empty.url.get_secret_value()) == rows_of(url)
    assert (again / "SOUL.md").read_text() == "calm"
    assert maintenance.holds_anything(empty)


class Killed(BaseException):
    """As by a kill: nothing is done about it."""


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["flush", "unlink"])
def test_a_restore_that_is_killed_after_pg_restore_goes_on(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The mark says that the server's database is there; another one is filled all the same."""
    made, url = backed_up(server, tmp_path)
    empty = DatabaseServer(SecretStr(server.url(server.create())))
    again = tmp_path / "again"

    def killed(path: Path, **_: bool) -> None:
        # What is to be replaced is not there: only the mark is removed in earnest.
        if path in {again, again / RESTORING}:
            raise Killed

    plan = plan_of(made, again, empty)
    with monkeypatch.context() as patched:
        patched.setattr(restoring if at == "flush" else Path, at, killed)
        with pytest.raises(Killed):
            restore(plan)
    other = DatabaseServer(SecretStr(server.url(server.create())))
    full = DatabaseServer(SecretStr(filled(server)))
    with pytest.raises(GatewayError, match="is not empty"):
        plan_of(made, again, full)
    plan_of(made, again, other)
    restore(plan_of(made, again, empty))
    assert rows_of(empty.url.get_secret_value()) == rows_of(url)
    assert (again / "SOUL.md").read_text() == "calm"
    assert not (again / RESTORING).exists()


@pytest.mark.thorough
def test_a_restore_that_is_killed_with_pg_restore_says_what_to_do(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what is in the database then; it goes on with another one."""
    made, url = backed_up(server, tmp_path)
    empty, other = (DatabaseServer(SecretStr(server.url(server.create()))) for _ in range(2))
    again = tmp_path / "again"
    into = copying.restore_dump

    def killed(*given: Any) -> None:
        into(*given)
        raise Killed

    plan = plan_of(made, again, empty)
    with monkeypatch.context() as patched:
        patched.setattr(copying, "restore_dump", killed)
        with pytest.raises(Killed):
            restore(plan)
    told = "name another one, or create it again .a restore was cut off"
    with pytest.raises(GatewayError, match=told):
        plan_of(made, again, empty)
    restore(plan_of(made, again, other))
    assert rows_of(other.url.get_secret_value()) == rows_of(url)
    assert not (again / RESTORING).exists()


def test_a_place_holds_no_secret() -> None:
    """It is written into the mark."""
    url = f"postgresql://parley:{PASSWORD}@db.example:6432/chats?sslmode=require"
    assert copying.place_of(DatabaseServer(SecretStr(url))) == "db.example:6432/chats"


def test_what_a_program_says_is_told(tmp_path: Path) -> None:
    """Its last line, and never the password."""
    nobody = f"postgresql://parley:{PASSWORD}@127.0.0.1:9/parley"
    with pytest.raises(StorageUnavailable, match="pg_dump: ") as told:
        copying.dump(DatabaseServer(SecretStr(nobody)), tmp_path / "x", lambda: False)
    assert PASSWORD not in str(told.value)


@pytest.mark.thorough
def test_a_cut_copy_is_found(server: PostgresServer, tmp_path: Path) -> None:
    """By its table of contents."""
    there = DatabaseServer(SecretStr(filled(server)))
    copying.dump(there, tmp_path / "whole", lambda: False)
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:500])
    with pytest.raises(StorageUnavailable, match="pg_restore"):
        copying.check_dump(tmp_path / "cut")


def test_without_the_programs_the_way_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of an error of the system's."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(StorageUnavailable, match="pg_dump is not installed here"):
        copying.dump(DatabaseServer(SecretStr("postgresql:///x")), tmp_path / "x", lambda: False)


def copying_to(folder: Path) -> Copying:
    """Return what copies all there is."""
    guard = RoomGuard(folder, lambda: False)
    return Copying(frozenset(), frozenset(), re.compile("none"), guard)


def test_a_file_that_grows_is_copied_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a command that writes without end would never let a backup end."""
    source = tmp_path / "home"
    source.mkdir()
    (source / "log").write_bytes(b"1234")
    monkeypatch.setattr(copying, "_CHUNK", 2)
    check = RoomGuard.check

    def growing(guard: RoomGuard) -> None:
        with (source / "log").open("ab") as log:
            log.write(b"56")
        check(guard)

    copies = copying_to(tmp_path)
    copies.take(source, tmp_path / "first", "home")
    monkeypatch.setattr(RoomGuard, "check", growing)
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
        re.compile("none"),
        RoomGuard(tmp_path, lambda: False),
    )
    assert copies.size_of(tmp_path / "a") == 3


def test_a_stop_ends_each_step(tmp_path: Path) -> None:
    """Reading a file, and having the disk write."""
    (tmp_path / "file").write_text("words")
    with pytest.raises(BackupStopped):
        digest_of(tmp_path / "file", lambda: True)
    with pytest.raises(BackupStopped):
        flush(tmp_path, lambda: True)
    guard = RoomGuard(tmp_path, lambda: True)
    assert guard.ends()
    with pytest.raises(BackupStopped):
        guard.check()
