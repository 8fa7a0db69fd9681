"""What is found of a server: the faults are planted in a real one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from gateway.findings.finding import Evidence
from gateway.findings.report import FINDINGS, Row, report
from gateway.settings.loading import load_settings
from gateway.storage import maintenance, migrations, schema
from gateway.storage.database import location_of
from gateway.storage.postgres import connect
from tests.support.postgres import server_at


@contextmanager
def changed(url: str) -> Iterator[Connection]:
    """Change something in the database."""
    conn = connect(server_at(url))
    with conn.begin():
        yield conn
    conn.close()


def seen(url: str, home: Path) -> list[Row]:
    """Look at the replicas."""
    overrides = {"home": home, "storage.url": url}
    found = load_settings(environ={}, overrides=overrides)
    with maintenance.reading(location_of(found.settings)) as conn:
        return report([FINDINGS["replicas-alive"]], Evidence(home, found, opened=conn))


@pytest.fixture
def url(postgres_url: str) -> str:
    """A server with this version's schema."""
    migrations.prepare_server(server_at(postgres_url))
    return postgres_url


def test_of_a_sound_server_nothing_is_said(url: str, tmp_path: Path) -> None:
    """Nobody is missed."""
    assert [each.level for each in seen(url, tmp_path)] == ["fine"]


def test_a_silent_replica_is_told(url: str, tmp_path: Path) -> None:
    """By its name."""
    with changed(url) as conn:
        conn.execute(schema.replica.insert().values(name="host-b /srv", heartbeat_until=1.0))
    [said] = seen(url, tmp_path)
    assert (said.level, said.text) == ("warning", "host-b /srv is silent")


def test_an_account_that_nobody_receives_for_is_told(url: str, tmp_path: Path) -> None:
    """Messages wait at the platform."""
    lease = {"platform": "telegram", "account": "default", "shard": 0}
    with changed(url) as conn:
        conn.execute(schema.adapter_lease.insert().values(**lease))
    [said] = seen(url, tmp_path)
    assert (said.level, said.text) == ("error", "nobody receives for telegram:default")
