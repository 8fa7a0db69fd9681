"""Two replicas with the web chat behind a real PgBouncer in transaction mode.

Transactions share the pooler's four sessions; the lock that shows that a replica lives and
migrations go past it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.storage import schema
from tests.support.bot_replicas import until
from tests.support.gateway import HeldModel, log_lines
from tests.support.pgbouncer import TAKES_PGBOUNCER, PgBouncer, name_of
from tests.support.recording_adapter import Watch
from tests.support.replicas import Page, ReplicaAtWork, replica, say

pytestmark = TAKES_PGBOUNCER


@pytest.fixture
def storage(pooler: PgBouncer, postgres_url: str) -> dict[str, Any]:
    """What the settings of both replicas say."""
    url = pooler.url(name_of(postgres_url))
    return {"url": url, "direct_url": postgres_url}


@asynccontextmanager
async def two(
    tmp_path: Path, storage: dict[str, Any], model: Any
) -> AsyncIterator[tuple[ReplicaAtWork, ReplicaAtWork]]:
    # One model for both: now and then the other replica is faster to claim a turn.
    async with (
        log_lines(Watch()),
        replica(tmp_path / "one", storage, model) as first,
        replica(tmp_path / "two", storage, model) as second,
    ):
        yield first, second


def cut_presences(url: str) -> int:
    """End the sessions that hold the lock of a replica; returns how many."""
    with psycopg.connect(url, autocommit=True) as admin:
        ended = admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database ON database = oid"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        ).fetchall()
    return len(ended)


async def outcomes(at: ReplicaAtWork) -> set[str | None]:
    rows = await at.gateway.database.read(lambda conn: conn.execute(schema.turn.select()).all())
    return {row.outcome for row in rows}


@pytest.mark.thorough
async def test_an_answer_is_seen_and_stopped_at_the_other_replica(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    """By the rows, which replicas read through the pooler."""
    model, page = HeldModel(begun="Well, "), Page()
    async with two(tmp_path, storage, model) as (one, other), page.open_at(other):
        go_on = model.hold("one")
        await say(one, "one")
        await page.until(lambda: page.preview == "Well, ")
        go_on.set()
        await page.until(lambda: page.answers == ["re: one"] and page.preview is None)
        model.hold("two")
        await say(one, "two")
        await page.until(lambda: page.preview)
        await say(other, "/stop")
        await page.until(lambda: len(page.answers) == 3)
        assert sorted(page.answers[1:]) == ["Stopped.", "Well, \n\n*[stopped]*"]
        assert await outcomes(one) == {"final_text", "interrupted"}


@pytest.mark.thorough
async def test_a_pooler_that_ends_in_mid_turn_costs_nothing(
    tmp_path: Path, storage: dict[str, Any], pooler: PgBouncer
) -> None:
    """What is said meanwhile is refused, and said again; each message is answered once."""
    model, page = HeldModel(begun="Well, "), Page()
    go_on = model.hold("one")
    async with two(tmp_path, storage, model) as (one, other), page.open_at(other):
        before = [each.gateway.replica.id for each in (one, other)]
        await say(one, "one")
        await page.until(lambda: page.preview == "Well, ")
        pooler.stop()
        again = asyncio.create_task(say(other, "two"))
        go_on.set()
        await asyncio.to_thread(pooler.start)
        await again
        await page.until(lambda: len(page.answers) == 2)
        assert page.said == ["one", "re: one", "two", "re: two"]
        assert [each.gateway.replica.id for each in (one, other)] == before


async def test_a_lost_direct_session_is_made_anew(
    tmp_path: Path, storage: dict[str, Any], postgres_url: str
) -> None:
    """The replica goes on as another one over it; the pooler's sessions stay."""
    model, page = HeldModel(), Page()
    async with two(tmp_path, storage, model) as (one, other), page.open_at(other):
        before = one.gateway.replica.id
        assert await asyncio.to_thread(cut_presences, postgres_url) > 0
        await until(lambda: one.gateway.replica.id > before and one.gateway.replica.is_in)
        await say(one, "after")
        await page.until(lambda: page.answers == ["re: after"])
