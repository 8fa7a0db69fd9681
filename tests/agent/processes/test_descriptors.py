"""A process without free file descriptors: its log, its database, its connections."""

import json
import os
import resource
import socket
import sys
from asyncio import create_subprocess_exec, subprocess, timeout
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from agent.processes import descriptors
from agent.processes.descriptors import RESERVED, Reserve, ceiling, is_scarce, raise_limit
from gateway.logging.setup import predecessors
from tests.support.process import ParleyProcess

EXHAUSTED = """
import asyncio, os, resource, sys
from pathlib import Path
from sqlalchemy import text
from agent.processes.descriptors import RESERVE, raise_limit
from gateway.logging.setup import LogFile
from gateway.storage.migrations import open_database

async def main(home):
    RESERVE.keep(16)
    file = LogFile(home / "a.jsonl", max_bytes=1_000)
    async with open_database(home / "parley.db") as database:
        taken = []
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            print(raise_limit(), len(taken) > 0)
        for number in range(300):
            file.write(b"%06d\\n" % number)
        await database.write(lambda conn: conn.execute(text("CREATE TABLE kept (n INTEGER)")))
        reads = [lambda conn: conn.scalar(text("SELECT count(*) FROM kept")) for _ in range(8)]
        print(await asyncio.gather(*map(database.read, reads)))
        for each in taken:
            os.close(each)
        print(RESERVE.filled())
    file.close()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def small_limit() -> Iterator[int]:
    """A soft limit of 256 for this process; what is open already counts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_raised_to_what_is_allowed(small_limit: int) -> None:
    """As far as the system lets it, and not beyond what is sensible."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_limit() == min(hard, descriptors.MOST_DESCRIPTORS) > small_limit
    assert descriptors.limit() == raise_limit()


def test_room_is_left_below_the_limit(small_limit: int) -> None:
    """An eighth, for what Parley opens itself."""
    assert ceiling() == small_limit - small_limit // 8


def test_what_is_lent_is_taken_back() -> None:
    """Also where opening fails."""
    reserve = Reserve()
    reserve.keep(RESERVED)
    missing = reserve.lending(lambda: os.open("/nowhere/at/all", os.O_RDONLY))
    before = lowest_free()
    with reserve.lent():
        assert lowest_free() < before
    with pytest.raises(FileNotFoundError):
        missing()
    assert lowest_free() == before
    reserve.keep(0)


def lowest_free() -> int:
    """Return the number that the next file gets."""
    found = os.open(os.devnull, os.O_RDONLY)
    os.close(found)
    return found


def test_descriptors_are_scarce_before_they_are_gone(small_limit: int) -> None:
    """By the lowest number that is free."""
    assert not is_scarce()
    with ExitStack() as opened:
        while (taken := opened.enter_context(socket.socket())).fileno() < small_limit - 20:
            assert taken.fileno() > 0
        assert is_scarce()
    assert not is_scarce()


@pytest.mark.thorough
async def test_without_descriptors_log_and_database_go_on(tmp_path: Path) -> None:
    """The log rotates and loses no line, the database is written to and read on all connections."""
    command = f'ulimit -n 64; exec {sys.executable} -c "$0" "$1"'
    process = await create_subprocess_exec(
        "/bin/sh", "-c", command, EXHAUSTED, str(tmp_path), stdout=subprocess.PIPE
    )
    async with timeout(60):
        out, _ = await process.communicate()
    assert out.decode().splitlines() == ["64 True", str([0] * 8), "True"]
    path = tmp_path / "a.jsonl"
    files = [*reversed(predecessors(path)), path]
    lines = "".join(file.read_text() for file in files).splitlines()
    assert lines == [f"{number:06}" for number in range(300)]


@pytest.mark.thorough
async def test_connections_are_turned_away_before_descriptors_run_out(tmp_path: Path) -> None:
    """The gateway answers those it has, says so in /readyz, and goes on when they are gone."""
    async with (
        ParleyProcess(tmp_path / "home", descriptors=160) as parley,
        aiohttp.ClientSession(
            "http://parley", connector=aiohttp.UnixConnector(str(parley.home / "parley.sock"))
        ) as http,
    ):
        assert await ready(http) == (200, "free", "writable")
        with ExitStack() as taken:
            for number in range(200):
                # One address alone may have no more than a hundred.
                source = f"127.0.0.{number % 4 + 1}", 0
                here = "127.0.0.1", parley.port
                taken.enter_context(socket.create_connection(here, 10, source))
            await parley.event("connection_refused")
            assert await ready(http) == (503, "scarce", "writable")
        async with timeout(30):
            while (await ready(http))[0] != 200:
                pass
        assert (await parley.health())[0] == 200
        log = tmp_path / "home/logs/parley.jsonl"
        kept = [json.loads(line) for line in log.read_text().splitlines()]
        assert kept[0]["event"] == "descriptors_reserved"
        assert kept[0]["limit"] == 160


async def ready(http: aiohttp.ClientSession) -> tuple[int, str, str]:
    """Return what /readyz says of descriptors and database, over the connection that is open."""
    async with http.get("/readyz") as response:
        body = await response.json()
        return response.status, body["descriptors"], body["database"]


@pytest.mark.parametrize(
    ("most", "turns"), [(32, 1), (40, 1), (64, 8), (128, 29), (231, 63), (232, 64), (1024, 64)]
)
def test_few_descriptors_allow_few_turns(
    monkeypatch: pytest.MonkeyPatch, most: int, turns: int
) -> None:
    """Each needs some of its own; at least one runs."""
    monkeypatch.setattr(descriptors, "limit", lambda: most)
    assert descriptors.most_turns(64) == turns
