"""Copies of a server's database by its own programs, as a part of a home's backup."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.errors import GatewayError, StorageUnavailable
from gateway.lifecycle import dumps
from gateway.lifecycle.backups import DUMP, make
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


def test_a_home_on_a_server_is_backed_up_and_restored(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Into an empty database, and into no other."""
    url = filled(server)
    home = tmp_path / "home"
    home.mkdir()
    (home / "SOUL.md").write_text("calm")
    settings = Settings.model_validate({"home": home, "storage": {"url": url}})
    made = make(settings, tmp_path / "kept")
    assert made.manifest["database"] == DUMP
    again = tmp_path / "again"
    with pytest.raises(GatewayError, match="name an empty database"):
        plan_of(made.path, again)
    with pytest.raises(GatewayError, match="is not empty"):
        plan_of(made.path, again, DatabaseServer(SecretStr(url)))
    empty = DatabaseServer(SecretStr(server.url(server.create())))
    restore(plan_of(made.path, again, empty))
    assert rows_of(empty.url.get_secret_value()) == rows_of(url)
    assert (again / "SOUL.md").read_text() == "calm"
    assert maintenance.holds_anything(empty)


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
