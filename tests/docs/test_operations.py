"""docs/operations.md: what it says of backups on PostgreSQL is run, command by command."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.storage import maintenance, postgres
from tests.support.confined import NOBODY
from tests.support.every_table import everything, fill
from tests.support.postgres import PostgresServer, _owner, postgres_server, server_at

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
WITHIN_S = 60
AT = "2026-11-27 06:00:00+00"
"""The moment that the page names."""


def block(language: str, holds: str) -> str:
    """Return the block of the section on backups that holds something."""
    section = PAGE.read_text().partition("## Backup and restore\n")[2].partition("\n## ")[0]
    (found,) = [
        each
        for each in re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
        if holds in each
    ]
    return str(found)


def shell(commands: str, server: PostgresServer, folder: Path, **variables: str) -> None:
    """Run commands as the server's user, with its programs."""
    environ = {"LC_ALL": "C", "PATH": f"{server._programs}:/usr/bin:/bin", **variables}
    done = subprocess.run(
        ["/bin/sh", "-ec", commands],
        cwd=folder,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        **_owner(),
    )
    assert done.returncode == 0, done.stderr


def filled(server: PostgresServer) -> str:
    """Return the URL of a database with rows in all tables."""
    url = server.url(server.create())
    maintenance.upgrade(server_at(url))
    with closing(postgres.connect(server_at(url))) as conn, conn.begin():
        fill(conn)
    return url


def rows_of(url: str) -> Any:
    with maintenance.reading(server_at(url)) as conn:
        return everything(conn)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of the server's user, the way to which is open to it."""
    made = Path("/tmp") / f"backup-{os.getpid()}-{tmp_path.name}"  # noqa: S108 - its own name
    made.mkdir(mode=0o700)
    if _owner():
        os.chown(made, NOBODY, -1)
    yield made
    shutil.rmtree(made)


def test_the_dump_is_restored_as_the_page_says(folder: Path) -> None:
    """All tables, the search index, the schema; ids go on; replicas may write meanwhile."""
    with postgres_server() as server:
        url, restored = filled(server), server.url("parley_restored")
        shell(block("sh", "pg_dump"), server, folder, URL=url)
        shell(block("sh", "pg_restore"), server, folder, URL=url, RESTORED_URL=restored)
        assert rows_of(restored) == rows_of(url)
        assert maintenance.check(server_at(restored)) == []
        with psycopg.connect(url) as one, psycopg.connect(restored) as other:
            for query in (
                "SELECT * FROM search_index ORDER BY id",
                "SELECT last_value FROM memory_id_seq",
            ):
                assert other.execute(query).fetchall() == one.execute(query).fetchall()


def test_any_moment_is_restored_as_the_page_says(folder: Path) -> None:
    """What was erased after it is there again, what was entered before it as well."""
    archive, base = folder / "archive", folder / "base"
    told = settings_in(block("ini", "archive_command"), archive)
    with postgres_server({**told, "max_wal_senders": "4"}) as server:
        shell(f"mkdir {archive}", server, folder)
        url = filled(server)
        shell(block("sh", "pg_basebackup").replace("/base", str(base)), server, folder, URL=url)
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("INSERT INTO cursor VALUES ('since the base backup', 1)")
            (moment,) = conn.execute("SELECT clock_timestamp()").fetchone() or (None,)
            before = rows_of(url)
            conn.execute("DELETE FROM search_row")
            until_archived(conn)
        server.stop("immediate")
        restore(server, base, archive, str(moment))
        server.spawn()
        wait_until(lambda: is_restored(url))
        assert rows_of(url) == before


def settings_in(text: str, archive: Path) -> dict[str, str]:
    """Return what a block of postgresql.conf sets."""
    pairs = (line.partition(" = ") for line in text.replace("/archive", str(archive)).splitlines())
    return {key: value.strip("'") for key, _, value in pairs}


def until_archived(conn: "psycopg.Connection[Any]") -> None:
    """Have the log up to now go into the archive, whole: a file is there before it is written."""
    (segment,) = conn.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
    is_archived = "SELECT last_archived_wal >= %s FROM pg_stat_archiver"
    wait_until(lambda: conn.execute(is_archived, [segment]).fetchone() == (True,))


def is_restored(url: str) -> bool:
    """Whether a server has come to the moment that it was to come to, and goes on from there."""
    try:
        with psycopg.connect(url) as conn:
            return conn.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
    except psycopg.OperationalError:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def restore(server: PostgresServer, base: Path, archive: Path, moment: str) -> None:
    """Put the base backup in the place of the data, and do with it what the page says."""
    text = block("ini", "restore_command")
    assert AT in text
    with (base / "postgresql.conf").open("a") as file:
        file.write(text.replace("/archive", str(archive)).replace(AT, moment))
    shutil.rmtree(server.data)
    shell(
        f"mv {base} {server.data} && touch {server.data / 'recovery.signal'}", server, server.folder
    )
