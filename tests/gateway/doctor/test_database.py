"""The checks of `parley doctor` that are of a server: their faults are planted in a real one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from gateway.doctor import database
from gateway.doctor.checks import CHECKS, Examined, Sight, made
from gateway.settings.loading import load_settings
from gateway.storage import maintenance, migrations, schema
from gateway.storage.database import location_of
from gateway.storage.postgres import connect
from tests.support.postgres import server_at

NAMES = ("database-server", "database-connections", "replicas-alive", "accounts-received")


@contextmanager
def changed(url: str) -> Iterator[Connection]:
    """Change something in the database."""
    conn = connect(server_at(url))
    with conn.begin():
        yield conn
    conn.close()


def seen(url: str, home: Path, name: str) -> tuple[Sight, ...]:
    """Make one check."""
    overrides = {"home": home, "storage.url": url}
    found = load_settings(environ={}, overrides=overrides)
    with maintenance.reading(location_of(found.settings)) as conn:
        return made(CHECKS[name], Examined(home, found, opened=conn)).seen


@pytest.fixture
def url(postgres_url: str) -> str:
    """A server with this version's schema."""
    migrations.prepare_server(server_at(postgres_url))
    return postgres_url


@pytest.mark.parametrize("name", NAMES)
def test_of_a_sound_server_nothing_is_said(name: str, url: str, tmp_path: Path) -> None:
    """It is new enough, has room, and nobody is missed."""
    assert [each.level for each in seen(url, tmp_path, name)] == ["fine"]


def test_an_old_server_is_told(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its version."""
    monkeypatch.setattr(database, "OLDEST_SERVER", 99)
    [said] = seen(url, tmp_path, "database-server")
    assert (said.level, "PostgreSQL" in said.text) == ("warning", True)


def test_few_connections_are_told(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a replica cannot start."""
    monkeypatch.setattr(database, "SPARE_CONNECTIONS", 10_000)
    [said] = seen(url, tmp_path, "database-connections")
    assert said.level == "warning"


def test_a_silent_replica_is_told(url: str, tmp_path: Path) -> None:
    """By its name."""
    with changed(url) as conn:
        conn.execute(schema.replica.insert().values(name="host-b /srv", heartbeat_until=1.0))
    [said] = seen(url, tmp_path, "replicas-alive")
    assert (said.level, said.text) == ("warning", "host-b /srv is silent")


def test_an_account_that_nobody_receives_for_is_told(url: str, tmp_path: Path) -> None:
    """Messages wait at the platform."""
    lease = {"platform": "telegram", "account": "default", "shard": 0}
    with changed(url) as conn:
        conn.execute(schema.adapter_lease.insert().values(**lease))
    [said] = seen(url, tmp_path, "accounts-received")
    assert (said.level, said.text) == ("wrong", "nobody receives for telegram:default")
