"""The console's pages on a database of a million messages: how long each takes over HTTP.

`python -m tests.bench console=FOLDER` makes the database of `aged_database` there once, which takes
a quarter of an hour, and uses it again (`aged=FOLDER` has the same one); its copy on a PostgreSQL
of the tests' own, in FOLDER/postgres, takes that long again. Without a folder it is a hundredth of
that, for a look. One page is asked for after the other, by a client in the same process, whose time
is in the figures.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import aiohttp
import psycopg
from psycopg.errors import DuplicateDatabase

from gateway.console import site
from gateway.console.register import REGISTER
from gateway.storage import copying, maintenance, postgres
from tests.bench.aged_database import Size, make
from tests.bench.figures import Figure
from tests.support.door import AUTHORIZED
from tests.support.every_table import feed_all
from tests.support.gateway import serving
from tests.support.postgres import PostgresServer, postgres_server

SMALL = Size(1_000, 5_000)
TIMES = 30
MOST_MS = 300.0
SERVED = {"shared_buffers": "256MB", "maintenance_work_mem": "256MB", "max_wal_size": "4GB"}
"""Of the PostgreSQL: that of the tests has room for small databases alone."""
OF_MINE = (
    "/admin/conversations?platform=slack",
    "/admin/conversations?after={half}.0",
    "/admin/conversations?state=failed",
    "/admin/conversations?person=person-40",
    "/admin/conversations?since={day}&until={day}",
    "/admin/conversations?query=baba",
    "/admin/conversations/{middle}",
    "/admin/conversations/{middle}/segments/{middle}",
    "/admin/conversations/{middle}/messages/1",
    "/admin/costs?period=7+days",
    "/admin/costs?period=90+days",
)
"""Beside those in the menu; with places for what the size of the database decides."""


def measure(folder: Path | None = None) -> Iterator[Figure]:
    """Yield the median, the slowest and the processor time of each page."""
    if folder is not None:
        yield from _measure(folder, Size(), folder / "postgres")
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield from _measure(Path(temporary), SMALL, None)


def _measure(folder: Path, size: Size, kept: Path | None) -> Iterator[Figure]:
    home = folder / "parley"
    home.mkdir(parents=True, exist_ok=True)
    path = home / "parley.db"
    if not path.exists():
        make(path, size)
    maintenance.upgrade(path)
    yield from asyncio.run(_figures("SQLite", home, size))
    with postgres_server(SERVED, kept=kept) as server:
        url, elsewhere = _copied(path, server), folder / "replica"
        elsewhere.mkdir(exist_ok=True)
        yield from asyncio.run(_figures("PostgreSQL", elsewhere, size, url=url))


def _copied(path: Path, server: PostgresServer) -> str:
    """Return where the copy of a file is; it is made once."""
    whole, url = server.folder / "whole", server.url("aged")
    if not whole.exists():
        with suppress(DuplicateDatabase):
            server.run("CREATE DATABASE aged")
        copying.copy(path, copying.server_of(url), lambda *_: None)
        with closing(postgres.connect(copying.server_of(url))) as conn, conn.begin():
            feed_all(conn)
        with psycopg.connect(url, autocommit=True) as admin:
            # As autovacuum does in service; the tests' servers have none.
            admin.execute("VACUUM ANALYZE")
        whole.touch()
    return url


class Took(NamedTuple):
    """Milliseconds of one request: until its answer was read, and of the processor."""

    wall_ms: float
    cpu_ms: float


async def _figures(engine: str, home: Path, size: Size, **storage: str) -> list[Figure]:
    found = []
    async for page, took in _timed(home, size, storage):
        walls = [each.wall_ms for each in took]
        found.append(Figure(f"{engine}: {page}", median(walls), "ms", at_most=MOST_MS))
        p99 = quantiles(walls, n=100, method="inclusive")[-1]
        found.append(Figure(f"{'':<4}p99", p99, "ms"))
        cpu = median(each.cpu_ms for each in took)
        found.append(Figure(f"{'':<4}processor time", cpu, "ms", at_most=MOST_MS))
    return found


async def _timed(
    home: Path, size: Size, storage: Mapping[str, str]
) -> AsyncIterator[tuple[str, Sequence[Took]]]:
    """Yield each page with what its requests took; the first one is left out."""
    serves = serving(home, storage=dict(storage))
    async with serves as gateway, aiohttp.ClientSession(headers=AUTHORIZED) as http:
        for page in pages(size):
            url = f"http://127.0.0.1:{gateway.port}{page}"
            yield page, [await _once(http, url) for _ in range(TIMES + 1)][1:]


async def _once(http: aiohttp.ClientSession, url: str) -> Took:
    begun, worked = time.perf_counter(), time.process_time()
    async with http.get(url) as response:
        text = await response.text()
    assert response.status == 200, f"{url}: {response.status} {text[:200]}"
    return Took((time.perf_counter() - begun) * 1000, (time.process_time() - worked) * 1000)


def pages(size: Size) -> list[str]:
    """Return the pages that are measured."""
    # To import the pages is to fill the register.
    assert site.PAGES
    listed = [entry.path for entry in REGISTER if entry.method == "GET" and "{" not in entry.path]
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 30 * 86_400))
    places = {"half": size.turns // 2, "middle": size.conversations // 2, "day": day}
    return [*listed, *(page.format(**places) for page in OF_MINE)]
