"""Copies of a server's database by its own programs, as a part of a home's backup."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.errors import GatewayError, StorageUnavailable
from gateway.lifecycle import dumps, restoring
from gateway.lifecycle.backups import DUMP, make
from gateway.lifecycle.home import RESTORING
from gateway.lifecycle.restoring import plan_of, restore
from gateway.settings.tree import Settings
from gateway.storage import maintenance
from gateway.storage.database import DatabaseServer
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


def test_a_restore_that_is_killed_with_pg_restore_says_what_to_do(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what is in the database then; it goes on with another one."""
    made, url = backed_up(server, tmp_path)
    empty, other = (DatabaseServer(SecretStr(server.url(server.create()))) for _ in range(2))
    again = tmp_path / "again"
    into = dumps.restore

    def killed(*given: Any) -> None:
        into(*given)
        raise Killed

    plan = plan_of(made, again, empty)
    with monkeypatch.context() as patched:
        patched.setattr(dumps, "restore", killed)
        with pytest.raises(Killed):
            restore(plan)
    with pytest.raises(GatewayError, match=r"name another one, or make it anew .a restore into it"):
        plan_of(made, again, empty)
    restore(plan_of(made, again, other))
    assert rows_of(other.url.get_secret_value()) == rows_of(url)
    assert not (again / RESTORING).exists()


def test_a_place_holds_no_secret() -> None:
    """It is written into the mark."""
    url = f"postgresql://parley:{PASSWORD}@db.example:6432/chats?sslmode=require"
    assert dumps.place_of(DatabaseServer(SecretStr(url))) == "db.example:6432/chats"


def test_what_a_program_says_is_told(tmp_path: Path) -> None:
    """Its last line, and never the password."""
    nobody = f"postgresql://parley:{PASSWORD}@127.0.0.1:9/parley"
    with pytest.raises(StorageUnavailable, match="pg_dump: ") as told:
        dumps.dump(DatabaseServer(SecretStr(nobody)), tmp_path / "x", lambda: False)
    assert PASSWORD not in str(told.value)


def test_a_cut_copy_is_found(server: PostgresServer, tmp_path: Path) -> None:
    """By its table of contents."""
    there = DatabaseServer(SecretStr(filled(server)))
    dumps.dump(there, tmp_path / "whole", lambda: False)
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:500])
    with pytest.raises(StorageUnavailable, match="pg_restore"):
        dumps.check(tmp_path / "cut")


def test_without_the_programs_the_way_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of an error of the system's."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(StorageUnavailable, match="pg_dump is not installed here"):
        dumps.dump(DatabaseServer(SecretStr("postgresql:///x")), tmp_path / "x", lambda: False)
