"""Killed at every step of a send on every platform: after the restart the answer is there, once."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from tests.e2e.platforms.conftest import DRIVERS
from tests.e2e.platforms.driver import Driver
from tests.support.crash import KILLED, Crashes, until
from tests.support.crash_cluster import Cluster
from tests.support.process import free_port
from tests.support.thorough import WAIT_S, products

STEPS = (
    "after commit of commit",
    "before commit of mark_sending",
    "after commit of mark_sending",
    "send: before the request",
    "send: accepted, no receipt yet",
    "before commit of mark_sent",
    "after commit of mark_sent",
)
IN_DOUBT = set(STEPS[4:6])
"""The message stands in the chat, and the database does not know."""
MARKED = IN_DOUBT | {"after commit of mark_sending", "send: before the request"}
"""It may stand there."""
UNMARKED = {"web"}
"""Platforms on which sending twice shows once, so that no send is marked before it begins."""
SLEEPS_AT = (
    "after commit of mark_sending",
    "send: before the request",
    "send: its turn has come",
)
SHORT_LEASE_S = 5.0


@pytest.fixture
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    """The platform that outlives the gateways."""
    async with DRIVERS[request.param]() as started:
        yield started
        assert started.violations == []


PLACES = [
    place
    for place in products(list(DRIVERS), STEPS)
    if not (place.values[0] in UNMARKED and "mark_sending" in place.values[1])
]


@pytest.mark.parametrize(("driver", "step"), PLACES, indirect=["driver"])
async def test_an_answer_survives_a_kill(driver: Driver, crashes: Crashes, step: str) -> None:
    """Once; a second showing is marked, where the platform does not let us look."""
    crashes.configure(real=(driver.name, driver.block()), web_port=free_port())
    pid = crashes.start(kill=[step, 1])
    await up(crashes, driver, lives=1)
    ann = driver.direct()
    await ann.say("m1")
    assert await crashes.ended(pid) == KILLED, crashes.log()
    pid = crashes.start()
    await up(crashes, driver, lives=2)
    await answered(crashes)
    # What is sent to a page is there for it to be read.
    async with asyncio.timeout(WAIT_S), driver.changed:
        await driver.changed.wait_for(ann.texts)
    assert await crashes.stop(pid) == 0, crashes.log()
    assert sent(crashes) == ["sent"]
    answers = [text.removeprefix("(re-sent)\n") for text in ann.texts()]
    assert len(set(answers)) == 1
    assert len(answers) == (2 if step in IN_DOUBT and not driver.once else 1)
    assert ann.texts()[-1].startswith("(re-sent)") == (step in MARKED and not driver.once)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("driver", "step"),
    products([each for each in DRIVERS if each not in UNMARKED], SLEEPS_AT),
    indirect=["driver"],
)
async def test_a_replica_that_slept_within_a_send_shows_nothing_more(
    driver: Driver, cluster: Cluster, step: str
) -> None:
    """Another one has taken it for dead and sent the answer: there is one copy, not two.

    It is marked where the platform does not let us look.
    """
    cluster.configure(real=(driver.name, driver.block()), lease_s=SHORT_LEASE_S)
    sleeper, other, _ = cluster.replicas
    cluster.run(sleeper, pause=[step, 1])
    await up(cluster, driver, lives=1)
    ann = driver.direct()
    await ann.say("m1")
    await cluster.platform.wait_for(lambda: sleeper.pid in cluster.paused)
    cluster.run(other)
    async with asyncio.timeout(WAIT_S), driver.changed:
        await driver.changed.wait_for(ann.texts)
    cluster.signal(sleeper, signal.SIGCONT)
    await until(lambda: '"former"' in (sleeper.home / "child.log").read_text())
    await cluster.stop_all()
    assert cluster.rows("SELECT state FROM outbox") == [("sent",)]
    assert [text.startswith("(re-sent)") for text in ann.texts()] == [not driver.once]


async def up(crashes: Crashes, driver: Driver, *, lives: int) -> None:
    """Wait until so many gateways have begun, and the newest one is connected."""
    await crashes.platform.wait_for(lambda: crashes.platform.noted("ready") >= lives)
    await driver.connected(crashes.spec.web_port)


def sent(crashes: Crashes) -> list[str]:
    """Return the states of the outbox's rows."""
    with closing(sqlite3.connect(crashes.database)) as database:
        return [state for (state,) in database.execute("SELECT state FROM outbox ORDER BY seq")]


async def answered(crashes: Crashes) -> None:
    """Wait until one answer is sent: a gateway that stops begins no turn."""
    await crashes.platform.wait_for(lambda: sent(crashes) == ["sent"])
